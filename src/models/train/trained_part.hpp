// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "library/core/words.hpp"
#include "models/decoder/parameters.hpp"

namespace headgate::train {

/// Which parameters a run trains. The others keep their bits and have no moments.
enum class TrainedPart : std::int32_t { all, gates };

/// Returns the trained parameters of a model, without gaps, as the optimizer's moments are laid out. Throws Error if
/// there are none.
models::ParameterTable trained_parameters(const models::ParameterTable& table, TrainedPart part);

}  // namespace headgate::train

namespace headgate {

template <>
struct Words<train::TrainedPart> {
  static constexpr std::array<Word<train::TrainedPart>, 2> kAll{
      {{train::TrainedPart::all, "all"}, {train::TrainedPart::gates, "gates"}}};
};

}  // namespace headgate
