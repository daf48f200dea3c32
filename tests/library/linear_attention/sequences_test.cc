// SPDX-License-Identifier: Apache-2.0
// Linear attention over sequences: packed ones beside separate calls, one that is split into several calls that hand
// the state on, decoding token by token, and sequences without a token.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "library/linear_attention/linear_property.hpp"
#include "support/owned_tensor.hpp"

namespace headgate {
namespace {

using verify::BetaInput;
using verify::DecayInput;
using verify::LinearCaseSpec;
using verify::LinearKernels;

/// Tokens [begin,end) of the inputs, without cu_seqlens, from the state given.
LinearAttentionInputs tokens_of(const LinearAttentionInputs& in, std::int64_t begin, std::int64_t end,
                                const ConstTensorView& state) {
  const auto rows = [begin, end](const ConstTensorView& view) { return part(view, 2, begin, end); };
  return {rows(in.q), rows(in.k), rows(in.v), rows(in.decay), rows(in.beta), state, {}};
}

LinearAttentionGradients tokens_of(const LinearAttentionGradients& out, std::int64_t begin, std::int64_t end,
                                   const TensorView& dstate) {
  const auto rows = [begin, end](const TensorView& view) { return part(view, 2, begin, end); };
  return {rows(out.dq), rows(out.dk), rows(out.dv), rows(out.ddecay), rows(out.dbeta), dstate};
}

void expect_sequences_as_alone(verify::LinearCase& problem) {
  const LinearCaseSpec& spec = problem.spec();
  const LinearAttentionInputs& in = problem.inputs();
  const LinearAttentionOutputs& out = problem.outputs();
  const LinearAttentionGradients& gradients = problem.gradients();
  linear_attention_forward(out, in, problem.options());
  linear_attention_backward(gradients, in, problem.incoming(), problem.options());
  std::int64_t first = 0;
  for (std::int64_t n = 0; n < spec.packed; ++n) {
    const std::int64_t end = first + spec.packed_tokens[n];
    const auto rows = [first, end](const TensorView& view) { return part(view, 2, first, end); };
    const auto state_of = [n](const ConstTensorView& view) { return part(view, 0, n, n + 1); };
    const LinearAttentionInputs own = tokens_of(in, first, end, state_of(in.state));
    const Owned y(rows(out.y)), state(state_of(out.state));
    const Owned dq(own.q), dk(own.k), dv(own.v), ddecay(own.decay), dbeta(own.beta), dstate(own.state);
    linear_attention_forward({y.view, state.view}, own, problem.options());
    linear_attention_backward({dq.view, dk.view, dv.view, ddecay.view, dbeta.view, dstate.view}, own,
                              {part(problem.incoming().dy, 2, first, end), state_of(problem.incoming().dstate)},
                              problem.options());
    const std::string which = "sequence " + std::to_string(n) + " of " + describe(spec) + ": ";
    expect_equal(y.view, rows(out.y), which + "y");
    expect_equal(state.view, state_of(out.state), which + "state");
    expect_equal(dq.view, rows(gradients.dq), which + "dq");
    expect_equal(dk.view, rows(gradients.dk), which + "dk");
    expect_equal(dv.view, rows(gradients.dv), which + "dv");
    expect_equal(ddecay.view, rows(gradients.ddecay), which + "ddecay");
    expect_equal(dbeta.view, rows(gradients.dbeta), which + "dbeta");
    expect_equal(dstate.view, state_of(gradients.dstate), which + "dstate");
    first = end;
  }
}

LinearCaseSpec packed_spec(const std::vector<std::int64_t>& tokens) {
  LinearCaseSpec spec = gated_delta_spec(std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0}), 20, 24);
  spec.cu_seqlens = DType::i32;
  spec.packed = static_cast<std::int64_t>(tokens.size());
  spec.packed_tokens = tokens;
  return spec;
}

TEST(LinearSequences, PackedBatch_AnySequences_IsBitwiseIdenticalToSeparateCalls) {
  for (const DType dtype : kDTypes) {
    for (const DecayInput decay : {DecayInput::headwise, DecayInput::per_feature}) {
      LinearCaseSpec spec = packed_spec({70, 1, 0, 128, 5, 1, 65});
      spec.dtype = dtype;
      spec.decay = decay;
      spec.Hq = spec.Hv = 4;
      spec.Hk = 2;
      spec.threads = 2;
      spec.beta = decay == DecayInput::headwise ? BetaInput::headwise : BetaInput::shared;
      const auto error = verify::check_linear_on_every_target(
          spec, [](verify::LinearCase& problem, const std::string& /*target*/) -> std::optional<std::string> {
            expect_sequences_as_alone(problem);
            return std::nullopt;
          });
      EXPECT_EQ(error.value_or(""), "");
    }
  }
}

TEST(LinearSequences, PackedBatch_ManyTinySequences_MatchesTheOracle) {
  std::vector<std::int64_t> tokens;
  for (std::int64_t n = 0; n < 400; ++n) tokens.push_back(n % 5 == 0 ? 0 : n % 3 + 1);
  LinearCaseSpec spec = packed_spec(tokens);
  spec.D = spec.Dv = 8;
  spec.threads = 2;
  expect_both(spec);
}

TEST(LinearSequences, PackedBatch_NoOrEmptySequences_PassesStatesThrough) {
  for (const std::int64_t sequences : {0, 1, 5}) {
    expect_both(packed_spec(std::vector<std::int64_t>(static_cast<std::size_t>(sequences), 0)));
  }
}

/// Without a token the state goes on as it is, and so does its gradient.
TEST(LinearSequences, ZeroTokens_AnyState_AreThatState) {
  for (const DType dtype : kDTypes) {
    for (const DType state : {DType::f32, DType::f64}) {
      for (const bool in_place : {false, true}) {
        LinearCaseSpec spec = gated_delta_spec(0, 9, 6);
        spec.B = spec.Hq = spec.Hk = spec.Hv = 2;
        spec.dtype = dtype;
        spec.state = spec.new_state = spec.dstate = state;
        spec.in_place = in_place;
        expect_both(spec);
        if (dtype != DType::f64 && state == DType::f64) continue;  // computed in f32
        verify::LinearCase problem(spec);
        linear_attention_forward(problem.outputs(), problem.inputs(), problem.options());
        linear_attention_backward(problem.gradients(), problem.inputs(), problem.incoming(), problem.options());
        expect_equal(problem.outputs().state, problem.inputs().state, "state");
        expect_equal(problem.gradients().dstate, problem.incoming().dstate, "dstate");
      }
    }
  }
  LinearCaseSpec spec = gated_delta_spec(0, 9, 6);
  spec.state = DType::none;
  expect_both(spec);
}

/// Calls that end after tokens `cuts`, and hand the state on in the type that the library computes in.
class SplitCalls {
 public:
  explicit SplitCalls(std::vector<std::int64_t> cuts) : cuts_(std::move(cuts)) {}

  LinearKernels kernels() const {
    LinearKernels out;
    out.forward = [self = *this](const auto& outputs, const auto& in, const auto& options) {
      self.forward(outputs, in, options);
    };
    out.backward = [self = *this](const auto& gradients, const auto& in, const auto& incoming, const auto& options) {
      self.backward(gradients, in, incoming, options);
    };
    return out;
  }

 private:
  static Owned handed_on(const LinearAttentionInputs& in) {
    const DType dtype = in.q.dtype == DType::f64 ? DType::f64 : DType::f32;
    return {dtype, {in.q.shape[0], in.v.shape[1], in.q.shape[3], in.v.shape[3]}};
  }

  std::vector<std::int64_t> bounds(std::int64_t T) const {
    std::vector<std::int64_t> out{0};
    std::copy_if(cuts_.begin(), cuts_.end(), std::back_inserter(out), [T](std::int64_t cut) { return cut < T; });
    out.push_back(T);
    return out;
  }

  void forward(const LinearAttentionOutputs& outputs, const LinearAttentionInputs& in,
               const LinearAttentionOptions& options) const {
    const std::vector<std::int64_t> at = bounds(in.q.shape[2]);
    const Owned between = handed_on(in);
    for (std::size_t n = 0; n + 1 < at.size(); ++n) {
      const bool first = n == 0, last = n + 2 == at.size();
      const ConstTensorView before = first ? in.state : between.view;
      linear_attention_forward({part(outputs.y, 2, at[n], at[n + 1]), last ? outputs.state : between.view},
                               tokens_of(in, at[n], at[n + 1], before), options);
    }
  }

  /// The gradient of the state that a call starts from is the incoming one of the call before it.
  void backward(const LinearAttentionGradients& gradients, const LinearAttentionInputs& in,
                const LinearAttentionIncoming& incoming, const LinearAttentionOptions& options) const {
    const std::vector<std::int64_t> at = bounds(in.q.shape[2]);
    std::vector<Owned> states;  // behind each call but the last
    for (std::size_t n = 0; n + 2 < at.size(); ++n) {
      const ConstTensorView before = n == 0 ? in.state : states.back().view;
      Owned after = handed_on(in);
      const Owned y(part(incoming.dy, 2, at[n], at[n + 1]));
      linear_attention_forward({y.view, after.view}, tokens_of(in, at[n], at[n + 1], before), options);
      states.push_back(std::move(after));
      states.back().view.data = states.back().bytes.data();
    }
    Owned passed;
    ConstTensorView behind = incoming.dstate;
    for (std::size_t n = at.size() - 1; n-- > 0;) {
      const ConstTensorView before = n == 0 ? in.state : states[n - 1].view;
      Owned own = handed_on(in);
      linear_attention_backward(tokens_of(gradients, at[n], at[n + 1], n == 0 ? gradients.dstate : own.view),
                                tokens_of(in, at[n], at[n + 1], before),
                                {part(incoming.dy, 2, at[n], at[n + 1]), behind}, options);
      std::swap(passed, own);
      passed.view.data = passed.bytes.data();
      behind = passed.view;
    }
  }

  std::vector<std::int64_t> cuts_;
};

TEST(LinearSequences, SplitSequence_AnyCuts_MatchesTheOracle) {
  for (const DType dtype : kDTypes) {
    for (const DecayInput decay : {DecayInput::none, DecayInput::headwise, DecayInput::per_feature}) {
      LinearCaseSpec spec = gated_delta_spec(150, 16, 20);
      spec.B = 2;
      spec.Hq = spec.Hk = spec.Hv = 2;
      spec.dtype = dtype;
      spec.decay = decay;
      spec.in_place = decay == DecayInput::headwise;
      expect_both(spec, SplitCalls({64, 128}).kernels());
      expect_both(spec, SplitCalls({1, 3, 70, 71, 149}).kernels());
    }
  }
}

/// Decoding: a call for each token, the state updated in place.
TEST(LinearSequences, Decoding_TokenByToken_MatchesTheOracle) {
  std::vector<std::int64_t> every(40);
  std::iota(every.begin(), every.end(), 1);
  for (const DType dtype : kDTypes) {
    for (const LinearRule rule : {LinearRule::linear, LinearRule::gated, LinearRule::delta, LinearRule::gated_delta}) {
      for (const std::int64_t width : {16, 40, 128}) {
        LinearCaseSpec spec = gated_delta_spec(width == 128 ? 5 : 40, width, width);
        spec.B = 2;
        spec.Hq = spec.Hv = 4;
        spec.Hk = 2;
        spec.dtype = dtype;
        spec.rule = rule;
        if (!spec.may_decay()) spec.decay = DecayInput::none;
        if (!spec.has_delta()) spec.beta = BetaInput::none;
        spec.in_place = true;
        expect_right(spec, verify::check_linear_forward_case, SplitCalls(every).kernels());
      }
    }
  }
}

TEST(LinearSequences, Decoding_ThatBeginsWithAPrompt_MatchesTheOracle) {
  std::vector<std::int64_t> cuts(30);
  std::iota(cuts.begin(), cuts.end(), 75);
  for (const DType dtype : kDTypes) {
    LinearCaseSpec spec = gated_delta_spec(105, 24, 24);
    spec.dtype = dtype;
    spec.state = DType::none;
    expect_right(spec, verify::check_linear_forward_case, SplitCalls(cuts).kernels());
  }
}

TEST(LinearSequences, SplitSequence_AtMultiplesOf64_IsBitwiseIdenticalToOneCall) {
  for (const DType dtype : kDTypes) {
    for (const DecayInput decay : {DecayInput::none, DecayInput::headwise, DecayInput::per_feature}) {
      LinearCaseSpec spec = gated_delta_spec(200, 24, 20);
      spec.Hq = spec.Hk = spec.Hv = 2;
      spec.dtype = dtype;
      spec.decay = decay;
      spec.state = spec.new_state = spec.dstate = dtype == DType::f64 ? DType::f64 : DType::f32;
      const auto error = verify::check_linear_on_every_target(
          spec, [](verify::LinearCase& problem, const std::string& /*target*/) -> std::optional<std::string> {
            const auto bytes_of = [&problem](const LinearKernels& kernels) {
              problem.poison_outputs();
              problem.poison_gradients();
              kernels.forward(problem.outputs(), problem.inputs(), problem.options());
              kernels.backward(problem.gradients(), problem.inputs(), problem.incoming(), problem.options());
              return std::pair(problem.output_bytes(), problem.gradient_bytes());
            };
            const auto whole = bytes_of({});
            for (const std::vector<std::int64_t>& cuts : {std::vector<std::int64_t>{64}, {64, 128, 192}, {128}}) {
              const auto split = bytes_of(SplitCalls(cuts).kernels());
              if (split.first != whole.first) return "outputs differ: " + describe(problem.spec());
              if (split.second != whole.second) return "gradients differ: " + describe(problem.spec());
            }
            return std::nullopt;
          });
      EXPECT_EQ(error.value_or(""), "");
    }
  }
}

}  // namespace
}  // namespace headgate
