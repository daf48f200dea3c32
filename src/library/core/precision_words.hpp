// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "headgate/attention.hpp"
#include "library/core/words.hpp"

namespace headgate {

template <>
struct Words<Precision> {
  static constexpr std::array<Word<Precision>, 2> kAll{
      {{Precision::exact, "exact"}, {Precision::native16, "native16"}}};
};

}  // namespace headgate
