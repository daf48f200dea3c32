// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "headgate/gated_norm.hpp"
#include "headgate/headgate.h"
#include "headgate/linear_attention.hpp"
#include "headgate/short_convolution.hpp"
#include "library/capi/to_c.hpp"
#include "library/core/element.hpp"
#include "library/core/gated_norm_rows.hpp"
#include "library/core/linear_attention_rows.hpp"
#include "library/core/short_convolution_rows.hpp"

// Checks that linear attention, the short convolution and the gated norm by the C API compute bitwise the same as by
// the C++ API.

namespace headgate::testing {
namespace {

/// Makes tensors of random numbers, the same for the same order of calls, and holds their memory.
class RandomTensors {
 public:
  RandomTensors() = default;
  RandomTensors(const RandomTensors&) = delete;
  RandomTensors& operator=(const RandomTensors&) = delete;

  /// A copy of all memory, inputs and outputs.
  std::deque<std::vector<double>> memory() const { return memory_; }

  TensorView tensor(DType dtype, const Shape& shape, double low = -1.0, double high = 1.0) {
    const std::int64_t elements = shape[0] * shape[1] * shape[2] * shape[3];
    std::vector<double>& block = memory_.emplace_back(static_cast<std::size_t>(elements));
    const TensorView view(block.data(), dtype, shape, contiguous_strides(shape));
    std::uniform_real_distribution<double> draw(low, high);
    for (std::int64_t i = 0; i < elements; ++i) store_element(view.data, dtype, i, draw(random_));
    return view;
  }

 private:
  std::mt19937 random_{42};
  std::deque<std::vector<double>> memory_;
};

/// Returns a struct of the C API with its size and the views of `from`.
template <class C, const auto& kRows, class Struct>
C sized_to_c(const Struct& from) {
  C c{};
  c.struct_size = sizeof(c);
  return tensors_to_c<kRows>(c, from);
}

template <class C, const auto& kRows, class Options>
C sized_options_to_c(const Options& from) {
  C c{};
  c.struct_size = sizeof(c);
  return options_to_c<kRows>(c, from);
}

// Each operation is a valid call that uses every argument but cu_seqlens, on random numbers, the same each time. Its
// first parameter is an option with names, all of which are kNames.

struct LinearCall : RandomTensors {
  static constexpr const auto& kNames = kLinearRules;
  static constexpr std::int64_t kB = 2, kHq = 4, kHk = 1, kHv = 2, kT = 5, kD = 8, kDv = 6;
  static constexpr std::array<std::int64_t, 4> kBounds{0, 2, 2, kT};
  static constexpr std::array<std::int64_t, 2> kLengths{1, kT};
  using COptions = headgate_linear_attention_options;
  LinearAttentionInputs in;
  ConstTensorView snapshot_lengths = make_view(kLengths.data(), {1, 1, 1, kLengths.size()});
  LinearAttentionOutputs out;
  LinearAttentionIncoming incoming;
  LinearAttentionGradients gradients;
  LinearAttentionOptions options;

  explicit LinearCall(LinearRule rule = LinearRule::gated_delta, DType type = DType::f32) {
    options = {.rule = rule, .scale = 0.7, .l2_norm = 1e-6};
    in.q = tensor(type, {kB, kHq, kT, kD});
    in.k = tensor(type, {kB, kHk, kT, kD});
    in.v = tensor(type, {kB, kHv, kT, kDv});
    const std::int64_t betas = type == DType::f32 && rule == LinearRule::gated_delta ? kHv : 1;
    if (rule_row(rule).has_decay) in.decay = tensor(DType::f32, {kB, kHv, kT, kD}, -1.0, 0.0);
    if (rule_row(rule).has_delta) in.beta = tensor(DType::f32, {kB, betas, kT, 1}, 0.0, 1.0);
    in.state = tensor(DType::f64, {kB, kHv, kD, kDv});
    out.y = tensor(type, {kB, kHq, kT, kDv});
    out.state = tensor(DType::f32, in.state.shape);
    out.snapshots = tensor(DType::f64, {kB * std::ssize(kLengths), kHv, kD, kDv});
    incoming.dy = tensor(type, out.y.shape);
    incoming.dstate = tensor(DType::f32, in.state.shape);
    for (const LinearGradient& row : kLinearGradients) {
      const ConstTensorView& of = in.*row.gradient_of;
      if (of.present()) gradients.*row.member = tensor(of.dtype, of.shape);
    }
  }

  void pack() {
    for (ConstTensorView* view : {&in.q, &in.k, &in.v, &in.decay, &in.beta}) view->shape[0] = 1;
    out.y.shape[0] = 1;
    in.state = {};
    out.state = {};
    out.snapshots = {};
    snapshot_lengths = {};
    in.cu_seqlens = make_vector_view(kBounds.data(), kBounds.size());
  }
  void spoil() { in.k.shape[3] = kD - 1; }
  static void change(COptions& c) { c.has_l2_norm = 1; }  // an eps of 0 is a norm

  LinearAttentionInputs forward_inputs() const {
    LinearAttentionInputs all = in;
    all.snapshot_lengths = snapshot_lengths;
    return all;
  }
  void forward() const { linear_attention_forward(out, forward_inputs(), options); }
  void forward_by_default() const { linear_attention_forward(out, forward_inputs()); }
  void backward() const { linear_attention_backward(gradients, in, incoming, options); }
  COptions c_options() const { return sized_options_to_c<COptions, kLinearOptions>(options); }
  headgate_status forward_by_c(const COptions* c) const {
    const auto to = sized_to_c<headgate_linear_attention_outputs, kLinearOutputs>(out);
    const auto from = sized_to_c<headgate_linear_attention_inputs, kLinearInputs>(forward_inputs());
    return headgate_linear_attention_forward(&to, &from, c);
  }
  headgate_status backward_by_c(const COptions* c) const {
    const auto to = sized_to_c<headgate_linear_attention_gradients, kLinearGradients>(gradients);
    const auto from = sized_to_c<headgate_linear_attention_inputs, kLinearInputs>(in);
    const auto given = sized_to_c<headgate_linear_attention_incoming, kLinearIncoming>(incoming);
    return headgate_linear_attention_backward(&to, &from, &given, c);
  }
};

struct ConvolutionCall : RandomTensors {
  static constexpr std::array<Word<GateFn>, 2> kNames{{{GateFn::silu, "silu"}, {GateFn::none, "none"}}};
  static constexpr std::int64_t kB = 2, kT = 5, kC = 6, kK = 4;
  static constexpr std::array<std::int64_t, 3> kBounds{0, 2, kT};
  static constexpr std::array<std::int64_t, 2> kLengths{1, 2};
  using COptions = headgate_short_convolution_options;
  ShortConvolutionInputs in;
  ConstTensorView snapshot_lengths = make_view(kLengths.data(), {1, 1, 1, kLengths.size()});
  ShortConvolutionOutputs out;
  ShortConvolutionIncoming incoming;
  ShortConvolutionGradients gradients;
  ShortConvolutionOptions options;

  explicit ConvolutionCall(GateFn activation = GateFn::silu, DType type = DType::f32) {
    options.activation = activation;
    in.x = tensor(type, {kB, 1, kT, kC});
    in.weight = tensor(type, {1, 1, kC, kK});
    in.bias = tensor(DType::f32, {1, 1, 1, kC});
    in.state = tensor(type, {kB, 1, kK - 1, kC});
    out.y = tensor(type, in.x.shape);
    out.state = tensor(type, in.state.shape);
    out.snapshots = tensor(type, {kB * std::ssize(kLengths), 1, kK - 1, kC});
    incoming.dy = tensor(type, in.x.shape);
    incoming.dstate = tensor(type, in.state.shape);
    for (const ConvolutionGradient& row : kConvolutionGradients) {
      const ConstTensorView& of = in.*row.gradient_of;
      gradients.*row.member = tensor(of.dtype, of.shape);
    }
  }

  void pack() {
    in.x.shape[0] = out.y.shape[0] = 1;
    in.cu_seqlens = make_vector_view(kBounds.data(), kBounds.size());
  }
  void spoil() { in.weight.shape[3] = 1; }
  static void change(COptions& c) { c.activation = HEADGATE_GATE_FN_NONE; }

  ShortConvolutionInputs forward_inputs() const {
    ShortConvolutionInputs all = in;
    all.snapshot_lengths = snapshot_lengths;
    return all;
  }
  void forward() const { short_convolution_forward(out, forward_inputs(), options); }
  void forward_by_default() const { short_convolution_forward(out, forward_inputs()); }
  void backward() const { short_convolution_backward(gradients, in, incoming, options); }
  COptions c_options() const { return sized_options_to_c<COptions, kConvolutionOptions>(options); }
  headgate_status forward_by_c(const COptions* c) const {
    const auto to = sized_to_c<headgate_short_convolution_outputs, kConvolutionOutputs>(out);
    const auto from = sized_to_c<headgate_short_convolution_inputs, kConvolutionInputs>(forward_inputs());
    return headgate_short_convolution_forward(&to, &from, c);
  }
  headgate_status backward_by_c(const COptions* c) const {
    const auto to = sized_to_c<headgate_short_convolution_gradients, kConvolutionGradients>(gradients);
    const auto from = sized_to_c<headgate_short_convolution_inputs, kConvolutionInputs>(in);
    const auto given = sized_to_c<headgate_short_convolution_incoming, kConvolutionIncoming>(incoming);
    return headgate_short_convolution_backward(&to, &from, &given, c);
  }
};

struct NormCall : RandomTensors {
  static constexpr const auto& kNames = Words<GateFn>::kAll;
  static constexpr std::int64_t kB = 2, kH = 3, kT = 5, kD = 6;
  using COptions = headgate_gated_norm_options;
  GatedNormInputs in;
  TensorView y;
  ConstTensorView dy;
  GatedNormGradients gradients;
  GatedNormOptions options;

  explicit NormCall(GateFn gate_fn = GateFn::silu, DType type = DType::f32) {
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

  void spoil() { in.gate.shape[3] = kD - 1; }
  static void change(COptions& c) { c.has_eps = 1; }

  void forward() const { gated_norm_forward(y, in, options); }
  void forward_by_default() const { gated_norm_forward(y, in); }
  void backward() const { gated_norm_backward(gradients, in, dy, options); }
  COptions c_options() const { return sized_options_to_c<COptions, kNormOptions>(options); }
  headgate_status forward_by_c(const COptions* c) const {
    const headgate_tensor to = to_c(y);
    const auto from = sized_to_c<headgate_gated_norm_inputs, kNormInputs>(in);
    return headgate_gated_norm_forward(&to, &from, c);
  }
  headgate_status backward_by_c(const COptions* c) const {
    const auto to = sized_to_c<headgate_gated_norm_gradients, kNormGradients>(gradients);
    const auto from = sized_to_c<headgate_gated_norm_inputs, kNormInputs>(in);
    const headgate_const_tensor given = to_c(dy);
    return headgate_gated_norm_backward(&to, &from, &given, c);
  }
};

template <class Call>
class CApiOperation : public ::testing::Test {};
template <class Call>
class CApiSequence : public ::testing::Test {};

using Operations = ::testing::Types<LinearCall, ConvolutionCall, NormCall>;
using Sequences = ::testing::Types<LinearCall, ConvolutionCall>;
TYPED_TEST_SUITE(CApiOperation, Operations);
TYPED_TEST_SUITE(CApiSequence, Sequences);

/// Both passes write the same in C as in C++, and write something.
template <class Call, class... Setting>
void expect_bits_of_cpp(Setting... setting) {
  const Call cpp(setting...), c(setting...), before(setting...);
  const auto options = c.c_options();
  cpp.forward();
  ASSERT_EQ(c.forward_by_c(&options), HEADGATE_OK) << headgate_last_error();
  EXPECT_EQ(c.memory(), cpp.memory());
  EXPECT_NE(c.memory(), before.memory());
  const auto between = c.memory();
  cpp.backward();
  ASSERT_EQ(c.backward_by_c(&options), HEADGATE_OK) << headgate_last_error();
  EXPECT_EQ(c.memory(), cpp.memory());
  EXPECT_NE(c.memory(), between);
}

TYPED_TEST(CApiOperation, BothPasses_EachName_HaveTheBitsOfCpp) {
  for (const auto& row : TypeParam::kNames) {
    SCOPED_TRACE(row.word);
    expect_bits_of_cpp<TypeParam>(row.value);
  }
}

TYPED_TEST(CApiOperation, BothPasses_EachDType_HaveTheBitsOfCpp) {
  const auto name = TypeParam::kNames.front().value;
  for (const DType type : {DType::f64, DType::bf16, DType::f16}) {
    SCOPED_TRACE(dtype_name(type));
    expect_bits_of_cpp<TypeParam>(name, type);
  }
}

TYPED_TEST(CApiOperation, Options_Zeros_AreTheDefaultsOfCpp) {
  typename TypeParam::COptions zeros{};
  zeros.struct_size = sizeof(zeros);
  auto changed = zeros;
  TypeParam::change(changed);
  const TypeParam cpp;
  cpp.forward_by_default();
  const std::array<const typename TypeParam::COptions*, 3> all{nullptr, &zeros, &changed};
  for (const auto* options : all) {
    const TypeParam c;
    ASSERT_EQ(c.forward_by_c(options), HEADGATE_OK) << headgate_last_error();
    EXPECT_EQ(c.memory() == cpp.memory(), options != &changed);
  }
}

TYPED_TEST(CApiOperation, Options_TargetAndBackend_AreUsed) {
  const TypeParam call;
  auto options = call.c_options();
  options.target = "avx9";
  EXPECT_EQ(call.forward_by_c(&options), HEADGATE_INVALID_ARGUMENT);
  const std::string target = headgate_last_error();
  EXPECT_NE(target.find("options.target is 'avx9' but must be one of "), std::string::npos) << target;
  options.target = "";
  options.backend = "abacus";
  EXPECT_EQ(call.forward_by_c(&options), HEADGATE_INVALID_ARGUMENT);
  const std::string backend = headgate_last_error();
  EXPECT_NE(backend.find("options.backend is 'abacus' but must be one of cpu"), std::string::npos) << backend;
}

TYPED_TEST(CApiOperation, Message_BadArgument_IsThatOfCppWithTheNameOfC) {
  TypeParam call;
  call.spoil();
  const auto options = call.c_options();
  const auto before = call.memory();
  std::string cpp;
  try {
    call.backward();
  } catch (const Error& error) {
    cpp = error.what();
  }
  EXPECT_EQ(call.backward_by_c(&options), HEADGATE_INVALID_ARGUMENT);
  EXPECT_EQ(headgate_last_error(), "headgate_" + cpp);
  EXPECT_EQ(call.memory(), before);
}

TYPED_TEST(CApiSequence, State_TheSameTensorInAndOut_IsUpdatedInPlace) {
  TypeParam apart, in_place;
  const ConstTensorView state = in_place.in.state;
  apart.out.state = apart.tensor(state.dtype, state.shape);
  in_place.out.state = {const_cast<void*>(state.data), state.dtype, state.shape, state.strides};
  const auto options = apart.c_options();
  ASSERT_EQ(apart.forward_by_c(&options), HEADGATE_OK) << headgate_last_error();
  ASSERT_EQ(in_place.forward_by_c(&options), HEADGATE_OK) << headgate_last_error();
  const auto bytes = static_cast<std::size_t>(state.numel()) * dtype_bytes(state.dtype);
  EXPECT_EQ(std::memcmp(state.data, apart.out.state.data, bytes), 0);
}

TYPED_TEST(CApiSequence, PackedBatch_HasTheBitsOfCpp) {
  TypeParam cpp, c;
  cpp.pack();
  c.pack();
  const auto options = c.c_options();
  cpp.forward();
  ASSERT_EQ(c.forward_by_c(&options), HEADGATE_OK) << headgate_last_error();
  EXPECT_EQ(c.memory(), cpp.memory());
}

}  // namespace
}  // namespace headgate::testing
