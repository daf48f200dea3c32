// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include "headgate/attention.hpp"
#include "headgate/types.h"
#include "library/core/words.hpp"

// The gate functions, a row each. Their vector code is in gate_functions-inl.hpp.

namespace headgate {

struct GateFunction {
  GateFn value;
  headgate_gate_fn c_value;  ///< the same number
  std::string_view word;     ///< in options, files and messages
  std::string_view formula;  ///< of z
  /// Whether g(z) is 0 for some finite z. There the output before the gate is lost in y = o ∘ g(z), and the backward
  /// pass needs it from the forward pass.
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

/// Index of the row of `fn` in kGateFunctions; their number for GateFn::none and for what is no enumerator.
constexpr std::size_t gate_row(GateFn fn) {
  const auto is_row = [fn](const GateFunction& row) { return row.value == fn; };
  return static_cast<std::size_t>(std::find_if(kGateFunctions.begin(), kGateFunctions.end(), is_row) -
                                  kGateFunctions.begin());
}

/// The row of a function; `fn` is not none.
constexpr const GateFunction& gate_function(GateFn fn) { return kGateFunctions[gate_row(fn)]; }

/// Whether o cannot be had from y and z: y = o ∘ g(z) where g may be 0.
constexpr bool loses_output(GateFn fn, GateOp op) {
  return fn != GateFn::none && op == GateOp::mul && gate_function(fn).has_zero;
}

/// Whether a forward pass should keep o for the backward pass: it is lost, or o = y − g(z) cancels.
constexpr bool keeps_output(GateFn fn, GateOp op) {
  return fn != GateFn::none && (op == GateOp::add || loses_output(fn, op));
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
