// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "headgate/linear_attention.hpp"
#include "library/core/words.hpp"

// The rules of linear attention, a row each.

namespace headgate {

struct LinearRuleRow {
  LinearRule value;
  std::string_view word;
  bool has_decay;  ///< whether the state decays by e^g before a token
  bool has_delta;  ///< whether what the state returns for k is taken off v, and β scales the difference
};

/// In the order of the enumerators.
inline constexpr std::array<LinearRuleRow, 4> kLinearRules{{{LinearRule::gated_delta, "gated_delta", true, true},
                                                            {LinearRule::delta, "delta", false, true},
                                                            {LinearRule::gated, "gated", true, false},
                                                            {LinearRule::linear, "linear", false, false}}};

constexpr const LinearRuleRow& rule_row(LinearRule rule) { return kLinearRules[static_cast<std::size_t>(rule)]; }

template <>
struct Words<LinearRule> {
  static constexpr const auto& kAll = kLinearRules;
};

}  // namespace headgate
