// SPDX-License-Identifier: Apache-2.0
#include "headgate/linear_attention.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "headgate/headgate.h"
#include "library/capi/c_calls.hpp"
#include "library/capi/random_tensors.hpp"
#include "library/capi/to_c.hpp"
#include "library/core/linear_attention_rows.hpp"

// Checks that linear attention by the C API computes bitwise the same as by the C++ API.

namespace headgate::testing {
namespace {

/// Makes a valid call that uses every argument that the rule has, on random numbers, the same each time.
class LinearCall : public RandomTensors {
 public:
  static constexpr std::int64_t kB = 2, kHq = 4, kHk = 1, kHv = 2, kT = 5, kD = 8, kDv = 6;
  LinearAttentionInputs in;
  LinearAttentionOutputs out;
  LinearAttentionIncoming incoming;
  LinearAttentionGradients gradients;
  LinearAttentionOptions options;

  explicit LinearCall(LinearRule rule = LinearRule::gated_delta, DType type = DType::f32) {
    options = {.rule = rule, .scale = 0.7, .l2_norm = 1e-6};
    in.q = tensor(type, {kB, kHq, kT, kD});
    in.k = tensor(type, {kB, kHk, kT, kD});
    in.v = tensor(type, {kB, kHv, kT, kDv});
    if (rule_row(rule).has_decay) in.decay = tensor(DType::f32, {kB, kHv, kT, kD}, -1.0, 0.0);
    if (rule_row(rule).has_delta) in.beta = tensor(DType::f32, {kB, 1, kT, 1}, 0.0, 1.0);
    if (type == DType::f32 && rule == LinearRule::gated_delta) in.beta = tensor(DType::f32, {kB, kHv, kT, 1}, 0.0, 1.0);
    in.state = tensor(DType::f64, {kB, kHv, kD, kDv});
    out.y = tensor(type, {kB, kHq, kT, kDv});
    out.state = tensor(DType::f32, in.state.shape);
    incoming.dy = tensor(type, out.y.shape);
    incoming.dstate = tensor(DType::f32, in.state.shape);
    for (const LinearGradient& row : kLinearGradients) {
      const ConstTensorView& of = in.*row.gradient_of;
      if (of.present()) gradients.*row.member = tensor(of.dtype, of.shape);
    }
  }

  headgate_status forward_by_c() const {
    const headgate_linear_attention_options c = c_options();
    return forward_by_c(&c);
  }
  headgate_status forward_by_c(const headgate_linear_attention_options* c) const {
    headgate_linear_attention_outputs outputs = HEADGATE_LINEAR_ATTENTION_OUTPUTS_INIT;
    outputs = tensors_to_c<kLinearOutputs>(outputs, out);
    const headgate_linear_attention_inputs inputs = c_inputs();
    return headgate_linear_attention_forward(&outputs, &inputs, c);
  }

  headgate_status backward_by_c() const {
    headgate_linear_attention_gradients to = HEADGATE_LINEAR_ATTENTION_GRADIENTS_INIT;
    to = tensors_to_c<kLinearGradients>(to, gradients);
    headgate_linear_attention_incoming from = HEADGATE_LINEAR_ATTENTION_INCOMING_INIT;
    from = tensors_to_c<kLinearIncoming>(from, incoming);
    const headgate_linear_attention_inputs inputs = c_inputs();
    const headgate_linear_attention_options c = c_options();
    return headgate_linear_attention_backward(&to, &inputs, &from, &c);
  }

  headgate_linear_attention_options c_options() const {
    const headgate_linear_attention_options zeros = HEADGATE_LINEAR_ATTENTION_OPTIONS_INIT;
    return options_to_c<kLinearOptions>(zeros, options);
  }

 private:
  headgate_linear_attention_inputs c_inputs() const {
    const headgate_linear_attention_inputs zeros = HEADGATE_LINEAR_ATTENTION_INPUTS_INIT;
    return tensors_to_c<kLinearInputs>(zeros, in);
  }
};

void expect_linear_bits_of_cpp(LinearRule rule, DType type) {
  expect_bits_of_cpp<LinearCall>(
      [](const LinearCall& call) { linear_attention_forward(call.out, call.in, call.options); },
      [](const LinearCall& call) { linear_attention_backward(call.gradients, call.in, call.incoming, call.options); },
      rule, type);
}

TEST(CApiLinear, BothPasses_EachRule_HaveTheBitsOfCpp) {
  for (const LinearRuleRow& row : kLinearRules) {
    SCOPED_TRACE(row.word);
    expect_linear_bits_of_cpp(row.value, DType::f32);
  }
}

TEST(CApiLinear, BothPasses_EachDType_HaveTheBitsOfCpp) {
  for (const DType type : {DType::f64, DType::bf16, DType::f16}) {
    SCOPED_TRACE(dtype_name(type));
    expect_linear_bits_of_cpp(LinearRule::gated_delta, type);
  }
}

TEST(CApiLinear, State_TheSameTensorInAndOut_IsUpdatedInPlace) {
  LinearCall apart, in_place;
  apart.out.state = {const_cast<void*>(apart.gradients.dstate.data), DType::f64, apart.in.state.shape,
                     apart.in.state.strides};
  in_place.out.state = {const_cast<void*>(in_place.in.state.data), DType::f64, in_place.in.state.shape,
                        in_place.in.state.strides};
  ASSERT_EQ(apart.forward_by_c(), HEADGATE_OK) << headgate_last_error();
  ASSERT_EQ(in_place.forward_by_c(), HEADGATE_OK) << headgate_last_error();
  const auto* want = static_cast<const double*>(apart.out.state.data);
  const auto* found = static_cast<const double*>(in_place.out.state.data);
  const auto n = static_cast<std::ptrdiff_t>(apart.in.state.numel());
  EXPECT_EQ(std::vector<double>(found, found + n), std::vector<double>(want, want + n));
}

TEST(CApiLinear, PackedBatch_HasTheBitsOfCpp) {
  const std::int64_t bounds[] = {0, 2, 2, LinearCall::kT};
  LinearCall cpp, c;
  for (LinearCall* call : {&cpp, &c}) {
    for (ConstTensorView* view : {&call->in.q, &call->in.k, &call->in.v, &call->in.decay, &call->in.beta}) {
      view->shape[0] = 1;
    }
    call->out.y.shape[0] = 1;
    call->in.state = {};
    call->out.state = {};
    call->in.cu_seqlens = make_vector_view(bounds, 4);
  }
  linear_attention_forward(cpp.out, cpp.in, cpp.options);
  ASSERT_EQ(c.forward_by_c(), HEADGATE_OK) << headgate_last_error();
  EXPECT_EQ(c.memory(), cpp.memory());
}

TEST(CApiLinear, Options_Zeros_AreTheDefaultsOfCpp) {
  const headgate_linear_attention_options zeros = HEADGATE_LINEAR_ATTENTION_OPTIONS_INIT;
  headgate_linear_attention_options with_norm = zeros;
  with_norm.has_l2_norm = 1;  // an eps of 0 is a norm
  const LinearCall cpp;
  linear_attention_forward(cpp.out, cpp.in);
  const std::array<const headgate_linear_attention_options*, 3> all{nullptr, &zeros, &with_norm};
  for (const headgate_linear_attention_options* options : all) {
    const LinearCall c;
    ASSERT_EQ(c.forward_by_c(options), HEADGATE_OK) << headgate_last_error();
    EXPECT_EQ(c.memory() == cpp.memory(), options != &with_norm);
  }
}

TEST(CApiLinear, Options_TargetAndBackend_AreUsed) { expect_target_and_backend_are_used<LinearCall>(); }

TEST(CApiLinear, Message_BadArgument_IsThatOfCppWithTheNameOfC) {
  LinearCall call;
  call.in.k.shape[3] = LinearCall::kD - 1;
  const auto before = call.memory();
  std::string cpp;
  try {
    linear_attention_backward(call.gradients, call.in, call.incoming, call.options);
  } catch (const Error& error) {
    cpp = error.what();
  }
  EXPECT_EQ(call.backward_by_c(), HEADGATE_INVALID_ARGUMENT);
  EXPECT_EQ(headgate_last_error(), "headgate_" + cpp);
  EXPECT_EQ(call.memory(), before);
}

}  // namespace
}  // namespace headgate::testing
