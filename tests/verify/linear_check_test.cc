// SPDX-License-Identifier: Apache-2.0
// Checks of the comparison of linear attention with the oracle: it accepts the oracle itself and honest kernels in f32,
// and reports each kind of wrong kernel.

#include "verify/linear_attention_check.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "library/core/element.hpp"
#include "verify/linear_reference.hpp"
#include "verify/tolerance.hpp"
#include "verify/write_all.hpp"

namespace headgate::verify {
namespace {

/// The oracle in the kernels' place.
LinearKernels oracle_linear_kernels() {
  LinearKernels kernels;
  kernels.forward = [](const LinearAttentionOutputs& out, const LinearAttentionInputs& in,
                       const LinearAttentionOptions& options) {
    const reference::LinearForward f = reference::linear_forward(in, options);
    write_all(out.y, f.y);
    write_all(out.state, f.state);
    write_all(out.snapshots, f.snapshots);
  };
  kernels.backward = [](const LinearAttentionGradients& out, const LinearAttentionInputs& in,
                        const LinearAttentionIncoming& incoming, const LinearAttentionOptions& options) {
    const reference::LinearBackward g = reference::linear_backward(in, incoming, options);
    write_all(out.dq, g.dq);
    write_all(out.dk, g.dk);
    write_all(out.dv, g.dv);
    write_all(out.ddecay, g.ddecay);
    write_all(out.dbeta, g.dbeta);
    write_all(out.dstate, g.dstate);
  };
  return kernels;
}

/// Every input and output, two packed sequences of more than one chunk in all, and heads that share in both ways that
/// one problem may have.
LinearCaseSpec full_linear_spec(DType dtype) {
  LinearCaseSpec spec;
  spec.Hq = 8;
  spec.Hk = 2;
  spec.Hv = 4;
  spec.T = 130;
  spec.D = 16;
  spec.Dv = 12;
  spec.dtype = dtype;
  spec.l2_norm = 0.05;
  spec.decay = DecayInput::headwise;
  spec.beta = BetaInput::headwise;
  spec.state = spec.new_state = spec.dstate = DType::f32;
  spec.cu_seqlens = DType::i32;
  spec.packed = 2;
  spec.packed_tokens = {40, 90};
  spec.snapshots = {.dtype = dtype == DType::f64 ? DType::f64 : DType::f32, .count = 3};
  return spec;
}

std::optional<std::string> check_both(const LinearCaseSpec& spec, const LinearKernels& kernels) {
  LinearCase problem(spec);
  if (auto mismatch = check_linear_forward_case(problem, kernels)) return mismatch;
  return check_linear_backward_case(problem, kernels);
}

std::string said(const std::optional<std::string>& mismatch) { return mismatch.value_or("none"); }

TEST(LinearCheck, Oracle_CheckedAgainstItself_Passes) {
  for (const LinearCaseSpec& spec : standard_linear_cases()) {
    if (spec.T * spec.D * spec.Dv > 50'000) continue;
    EXPECT_EQ(check_both(spec, oracle_linear_kernels()), std::nullopt);
  }
}

/// An honest recurrence in the compute type is within the tolerance, far below it but for the rounding to storage.
TEST(LinearCheck, PlainRecurrence_StandardAndRandomProblems_Passes) {
  std::vector<LinearCaseSpec> specs = standard_linear_cases();
  std::erase_if(specs, [](const LinearCaseSpec& spec) { return spec.T * spec.D * spec.Dv > 30'000; });
  for (std::uint64_t seed = 1; seed <= 80; ++seed) specs.push_back(random_linear_spec(seed));
  for (const LinearCaseSpec& spec : specs) EXPECT_EQ(check_both(spec, reference_kernels()), std::nullopt);
}

struct FaultAndOutput {
  LinearFault fault;
  const char* output;
};

/// Also where storage is coarse: what is not rounded to it is held to f32.
TEST(LinearCheck, WrongRecurrence_EachFault_IsNoticed) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const FaultAndOutput& each : {FaultAndOutput{LinearFault::weight_of_one_token, "y["},
                                       {LinearFault::no_decay_at_one_token, "y["},
                                       {LinearFault::read_before_decay, "y["},
                                       {LinearFault::no_scale, "y["},
                                       {LinearFault::no_eps, "y["},
                                       {LinearFault::state_in_bf16, "y["},
                                       {LinearFault::state_before_last, "new state["},
                                       {LinearFault::other_key_head, "y["},
                                       {LinearFault::other_state, "y["},
                                       {LinearFault::sequences_run_on, "y["},
                                       {LinearFault::no_read_gradient, "dk["},
                                       {LinearFault::no_write_gradient, "dk["},
                                       {LinearFault::decay_off_by_one, "ddecay["},
                                       {LinearFault::decay_of_new_state, "ddecay["},
                                       {LinearFault::no_incoming_state, "dk["},
                                       {LinearFault::no_projection, "dq["},
                                       {LinearFault::last_head_alone, "dk["},
                                       {LinearFault::beta_of_value_alone, "dbeta["}}) {
      EXPECT_TRUE(said(check_both(full_linear_spec(dtype), reference_kernels(each.fault))).starts_with(each.output))
          << static_cast<int>(each.fault) << " in " << dtype_name(dtype) << ": "
          << said(check_both(full_linear_spec(dtype), reference_kernels(each.fault)));
    }
  }
}

/// The tolerance of native16 is wider, but not so wide that it accepts another recurrence.
TEST(LinearCheck, WrongRecurrence_Native16_IsNoticed) {
  LinearCaseSpec spec = full_linear_spec(DType::bf16);
  spec.precision = Precision::native16;
  for (const LinearFault fault : {LinearFault::no_decay_at_one_token, LinearFault::read_before_decay,
                                  LinearFault::no_scale, LinearFault::state_before_last, LinearFault::other_key_head,
                                  LinearFault::other_state, LinearFault::sequences_run_on}) {
    LinearCase problem(spec);
    EXPECT_NE(check_linear_forward_case(problem, reference_kernels(fault)), std::nullopt) << static_cast<int>(fault);
  }
  LinearCase problem(spec);
  EXPECT_EQ(check_linear_forward_case(problem, reference_kernels(LinearFault::state_in_bf16)), std::nullopt);
}

TEST(LinearCheck, WrongRecurrence_DecayOfEachFeature_IsNoticed) {
  for (const LinearFault fault : {LinearFault::no_decay_at_one_token, LinearFault::read_before_decay,
                                  LinearFault::decay_off_by_one, LinearFault::decay_of_new_state}) {
    LinearCaseSpec spec = full_linear_spec(DType::f32);
    spec.decay = DecayInput::per_feature;
    EXPECT_NE(check_both(spec, reference_kernels(fault)), std::nullopt) << static_cast<int>(fault);
  }
}

TEST(LinearCheck, WrongRecurrence_StatesThatShareAQuery_IsNoticed) {
  LinearCaseSpec spec = full_linear_spec(DType::f32);
  spec.Hq = 2;
  spec.beta = BetaInput::shared;
  EXPECT_EQ(check_both(spec, reference_kernels()), std::nullopt);
  EXPECT_TRUE(said(check_both(spec, reference_kernels(LinearFault::last_head_alone))).starts_with("dq["));
  spec.absent_gradients = kLinearDq | kLinearDk;
  EXPECT_TRUE(said(check_both(spec, reference_kernels(LinearFault::last_head_alone))).starts_with("dbeta["));
}

TEST(LinearCheck, FlippedSign_InAnyOutput_IsNoticed) {
  TensorView LinearAttentionGradients::*const gradients[] = {
      &LinearAttentionGradients::dq,     &LinearAttentionGradients::dk,    &LinearAttentionGradients::dv,
      &LinearAttentionGradients::ddecay, &LinearAttentionGradients::dbeta, &LinearAttentionGradients::dstate};
  const char* const names[] = {"dq[0,0,0,1]",     "dk[0,0,0,1]",    "dv[0,0,0,1]",
                               "ddecay[0,0,0,1]", "dbeta[0,0,2,0]", "dstate[0,0,0,1]"};
  const auto negate = [](const TensorView& x) {
    const std::int64_t feature = x.shape[3] > 1 ? 1 : 0, row = feature == 1 ? 0 : 2;  // the key of row 1 is 0
    store(x, 0, 0, row, feature, -load(x, 0, 0, row, feature));
  };
  LinearCaseSpec spec = full_linear_spec(DType::f32);
  spec.decay = DecayInput::per_feature;
  for (std::size_t n = 0; n < 6; ++n) {
    LinearKernels kernels = oracle_linear_kernels();
    kernels.backward = [right = kernels.backward, gradient = gradients[n], negate](
                           const auto& out, const auto& in, const auto& incoming, const auto& options) {
      right(out, in, incoming, options);
      negate(out.*gradient);
    };
    EXPECT_TRUE(said(check_both(spec, kernels)).starts_with(names[n])) << said(check_both(spec, kernels));
  }
  const std::vector<std::pair<std::string, TensorView LinearAttentionOutputs::*>> outputs{
      {"y", &LinearAttentionOutputs::y},
      {"new state", &LinearAttentionOutputs::state},
      {"snapshots", &LinearAttentionOutputs::snapshots}};
  for (const auto& [name, member] : outputs) {
    LinearKernels kernels = oracle_linear_kernels();
    kernels.forward = [right = kernels.forward, member = member, negate](const auto& out, const auto& in,
                                                                         const auto& options) {
      right(out, in, options);
      negate(out.*member);
    };
    EXPECT_TRUE(said(check_both(spec, kernels)).starts_with(name + "[0,0,0,1]"));
  }
}

TEST(LinearCheck, Output_NotWrittenOrBesideTheTensor_IsNoticed) {
  LinearKernels kernels = oracle_linear_kernels();
  kernels.forward = [](const auto&, const auto&, const auto&) {};
  EXPECT_NE(said(check_both(full_linear_spec(DType::f32), kernels)).find("never written"), std::string::npos);

  kernels = oracle_linear_kernels();
  kernels.backward = [right = kernels.backward](const auto& out, const auto& in, const auto& incoming,
                                                const auto& options) {
    right(out, in, incoming, options);
    static_cast<float*>(out.dv.data)[-1] = 0.0F;
  };
  EXPECT_TRUE(said(check_both(full_linear_spec(DType::f32), kernels)).starts_with("dv: bytes outside"));
}

TEST(LinearCheck, Exception_Thrown_IsNoticed) {
  LinearKernels kernels = oracle_linear_kernels();
  kernels.backward = [](const auto&, const auto&, const auto&, const auto&) { throw Error("no"); };
  EXPECT_TRUE(
      said(check_both(full_linear_spec(DType::f32), kernels)).starts_with("linear_attention_backward threw \"no\""));
}

TEST(LinearCheck, BitsThatDependOnThreads_AreNoticed) {
  LinearCase problem(full_linear_spec(DType::f32));
  LinearKernels kernels = oracle_linear_kernels();
  EXPECT_EQ(check_linear_same_bits(problem, kernels), std::nullopt);
  kernels.backward = [right = kernels.backward](const auto& out, const auto& in, const auto& incoming,
                                                const auto& options) {
    right(out, in, incoming, options);
    auto* first = static_cast<float*>(out.dq.data);
    if (options.context.threads == 3) *first = std::nextafter(*first, 10.0F);
  };
  EXPECT_TRUE(said(check_linear_same_bits(problem, kernels)).starts_with("1 thread and 3 threads differ"));
}

/// A pass in place replaces the state that the next pass would start from.
TEST(LinearCase, State_InPlace_IsPutBackBeforeEachPass) {
  LinearCaseSpec spec = full_linear_spec(DType::f32);
  spec.in_place = true;
  LinearCase problem(spec);
  EXPECT_EQ(problem.inputs().state.data, problem.outputs().state.data);
  const double first = load(problem.inputs().state, 0, 0, 0, 0);
  for (int n = 0; n < 2; ++n) {
    EXPECT_EQ(check_linear_forward_case(problem, reference_kernels()), std::nullopt);
    EXPECT_NE(load(problem.inputs().state, 0, 0, 0, 0), first);
    EXPECT_EQ(check_linear_backward_case(problem, reference_kernels()), std::nullopt);
    EXPECT_EQ(load(problem.inputs().state, 0, 0, 0, 0), first);
  }
}

TEST(LinearCase, Keys_WithoutNorm_HaveALengthOfOneAtMost) {
  for (const bool correlated : {false, true}) {
    LinearCaseSpec spec = full_linear_spec(DType::f32);
    spec.l2_norm.reset();
    spec.correlated_keys = correlated;
    const LinearCase problem(spec);
    for (std::int64_t i = 0; i < spec.T; ++i) {
      double squares = 0.0;
      for (std::int64_t d = 0; d < spec.D; ++d) squares += std::pow(load(problem.inputs().k, 0, 1, i, d), 2);
      EXPECT_GT(squares, 0.35);
      EXPECT_LT(squares, 1.00001);
    }
  }
}

TEST(LinearSpec, Descriptions_OfStandardCases_Differ) {
  std::set<std::string> seen;
  for (LinearCaseSpec spec : standard_linear_cases()) {
    spec.seed = 0;
    EXPECT_TRUE(seen.insert(describe(spec)).second) << describe(spec);
  }
}

TEST(LinearSpec, RandomSpecs_Many_ReachEveryFeature) {
  std::set<LinearRule> rules;
  std::set<DType> dtypes;
  std::set<DecayStrength> strengths;
  bool shared_query = false, shared_state = false, shared_key = false, feature = false, shared_beta = false;
  bool in_place = false, norm = false, packed = false, two = false, correlated = false, chunks = false;
  bool snapshots = false;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const LinearCaseSpec spec = random_linear_spec(seed);
    rules.insert(spec.rule);
    dtypes.insert(spec.dtype);
    strengths.insert(spec.strength);
    shared_query = shared_query || spec.Hq < spec.Hv;
    shared_state = shared_state || spec.Hq > spec.Hv;
    shared_key = shared_key || spec.Hk < spec.Hv;
    feature = feature || spec.decay == DecayInput::per_feature;
    shared_beta = shared_beta || (spec.beta == BetaInput::shared && spec.Hv > 1);
    in_place = in_place || spec.in_place;
    norm = norm || spec.l2_norm.has_value();
    packed = packed || spec.cu_seqlens != DType::none;
    snapshots = snapshots || (spec.cu_seqlens != DType::none && spec.snapshots.present());
    two = two || spec.beta_to_two;
    correlated = correlated || spec.correlated_keys;
    chunks = chunks || spec.T > 128;  // two of the kernels' chunks of tokens
    EXPECT_TRUE(spec.decay == DecayInput::none || spec.may_decay());
    EXPECT_TRUE(spec.beta == BetaInput::none || spec.has_delta());
    EXPECT_EQ(spec.Hv % spec.Hk, 0);
    EXPECT_TRUE(spec.Hq % spec.Hv == 0 || spec.Hv % spec.Hq == 0);
  }
  EXPECT_EQ(rules.size(), 4U);
  EXPECT_EQ(dtypes.size(), 4U);
  EXPECT_EQ(strengths.size(), 4U);
  EXPECT_TRUE(shared_query && shared_state && shared_key && feature && shared_beta && in_place && norm && packed &&
              snapshots && two && correlated && chunks);
}

}  // namespace
}  // namespace headgate::verify
