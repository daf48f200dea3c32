// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "headgate/linear_attention.hpp"
#include "library/core/words.hpp"

// Table of the rules of linear attention, one row per rule.

namespace headgate {

struct LinearRuleRow {
  LinearRule value;
  std::string_view word;
  bool has_decay;  ///< true if the rule multiplies the state by e^g before updating it
  bool has_delta;  ///< true if the rule adds k uᵀ with u = β (v − Sᵀk) to the state, false if it adds k vᵀ
};

/// The rules in the order of the enumerators.
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
