// SPDX-License-Identifier: Apache-2.0
#include "headgate/short_convolution.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "headgate/headgate.h"
#include "library/capi/c_calls.hpp"
#include "library/capi/random_tensors.hpp"
#include "library/capi/to_c.hpp"
#include "library/core/short_convolution_rows.hpp"

// Checks that the short convolution by the C API computes bitwise the same as by the C++ API.

namespace headgate::testing {
namespace {

/// A valid call that uses every argument but cu_seqlens, on random numbers, the same each time.
class ConvolutionCall : public RandomTensors {
 public:
  static constexpr std::int64_t kB = 2, kT = 5, kC = 6, kK = 4;
  ShortConvolutionInputs in;
  ShortConvolutionOutputs out;
  ShortConvolutionIncoming incoming;
  ShortConvolutionGradients gradients;
  ShortConvolutionOptions options;

  explicit ConvolutionCall(DType type = DType::f32, GateFn activation = GateFn::silu) {
    options.activation = activation;
    in.x = tensor(type, {kB, 1, kT, kC});
    in.weight = tensor(type, {1, 1, kC, kK});
    in.bias = tensor(DType::f32, {1, 1, 1, kC});
    in.state = tensor(type, {kB, 1, kK - 1, kC});
    out.y = tensor(type, in.x.shape);
    out.state = tensor(type, in.state.shape);
    incoming.dy = tensor(type, in.x.shape);
    incoming.dstate = tensor(type, in.state.shape);
    for (const ConvolutionGradient& row : kConvolutionGradients) {
      const ConstTensorView& of = in.*row.gradient_of;
      gradients.*row.member = tensor(of.dtype, of.shape);
    }
  }

  headgate_status forward_by_c() const {
    const headgate_short_convolution_options c = c_options();
    return forward_by_c(&c);
  }
  headgate_status forward_by_c(const headgate_short_convolution_options* c) const {
    headgate_short_convolution_outputs outputs = HEADGATE_SHORT_CONVOLUTION_OUTPUTS_INIT;
    outputs = tensors_to_c<kConvolutionOutputs>(outputs, out);
    const headgate_short_convolution_inputs inputs = c_inputs();
    return headgate_short_convolution_forward(&outputs, &inputs, c);
  }

  headgate_status backward_by_c() const {
    headgate_short_convolution_gradients to = HEADGATE_SHORT_CONVOLUTION_GRADIENTS_INIT;
    to = tensors_to_c<kConvolutionGradients>(to, gradients);
    headgate_short_convolution_incoming from = HEADGATE_SHORT_CONVOLUTION_INCOMING_INIT;
    from = tensors_to_c<kConvolutionIncoming>(from, incoming);
    const headgate_short_convolution_inputs inputs = c_inputs();
    const headgate_short_convolution_options c = c_options();
    return headgate_short_convolution_backward(&to, &inputs, &from, &c);
  }

  headgate_short_convolution_options c_options() const {
    const headgate_short_convolution_options zeros = HEADGATE_SHORT_CONVOLUTION_OPTIONS_INIT;
    return options_to_c<kConvolutionOptions>(zeros, options);
  }

 private:
  headgate_short_convolution_inputs c_inputs() const {
    const headgate_short_convolution_inputs zeros = HEADGATE_SHORT_CONVOLUTION_INPUTS_INIT;
    return tensors_to_c<kConvolutionInputs>(zeros, in);
  }
};

void expect_convolution_bits_of_cpp(DType type, GateFn activation) {
  expect_bits_of_cpp<ConvolutionCall>(
      [](const ConvolutionCall& call) { short_convolution_forward(call.out, call.in, call.options); },
      [](const ConvolutionCall& call) {
        short_convolution_backward(call.gradients, call.in, call.incoming, call.options);
      },
      type, activation);
}

TEST(CApiConvolution, BothPasses_EachActivation_HaveTheBitsOfCpp) {
  for (const GateFn activation : {GateFn::silu, GateFn::none}) {
    SCOPED_TRACE(word_of(activation));
    expect_convolution_bits_of_cpp(DType::f32, activation);
  }
}

TEST(CApiConvolution, BothPasses_EachDType_HaveTheBitsOfCpp) {
  for (const DType type : {DType::f64, DType::bf16, DType::f16}) {
    SCOPED_TRACE(dtype_name(type));
    expect_convolution_bits_of_cpp(type, GateFn::silu);
  }
}

TEST(CApiConvolution, State_TheSameTensorInAndOut_IsUpdatedInPlace) {
  const ConvolutionCall apart;
  ConvolutionCall in_place;
  in_place.out.state = {const_cast<void*>(in_place.in.state.data), DType::f32, in_place.in.state.shape,
                        in_place.in.state.strides};
  ASSERT_EQ(apart.forward_by_c(), HEADGATE_OK) << headgate_last_error();
  ASSERT_EQ(in_place.forward_by_c(), HEADGATE_OK) << headgate_last_error();
  const auto* want = static_cast<const float*>(apart.out.state.data);
  const auto* found = static_cast<const float*>(in_place.out.state.data);
  const auto n = static_cast<std::ptrdiff_t>(apart.in.state.numel());
  EXPECT_EQ(std::vector<float>(found, found + n), std::vector<float>(want, want + n));
}

TEST(CApiConvolution, PackedBatch_HasTheBitsOfCpp) {
  const std::int64_t bounds[] = {0, 2, ConvolutionCall::kT};
  ConvolutionCall cpp, c;
  for (ConvolutionCall* call : {&cpp, &c}) {
    call->in.x.shape[0] = call->out.y.shape[0] = 1;
    call->in.cu_seqlens = make_vector_view(bounds, 3);
  }
  short_convolution_forward(cpp.out, cpp.in, cpp.options);
  ASSERT_EQ(c.forward_by_c(), HEADGATE_OK) << headgate_last_error();
  EXPECT_EQ(c.memory(), cpp.memory());
}

TEST(CApiConvolution, Options_Zeros_AreTheDefaultsOfCpp) {
  const headgate_short_convolution_options zeros = HEADGATE_SHORT_CONVOLUTION_OPTIONS_INIT;
  headgate_short_convolution_options no_activation = zeros;
  no_activation.activation = HEADGATE_GATE_FN_NONE;
  const ConvolutionCall cpp;
  short_convolution_forward(cpp.out, cpp.in);
  const headgate_short_convolution_options* const none = nullptr;
  for (const headgate_short_convolution_options* options : {none, &zeros, &std::as_const(no_activation)}) {
    const ConvolutionCall c;
    ASSERT_EQ(c.forward_by_c(options), HEADGATE_OK) << headgate_last_error();
    EXPECT_EQ(c.memory() == cpp.memory(), options != &no_activation);
  }
}

TEST(CApiConvolution, Options_TargetAndBackend_AreUsed) { expect_target_and_backend_are_used<ConvolutionCall>(); }

TEST(CApiConvolution, Message_BadArgument_IsThatOfCppWithTheNameOfC) {
  ConvolutionCall call;
  call.in.weight.shape[3] = 1;
  const auto before = call.memory();
  std::string cpp;
  try {
    short_convolution_backward(call.gradients, call.in, call.incoming, call.options);
  } catch (const Error& error) {
    cpp = error.what();
  }
  EXPECT_EQ(call.backward_by_c(), HEADGATE_INVALID_ARGUMENT);
  EXPECT_EQ(headgate_last_error(), "headgate_" + cpp);
  EXPECT_EQ(call.memory(), before);
}

}  // namespace
}  // namespace headgate::testing
