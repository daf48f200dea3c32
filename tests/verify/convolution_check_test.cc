// SPDX-License-Identifier: Apache-2.0
// Checks of the comparison of the short convolution with the oracle: it accepts the oracle itself, and reports each
// kind of wrong kernel.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "library/core/element.hpp"
#include "verify/short_convolution_case.hpp"
#include "verify/write_all.hpp"

namespace headgate::verify {
namespace {

/// The oracle in the kernels' place.
ConvolutionKernels oracle_convolution_kernels() {
  ConvolutionKernels kernels;
  kernels.forward = [](const auto& out, const auto& in, const auto& options) {
    const reference::ShortConvolutionForward f = reference::short_convolution(in, options);
    write_all(out.y, f.y);
    write_all(out.state, f.state);
    write_all(out.snapshots, f.snapshots);
  };
  kernels.backward = [](const auto& out, const auto& in, const auto& incoming, const auto& options) {
    const reference::ShortConvolutionBackward g = reference::short_convolution_backward(in, incoming, options);
    write_all(out.dx, g.dx);
    write_all(out.dweight, g.dweight);
    write_all(out.dbias, g.dbias);
    write_all(out.dstate, g.dstate);
  };
  return kernels;
}

/// Every input and output, and two packed sequences.
ConvolutionCaseSpec full_convolution_spec(DType dtype) {
  ConvolutionCaseSpec spec;
  spec.T = 30;
  spec.C = 9;
  spec.dtype = dtype;
  spec.bias = spec.state = spec.new_state = spec.dstate = dtype;
  spec.cu_seqlens = DType::i32;
  spec.packed = 2;
  spec.packed_tokens = {2, 28};
  spec.snapshots = {.dtype = dtype, .count = 3};
  return spec;
}

std::optional<std::string> check_both_passes(const ConvolutionCaseSpec& spec, const ConvolutionKernels& kernels) {
  ConvolutionCase problem(spec);
  if (auto mismatch = check_forward_case(problem, kernels)) return mismatch;
  return check_backward_case(problem, kernels);
}

std::string convolution_mismatch(const ConvolutionCaseSpec& spec, const ConvolutionKernels& kernels) {
  return check_both_passes(spec, kernels).value_or("none");
}

TEST(ConvolutionCheck, Oracle_CheckedAgainstItself_Passes) {
  for (const ConvolutionCaseSpec& spec : standard_convolution_cases()) {
    EXPECT_EQ(check_both_passes(spec, oracle_convolution_kernels()), std::nullopt);
  }
}

/// The right kernels on other inputs and options than those of the problem.
struct ConvolutionFault {
  const char* what;
  const char* output;  ///< the first that is wrong
  std::function<void(ShortConvolutionInputs&, ShortConvolutionOptions&)> change;
};

ConvolutionKernels kernels_with(const ConvolutionFault& fault, bool in_forward) {
  ConvolutionKernels kernels = oracle_convolution_kernels();
  if (in_forward) {
    kernels.forward = [right = kernels.forward, fault](const auto& out, auto in, auto options) {
      fault.change(in, options);
      right(out, in, options);
    };
  } else {
    kernels.backward = [right = kernels.backward, fault](const auto& out, auto in, const auto& incoming, auto options) {
      fault.change(in, options);
      right(out, in, incoming, options);
    };
  }
  return kernels;
}

/// The weights in bf16, in the place of f32.
void round_weights(ShortConvolutionInputs& in) {
  static std::vector<double> memory;
  memory.assign(static_cast<std::size_t>(in.weight.numel()), 0.0);
  const TensorView rounded(memory.data(), DType::bf16, in.weight.shape, contiguous_strides(in.weight.shape));
  for (std::int64_t c = 0; c < in.weight.shape[2]; ++c) {
    for (std::int64_t j = 0; j < in.weight.shape[3]; ++j) store(rounded, 0, 0, c, j, load(in.weight, 0, 0, c, j));
  }
  in.weight = rounded;
}

const std::vector<ConvolutionFault>& convolution_faults() {
  using In = ShortConvolutionInputs;
  using Options = ShortConvolutionOptions;
  static const std::vector<ConvolutionFault> faults{
      {"no bias", "y[", [](In& in, Options&) { in.bias = {}; }},
      {"no state", "y[", [](In& in, Options&) { in.state = {}; }},
      {"no activation", "y[", [](In&, Options& options) { options.activation = GateFn::none; }},
      {"taps the other way round", "y[",
       [](In& in, Options&) {
         const auto taps = in.weight.shape[3];
         in.weight.data = static_cast<const std::uint8_t*>(in.weight.data) +
                          (taps - 1) * in.weight.strides[3] * static_cast<std::int64_t>(dtype_bytes(in.weight.dtype));
         in.weight.strides[3] = -in.weight.strides[3];
       }},
      {"the weights of one channel", "y[", [](In& in, Options&) { in.weight.strides[2] = 0; }},
      {"one state for all sequences", "y[", [](In& in, Options&) { in.state.strides[0] = 0; }},
      {"state in one row", "y[", [](In& in, Options&) { in.state.strides[2] = 0; }},
  };
  return faults;
}

TEST(ConvolutionCheck, WrongKernel_EachFault_IsNoticed) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    const ConvolutionCaseSpec spec = full_convolution_spec(dtype);
    for (const ConvolutionFault& fault : convolution_faults()) {
      SCOPED_TRACE(fault.what);
      const std::string forward = convolution_mismatch(spec, kernels_with(fault, true));
      EXPECT_TRUE(forward.starts_with(fault.output)) << forward;
      const std::string backward = convolution_mismatch(spec, kernels_with(fault, false));
      EXPECT_TRUE(backward.starts_with("d")) << backward;
    }
  }
}

TEST(ConvolutionCheck, WeightsInBf16_OfF32_AreNoticed) {
  const ConvolutionFault fault{"weights in bf16", "y[", [](auto& in, auto&) { round_weights(in); }};
  for (const bool in_forward : {true, false}) {
    const std::string found = convolution_mismatch(full_convolution_spec(DType::f32), kernels_with(fault, in_forward));
    EXPECT_TRUE(found.starts_with(in_forward ? "y[" : "dx[")) << found;
  }
}

TEST(ConvolutionCheck, SequencesThatRunOn_AreNoticed) {
  ConvolutionCaseSpec spec = full_convolution_spec(DType::f32);
  spec.state = spec.new_state = spec.dstate = DType::none;
  spec.snapshots = {};  // the fault has fewer sequences, and thus fewer snapshots
  const ConvolutionFault fault{"sequences run on", "y[", [](auto& in, auto&) { in.cu_seqlens = {}; }};
  EXPECT_EQ(check_both_passes(spec, oracle_convolution_kernels()), std::nullopt);
  EXPECT_TRUE(convolution_mismatch(spec, kernels_with(fault, true)).starts_with("y[0,0,2,"));
  EXPECT_TRUE(convolution_mismatch(spec, kernels_with(fault, false)).starts_with("dx[0,0,0,"));
}

TEST(ConvolutionCheck, NoIncomingState_IsNoticed) {
  ConvolutionKernels kernels = oracle_convolution_kernels();
  kernels.backward = [right = kernels.backward](const auto& out, const auto& in, auto incoming, const auto& options) {
    incoming.dstate = {};
    right(out, in, incoming, options);
  };
  EXPECT_TRUE(convolution_mismatch(full_convolution_spec(DType::f32), kernels).starts_with("dx[0,0,0,"));
}

TEST(ConvolutionCheck, FlippedSign_InAnyOutput_IsNoticed) {
  using G = ShortConvolutionGradients;
  const ConvolutionCaseSpec spec = full_convolution_spec(DType::f32);
  const auto negate = [](const TensorView& x) { store(x, 0, 0, 0, 1, -load(x, 0, 0, 0, 1)); };
  const std::vector<std::pair<std::string, TensorView G::*>> gradients{
      {"dx", &G::dx}, {"dweight", &G::dweight}, {"dbias", &G::dbias}, {"dstate", &G::dstate}};
  for (const auto& [name, member] : gradients) {
    ConvolutionKernels kernels = oracle_convolution_kernels();
    kernels.backward = [right = kernels.backward, member = member, negate](const auto& out, const auto& in,
                                                                           const auto& incoming, const auto& options) {
      right(out, in, incoming, options);
      negate(out.*member);
    };
    EXPECT_TRUE(convolution_mismatch(spec, kernels).starts_with(name + "[0,0,0,1]"));
  }
  const std::vector<std::pair<std::string, TensorView ShortConvolutionOutputs::*>> outputs{
      {"y", &ShortConvolutionOutputs::y},
      {"new state", &ShortConvolutionOutputs::state},
      {"snapshots", &ShortConvolutionOutputs::snapshots}};
  for (const auto& [name, member] : outputs) {
    ConvolutionKernels kernels = oracle_convolution_kernels();
    kernels.forward = [right = kernels.forward, member = member, negate](const auto& out, const auto& in,
                                                                         const auto& options) {
      right(out, in, options);
      negate(out.*member);
    };
    EXPECT_TRUE(convolution_mismatch(spec, kernels).starts_with(name + "[0,0,0,1]"));
  }
}

TEST(ConvolutionCheck, Output_NotWrittenOrBesideTheTensor_IsNoticed) {
  const ConvolutionCaseSpec spec = full_convolution_spec(DType::f32);
  ConvolutionKernels kernels = oracle_convolution_kernels();
  kernels.forward = [](const auto&, const auto&, const auto&) {};
  EXPECT_NE(convolution_mismatch(spec, kernels).find("never written"), std::string::npos);
  kernels = oracle_convolution_kernels();
  kernels.backward = [right = kernels.backward](const auto& out, const auto& in, const auto& incoming,
                                                const auto& options) {
    right(out, in, incoming, options);
    static_cast<float*>(out.dweight.data)[-1] = 0.0F;
  };
  EXPECT_TRUE(convolution_mismatch(spec, kernels).starts_with("dweight: bytes outside"));
}

TEST(ConvolutionCheck, BitsThatDependOnThreads_AreNoticed) {
  ConvolutionCase problem(full_convolution_spec(DType::f32));
  ConvolutionKernels kernels = oracle_convolution_kernels();
  EXPECT_EQ(check_same_bits(problem, kernels), std::nullopt);
  kernels.backward = [right = kernels.backward](const auto& out, const auto& in, const auto& incoming,
                                                const auto& options) {
    right(out, in, incoming, options);
    auto* first = static_cast<float*>(out.dx.data);
    if (options.context.threads == 3) *first = std::nextafter(*first, 10.0F);
  };
  EXPECT_TRUE(check_same_bits(problem, kernels).value_or("none").starts_with("1 thread and 3 threads differ"));
}

/// A pass in place replaces the state that the next pass would start from.
TEST(ConvolutionCase, State_InPlace_IsPutBackBeforeEachPass) {
  ConvolutionCaseSpec spec = full_convolution_spec(DType::f32);
  spec.in_place = true;
  ConvolutionCase problem(spec);
  EXPECT_EQ(problem.inputs().state.data, problem.outputs().state.data);
  const double first = load(problem.inputs().state, 0, 0, 0, 0);
  for (int n = 0; n < 2; ++n) {
    EXPECT_EQ(check_forward_case(problem), std::nullopt);
    EXPECT_NE(load(problem.inputs().state, 0, 0, 0, 0), first);
    EXPECT_EQ(check_backward_case(problem), std::nullopt);
    EXPECT_EQ(load(problem.inputs().state, 0, 0, 0, 0), first);
  }
}

TEST(ConvolutionSpec, Descriptions_OfStandardCases_Differ) {
  std::set<std::string> seen;
  for (ConvolutionCaseSpec spec : standard_convolution_cases()) {
    spec.seed = 0;
    EXPECT_TRUE(seen.insert(describe(spec)).second) << describe(spec);
  }
}

TEST(ConvolutionSpec, StandardCases_EveryNumberOfTaps_HaveFewAndNoTokens) {
  std::set<std::pair<std::int64_t, std::int64_t>> seen;
  for (const ConvolutionCaseSpec& spec : standard_convolution_cases()) seen.emplace(spec.K, spec.T);
  for (std::int64_t K = kMinTaps; K <= kMaxTaps; ++K) {
    for (const std::int64_t T : {std::int64_t{0}, std::int64_t{1}, K - 1, K + 1}) {
      EXPECT_TRUE(seen.contains({K, T})) << "K " << K << ", T " << T;
    }
  }
}

TEST(ConvolutionSpec, RandomSpecs_Many_ReachEveryFeature) {
  std::set<DType> dtypes;
  std::set<std::int64_t> taps;
  std::set<Layout> layouts;
  bool bare = false, in_place = false, packed = false, channels_first = false, short_x = false, wide_state = false;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const ConvolutionCaseSpec spec = random_convolution_spec(seed);
    dtypes.insert(spec.dtype);
    taps.insert(spec.K);
    layouts.insert(spec.layout);
    bare = bare || spec.activation == GateFn::none;
    in_place = in_place || spec.in_place;
    packed = packed || spec.cu_seqlens != DType::none;
    channels_first = channels_first || spec.channels_first;
    short_x = short_x || (spec.T < spec.K - 1 && spec.state != DType::none);
    wide_state = wide_state || (spec.dtype == DType::bf16 && spec.state == DType::f32);
  }
  EXPECT_EQ(dtypes.size(), 4U);
  EXPECT_EQ(taps.size(), 7U);
  EXPECT_EQ(layouts.size(), 4U);
  EXPECT_TRUE(bare && in_place && packed && channels_first && short_x && wide_state);
}

}  // namespace
}  // namespace headgate::verify
