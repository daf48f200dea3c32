// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "core/words.hpp"
#include "headgate/attention.hpp"

namespace headgate {

template <>
struct Words<GateFn> {
  static constexpr std::array<Word<GateFn>, 7> kAll{{{GateFn::sigmoid, "sigmoid"},
                                                     {GateFn::sigmoid2, "sigmoid2"},
                                                     {GateFn::ns_sigmoid, "ns_sigmoid"},
                                                     {GateFn::silu, "silu"},
                                                     {GateFn::softplus, "softplus"},
                                                     {GateFn::identity, "identity"},
                                                     {GateFn::none, "none"}}};
};

template <>
struct Words<GateOp> {
  static constexpr std::array<Word<GateOp>, 2> kAll{{{GateOp::mul, "mul"}, {GateOp::add, "add"}}};
};

}  // namespace headgate
