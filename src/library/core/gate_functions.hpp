// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include "headgate/attention.hpp"
#include "headgate/types.h"
#include "library/core/words.hpp"

// Table of the gate functions, one row per function. Their vector code is in gate_functions-inl.hpp.

namespace headgate {

struct GateFunction {
  GateFn value;
  headgate_gate_fn c_value;  ///< enumerator of the C API; has the same number as `value`
  std::string_view word;     ///< name in options, files and messages
  std::string_view formula;  ///< g(z) as text
  /// True if g(z) is 0 for some finite z. y = o ∘ g(z) then does not determine o, and the backward pass needs o from
  /// the forward pass.
  bool has_zero;
};

inline constexpr std::array kGateFunctions{
    GateFunction{GateFn::sigmoid, HEADGATE_GATE_FN_SIGMOID, "sigmoid", "σ(z)", false},
    GateFunction{GateFn::sigmoid2, HEADGATE_GATE_FN_SIGMOID2, "sigmoid2", "2σ(z)", false},
    GateFunction{GateFn::ns_sigmoid, HEADGATE_GATE_FN_NS_SIGMOID, "ns_sigmoid", "½ + ½σ(z)", false},
    GateFunction{GateFn::silu, HEADGATE_GATE_FN_SILU, "silu", "zσ(z)", true},
    GateFunction{GateFn::softplus, HEADGATE_GATE_FN_SOFTPLUS, "softplus", "log(1 + eᶻ)", false},
    GateFunction{GateFn::identity, HEADGATE_GATE_FN_IDENTITY, "identity", "z", true},
};

static_assert(std::all_of(kGateFunctions.begin(), kGateFunctions.end(), [](const GateFunction& row) {
  return row.c_value == static_cast<headgate_gate_fn>(row.value);
}));

/// Returns the index of `fn` in kGateFunctions, or the number of rows for GateFn::none and for invalid values.
constexpr std::size_t gate_row(GateFn fn) {
  const auto is_row = [fn](const GateFunction& row) { return row.value == fn; };
  return static_cast<std::size_t>(std::find_if(kGateFunctions.begin(), kGateFunctions.end(), is_row) -
                                  kGateFunctions.begin());
}

/// Returns the row of a gate function. `fn` must not be none.
constexpr const GateFunction& gate_function(GateFn fn) { return kGateFunctions[gate_row(fn)]; }

/// Returns whether y and z do not always determine o. This is true for y = o ∘ g(z) if g(z) can be 0.
constexpr bool loses_output(GateFn fn, GateOp op) {
  return fn != GateFn::none && op == GateOp::mul && gate_function(fn).has_zero;
}

/// Returns whether a forward pass should save o for the backward pass. `type` is the dtype of y.
///   - A multiplied gate needs o if y and z do not determine o.
///   - An added gate needs o, because o = y − g(z) would suffer from cancellation.
///   - f16 needs o: behind nearly closed gates, y is subnormal and has few digits.
constexpr bool keeps_output(GateFn fn, GateOp op, DType type) {
  return fn != GateFn::none && (op == GateOp::add || loses_output(fn, op) || type == DType::f16);
}

template <>
struct Words<GateFn> {
  static constexpr auto kAll = [] {
    std::array<Word<GateFn>, kGateFunctions.size() + 1> words{};
    for (std::size_t i = 0; i < kGateFunctions.size(); ++i)
      words[i] = {kGateFunctions[i].value, kGateFunctions[i].word};
    words.back() = {GateFn::none, "none"};
    return words;
  }();
};

template <>
struct Words<GateOp> {
  static constexpr std::array<Word<GateOp>, 2> kAll{{{GateOp::mul, "mul"}, {GateOp::add, "add"}}};
};

}  // namespace headgate
