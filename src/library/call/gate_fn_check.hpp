// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "headgate/attention.hpp"
#include "library/call/call.hpp"
#include "library/core/format.hpp"
#include "library/core/gate_functions.hpp"

// Checks a gate function. Error messages contain the function's name and not its number, because `none` has different
// numbers in C and C++.

namespace headgate {

/// Returns the name of a gate function for messages, or the number of an invalid value. Invalid values have the same
/// number in C and C++.
inline std::string gate_fn_text(GateFn fn) {
  const bool is_function = fn == GateFn::none || gate_row(fn) < kGateFunctions.size();
  return is_function ? std::string(word_of(fn)) : formatted("{}", static_cast<std::int32_t>(fn));
}

inline void check_gate_fn(const Call& call, GateFn fn) {
  if (fn == GateFn::none || gate_row(fn) < kGateFunctions.size()) return;
  call.fail("gate_fn is {} but must be one of {}", gate_fn_text(fn), list_words<GateFn>());
}

}  // namespace headgate
