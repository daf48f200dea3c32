// SPDX-License-Identifier: Apache-2.0
#include "models/train/trained_part.hpp"

#include "library/core/check.hpp"

namespace headgate::train {

models::ParameterTable trained_parameters(const models::ParameterTable& table, TrainedPart part) {
  if (part == TrainedPart::all) return table;
  models::ParameterTable gates = table.gates();
  require(gates.total() > 0, "--train-only {}: the model has no gates; --gate adds some", word_of(part));
  return gates;
}

}  // namespace headgate::train
