// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "library/core/words.hpp"
#include "models/decoder/parameters.hpp"

namespace headgate::train {

/// Selects the parameters that a run trains. All other parameters stay bitwise unchanged and have no moments.
enum class TrainedPart : std::int32_t { all, gates };

/// Returns the table of trained parameters. Offsets refer to a flat buffer that holds only these parameters, as the
/// optimizer's moments do. Throws Error if no parameters are trained.
models::ParameterTable trained_parameters(const models::ParameterTable& table, TrainedPart part);

}  // namespace headgate::train

namespace headgate {

template <>
struct Words<train::TrainedPart> {
  static constexpr std::array<Word<train::TrainedPart>, 2> kAll{
      {{train::TrainedPart::all, "all"}, {train::TrainedPart::gates, "gates"}}};
};

}  // namespace headgate
