// SPDX-License-Identifier: Apache-2.0
#include "headgate/gated_norm.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>

#include "headgate/headgate.h"
#include "library/capi/c_calls.hpp"
#include "library/capi/random_tensors.hpp"
#include "library/capi/to_c.hpp"
#include "library/core/gated_norm_rows.hpp"

// Checks that the gated norm by the C API computes bitwise the same as by the C++ API.

namespace headgate::testing {
namespace {

/// A valid call that uses every argument, on random numbers, the same each time.
class NormCall : public RandomTensors {
 public:
  static constexpr std::int64_t kB = 2, kH = 3, kT = 5, kD = 6;
  GatedNormInputs in;
  TensorView y;
  ConstTensorView dy;
  GatedNormGradients gradients;
  GatedNormOptions options;

  explicit NormCall(DType type = DType::f32, GateFn gate_fn = GateFn::silu) {
    options = {.eps = 0.25, .gate_fn = gate_fn};
    in.x = tensor(type, {kB, kH, kT, kD});
    in.weight = tensor(DType::f32, {1, kH, 1, kD});
    in.gate = tensor(type, in.x.shape);
    y = tensor(type, in.x.shape);
    dy = tensor(type, in.x.shape);
    for (const NormGradient& row : kNormGradients) {
      const ConstTensorView& of = in.*row.gradient_of;
      if (row.gradient_of == &GatedNormInputs::gate && gate_fn == GateFn::none) continue;
      gradients.*row.member = tensor(of.dtype, of.shape);
    }
  }

  headgate_status forward_by_c() const {
    const headgate_gated_norm_options c = c_options();
    return forward_by_c(&c);
  }
  headgate_status forward_by_c(const headgate_gated_norm_options* c) const {
    const headgate_tensor to = to_c(y);
    const headgate_gated_norm_inputs inputs = c_inputs();
    return headgate_gated_norm_forward(&to, &inputs, c);
  }

  headgate_status backward_by_c() const {
    headgate_gated_norm_gradients to = HEADGATE_GATED_NORM_GRADIENTS_INIT;
    to = tensors_to_c<kNormGradients>(to, gradients);
    const headgate_gated_norm_inputs inputs = c_inputs();
    const headgate_const_tensor from = to_c(dy);
    const headgate_gated_norm_options c = c_options();
    return headgate_gated_norm_backward(&to, &inputs, &from, &c);
  }

  headgate_gated_norm_options c_options() const {
    const headgate_gated_norm_options zeros = HEADGATE_GATED_NORM_OPTIONS_INIT;
    return options_to_c<kNormOptions>(zeros, options);
  }

 private:
  headgate_gated_norm_inputs c_inputs() const {
    const headgate_gated_norm_inputs zeros = HEADGATE_GATED_NORM_INPUTS_INIT;
    return tensors_to_c<kNormInputs>(zeros, in);
  }
};

void expect_norm_bits_of_cpp(DType type, GateFn gate_fn) {
  expect_bits_of_cpp<NormCall>(
      [](const NormCall& call) { gated_norm_forward(call.y, call.in, call.options); },
      [](const NormCall& call) { gated_norm_backward(call.gradients, call.in, call.dy, call.options); }, type, gate_fn);
}

TEST(CApiNorm, BothPasses_EachGateFunction_HaveTheBitsOfCpp) {
  for (const auto& row : Words<GateFn>::kAll) {
    SCOPED_TRACE(row.word);
    expect_norm_bits_of_cpp(DType::f32, row.value);
  }
}

TEST(CApiNorm, BothPasses_EachDType_HaveTheBitsOfCpp) {
  for (const DType type : {DType::f64, DType::bf16, DType::f16}) {
    SCOPED_TRACE(dtype_name(type));
    expect_norm_bits_of_cpp(type, GateFn::silu);
  }
}

TEST(CApiNorm, Options_Zeros_AreTheDefaultsOfCpp) {
  const headgate_gated_norm_options zeros = HEADGATE_GATED_NORM_OPTIONS_INIT;
  headgate_gated_norm_options no_eps = zeros;
  no_eps.has_eps = 1;
  const NormCall cpp;
  gated_norm_forward(cpp.y, cpp.in);
  const headgate_gated_norm_options* const none = nullptr;
  for (const headgate_gated_norm_options* options : {none, &zeros, &std::as_const(no_eps)}) {
    const NormCall c;
    ASSERT_EQ(c.forward_by_c(options), HEADGATE_OK) << headgate_last_error();
    EXPECT_EQ(c.memory() == cpp.memory(), options != &no_eps);
  }
}

TEST(CApiNorm, Options_TargetAndBackend_AreUsed) { expect_target_and_backend_are_used<NormCall>(); }

TEST(CApiNorm, Message_BadArgument_IsThatOfCppWithTheNameOfC) {
  NormCall call;
  call.in.gate.shape[3] = NormCall::kD - 1;
  const auto before = call.memory();
  std::string cpp;
  try {
    gated_norm_backward(call.gradients, call.in, call.dy, call.options);
  } catch (const Error& error) {
    cpp = error.what();
  }
  EXPECT_EQ(call.backward_by_c(), HEADGATE_INVALID_ARGUMENT);
  EXPECT_EQ(headgate_last_error(), "headgate_" + cpp);
  EXPECT_EQ(call.memory(), before);
}

}  // namespace
}  // namespace headgate::testing
