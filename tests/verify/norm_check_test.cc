// SPDX-License-Identifier: Apache-2.0
// Checks of the comparison of the gated norm with the oracle: it accepts the oracle itself, and reports each kind of
// wrong kernel.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "library/core/element.hpp"
#include "verify/gated_norm_case.hpp"
#include "verify/write_all.hpp"

namespace headgate::verify {
namespace {

/// The oracle in the kernels' place.
NormKernels oracle_norm_kernels() {
  NormKernels kernels;
  kernels.forward = [](const auto& y, const auto& in, const auto& options) {
    write_all(y, reference::gated_norm(in, options).y);
  };
  kernels.backward = [](const auto& out, const auto& in, const auto& dy, const auto& options) {
    const reference::GatedNormBackward g = reference::gated_norm_backward(in, dy, options);
    write_all(out.dx, g.dx);
    write_all(out.dweight, g.dweight);
    write_all(out.dgate, g.dgate);
  };
  return kernels;
}

/// Every input and gradient, and an eps that counts.
NormCaseSpec full_norm_spec(DType dtype) {
  NormCaseSpec spec;
  spec.dtype = spec.weight = spec.gate = dtype;
  spec.B = 2;
  spec.H = 3;
  spec.T = 7;
  spec.D = 20;
  spec.weight_of_head = true;
  spec.eps = 0.1;
  return spec;
}

std::optional<std::string> check_both_norms(const NormCaseSpec& spec, const NormKernels& kernels) {
  NormCase problem(spec);
  if (auto mismatch = check_forward_case(problem, kernels)) return mismatch;
  return check_backward_case(problem, kernels);
}

std::string norm_mismatch(const NormCaseSpec& spec, const NormKernels& kernels) {
  return check_both_norms(spec, kernels).value_or("none");
}

TEST(NormCheck, Oracle_CheckedAgainstItself_Passes) {
  for (const NormCaseSpec& spec : standard_norm_cases()) {
    EXPECT_EQ(check_both_norms(spec, oracle_norm_kernels()), std::nullopt);
  }
}

/// The right kernels on other inputs and options than those of the problem.
struct NormFault {
  const char* what;
  std::function<void(GatedNormInputs&, GatedNormOptions&)> change;
};

TEST(NormCheck, WrongKernel_EachFault_IsNoticed) {
  using In = GatedNormInputs;
  using Options = GatedNormOptions;
  const std::vector<NormFault> faults{
      {"no eps", [](In&, Options& options) { options.eps = 0.0; }},
      {"twice the eps", [](In&, Options& options) { options.eps *= 2.0; }},
      {"the eps off by one part in 10^5", [](In&, Options& options) { options.eps *= 1.0 + 1e-5; }},
      {"another gate function", [](In&, Options& options) { options.gate_fn = GateFn::sigmoid; }},
      {"the weight of one head", [](In& in, Options&) { in.weight.strides[1] = 0; }},
      {"the weight of one feature", [](In& in, Options&) { in.weight.strides[3] = 0; }},
      {"the gate of one token", [](In& in, Options&) { in.gate.strides[2] = 0; }},
  };
  for (const DType dtype : {DType::f32, DType::f64}) {
    const NormCaseSpec spec = full_norm_spec(dtype);
    for (const NormFault& fault : faults) {
      SCOPED_TRACE(fault.what);
      NormKernels kernels = oracle_norm_kernels();
      kernels.forward = [right = kernels.forward, fault](const auto& y, auto in, auto options) {
        fault.change(in, options);
        right(y, in, options);
      };
      EXPECT_TRUE(norm_mismatch(spec, kernels).starts_with("y[")) << norm_mismatch(spec, kernels);
      kernels = oracle_norm_kernels();
      kernels.backward = [right = kernels.backward, fault](const auto& out, auto in, const auto& dy, auto options) {
        fault.change(in, options);
        right(out, in, dy, options);
      };
      EXPECT_TRUE(norm_mismatch(spec, kernels).starts_with("d")) << norm_mismatch(spec, kernels);
    }
  }
}

/// dx = r e, without the part that keeps the length of a row.
TEST(NormCheck, GradientWithoutProjection_IsNoticed) {
  NormKernels kernels = oracle_norm_kernels();
  kernels.backward = [right = kernels.backward](const auto& out, const auto& in, const auto& dy, const auto& options) {
    right(out, in, dy, options);
    const Shape& n = in.x.shape;
    for (std::int64_t i = 0; i < n[2]; ++i) {
      double squares = options.eps;
      for (std::int64_t d = 0; d < n[3]; ++d) {
        squares += std::pow(load(in.x, 0, 0, i, d), 2) / static_cast<double>(n[3]);
      }
      for (std::int64_t d = 0; d < n[3]; ++d) {
        const double z = load(in.gate, 0, 0, i, d), gate = z / (1.0 + std::exp(-z));
        store(out.dx, 0, 0, i, d, load(dy, 0, 0, i, d) * load(in.weight, 0, 0, 0, d) * gate / std::sqrt(squares));
      }
    }
  };
  EXPECT_TRUE(norm_mismatch(full_norm_spec(DType::f32), kernels).starts_with("dx[0,0,"));
}

/// The sum over the rows of a weight leaves out one sequence.
TEST(NormCheck, WeightGradientOfOneSequence_IsNoticed) {
  NormKernels kernels = oracle_norm_kernels();
  kernels.backward = [right = kernels.backward](const auto& out, const auto& in, const auto& dy, const auto& options) {
    right(out, in, dy, options);
    GatedNormInputs first = in;
    ConstTensorView first_dy = dy;
    first.x.shape[0] = first.gate.shape[0] = first_dy.shape[0] = 1;
    write_all(out.dweight, reference::gated_norm_backward(first, first_dy, options).dweight);
  };
  EXPECT_TRUE(norm_mismatch(full_norm_spec(DType::f32), kernels).starts_with("dweight["));
}

TEST(NormCheck, FlippedSign_InAnyOutput_IsNoticed) {
  using G = GatedNormGradients;
  const NormCaseSpec spec = full_norm_spec(DType::f32);
  const auto negate = [](const TensorView& x) { store(x, 0, 1, 0, 1, -load(x, 0, 1, 0, 1)); };
  const std::vector<std::pair<std::string, TensorView G::*>> gradients{
      {"dx", &G::dx}, {"dweight", &G::dweight}, {"dgate", &G::dgate}};
  for (const auto& [name, member] : gradients) {
    NormKernels kernels = oracle_norm_kernels();
    kernels.backward = [right = kernels.backward, member = member, negate](const auto& out, const auto& in,
                                                                           const auto& dy, const auto& options) {
      right(out, in, dy, options);
      negate(out.*member);
    };
    EXPECT_TRUE(norm_mismatch(spec, kernels).starts_with(name + "[0,1,0,1]"));
  }
  NormKernels kernels = oracle_norm_kernels();
  kernels.forward = [right = kernels.forward, negate](const auto& y, const auto& in, const auto& options) {
    right(y, in, options);
    negate(y);
  };
  EXPECT_TRUE(norm_mismatch(spec, kernels).starts_with("y[0,1,0,1]"));
}

TEST(NormCheck, Output_NotWrittenOrBesideTheTensor_IsNoticed) {
  const NormCaseSpec spec = full_norm_spec(DType::f32);
  NormKernels kernels = oracle_norm_kernels();
  kernels.forward = [](const auto&, const auto&, const auto&) {};
  EXPECT_NE(norm_mismatch(spec, kernels).find("never written"), std::string::npos);
  kernels = oracle_norm_kernels();
  kernels.backward = [right = kernels.backward](const auto& out, const auto& in, const auto& dy, const auto& options) {
    right(out, in, dy, options);
    static_cast<float*>(out.dgate.data)[-1] = 0.0F;
  };
  EXPECT_TRUE(norm_mismatch(spec, kernels).starts_with("dgate: bytes outside"));
}

TEST(NormCheck, BitsThatDependOnThreads_AreNoticed) {
  NormCase problem(full_norm_spec(DType::f32));
  NormKernels kernels = oracle_norm_kernels();
  EXPECT_EQ(check_same_bits(problem, kernels), std::nullopt);
  kernels.forward = [right = kernels.forward](const auto& y, const auto& in, const auto& options) {
    right(y, in, options);
    auto* first = static_cast<float*>(y.data);
    if (options.context.threads == 3) *first = std::nextafter(*first, 10.0F);
  };
  EXPECT_TRUE(check_same_bits(problem, kernels).value_or("none").starts_with("1 thread and 3 threads differ"));
}

TEST(NormSpec, Descriptions_OfStandardCases_Differ) {
  std::set<std::string> seen;
  for (NormCaseSpec spec : standard_norm_cases()) {
    spec.seed = 0;
    EXPECT_TRUE(seen.insert(describe(spec)).second) << describe(spec);
  }
}

TEST(NormSpec, RandomSpecs_Many_ReachEveryFeature) {
  std::set<DType> dtypes;
  std::set<GateFn> gates;
  std::set<Layout> layouts;
  bool of_head = false, shared = false, bare = false, wide_gate = false;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const NormCaseSpec spec = random_norm_spec(seed);
    dtypes.insert(spec.dtype);
    layouts.insert(spec.layout);
    if (spec.gate != DType::none) gates.insert(spec.gate_fn);
    of_head = of_head || (spec.weight != DType::none && spec.weight_of_head && spec.H > 1);
    shared = shared || (spec.weight != DType::none && !spec.weight_of_head);
    bare = bare || (spec.weight == DType::none && spec.gate == DType::none);
    wide_gate = wide_gate || (spec.dtype == DType::bf16 && spec.gate == DType::f32);
  }
  EXPECT_EQ(dtypes.size(), 4U);
  EXPECT_EQ(gates.size(), 7U);
  EXPECT_EQ(layouts.size(), 5U);
  EXPECT_TRUE(of_head && shared && bare && wide_gate);
}

}  // namespace
}  // namespace headgate::verify
