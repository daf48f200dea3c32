// SPDX-License-Identifier: Apache-2.0
// Linear attention over sequences: packed ones beside separate calls, one that is split into several calls that hand
// the state on, decoding token by token, states after chosen tokens, and sequences without a token.

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <iterator>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "headgate/linear_attention_statistics.hpp"
#include "headgate/runtime.hpp"
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
  for (const auto& [dtype, precision] : kArithmetics) {
    for (const DecayInput decay : {DecayInput::headwise, DecayInput::per_feature}) {
      LinearCaseSpec spec = packed_spec({70, 1, 0, 128, 5, 1, 65});
      spec.dtype = dtype;
      spec.precision = precision;
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
    LinearAttentionOptions exact = options;  // gradients are those of exact, so they begin at its states
    exact.precision = Precision::exact;
    std::vector<Owned> states;  // behind each call but the last
    for (std::size_t n = 0; n + 2 < at.size(); ++n) {
      const ConstTensorView before = n == 0 ? in.state : states.back().view;
      Owned after = handed_on(in);
      const Owned y(part(incoming.dy, 2, at[n], at[n + 1]));
      linear_attention_forward({y.view, after.view}, tokens_of(in, at[n], at[n + 1], before), exact);
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
  for (const auto& [dtype, precision] : kArithmetics) {
    for (const DecayInput decay : {DecayInput::none, DecayInput::headwise, DecayInput::per_feature}) {
      LinearCaseSpec spec = gated_delta_spec(150, 16, 20);
      spec.B = 2;
      spec.Hq = spec.Hk = spec.Hv = 2;
      spec.dtype = dtype;
      spec.precision = precision;
      spec.decay = decay;
      spec.in_place = decay == DecayInput::headwise;
      expect_both(spec, SplitCalls({64, 128}).kernels());
      expect_both(spec, SplitCalls({1, 3, 70, 71, 149}).kernels());
    }
  }
}

/// A spec of the rule, without the inputs that it does not have.
LinearCaseSpec of_rule(LinearCaseSpec spec, LinearRule rule) {
  spec.rule = rule;
  if (!spec.may_decay()) spec.decay = DecayInput::none;
  if (!spec.has_delta()) spec.beta = BetaInput::none;
  return spec;
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
        spec = of_rule(spec, rule);
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
  for (const auto& [dtype, precision] : kArithmetics) {
    for (const DecayInput decay : {DecayInput::none, DecayInput::headwise, DecayInput::per_feature}) {
      LinearCaseSpec spec = gated_delta_spec(230, 24, 20);  // no part is too short for native16
      spec.Hq = spec.Hk = spec.Hv = 2;
      spec.dtype = dtype;
      spec.precision = precision;
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
              // With bf16 products, only the forward pass of split calls is bitwise identical.
              if (problem.spec().precision == Precision::native16 && !native16_products().empty()) {
                if (auto wrong = verify::check_linear_backward_case(problem, SplitCalls(cuts).kernels())) return wrong;
              } else if (split.second != whole.second) {
                return "gradients differ: " + describe(problem.spec());
              }
            }
            return std::nullopt;
          });
      EXPECT_EQ(error.value_or(""), "");
    }
  }
}

/// Tokens of sequence n of a problem: rows first … first + count of batch b.
struct Tokens {
  std::int64_t b, first, count;
};

Tokens tokens_of_sequence(const LinearAttentionInputs& in, std::int64_t n) {
  if (!in.cu_seqlens.present()) return {n, 0, in.q.shape[2]};
  const std::int64_t first = load_index(in.cu_seqlens, n);
  return {0, first, load_index(in.cu_seqlens, n + 1) - first};
}

/// Computes a problem with snapshots by a call for each part of a sequence, from the snapshot before the part.
void forward_by_parts(const LinearAttentionOutputs& out, const LinearAttentionInputs& in,
                      const LinearAttentionOptions& options) {
  const ConstTensorView& lengths = in.snapshot_lengths;
  const std::int64_t M = lengths.shape[3], N = M == 0 ? 0 : out.snapshots.shape[0] / M;
  for (std::int64_t n = 0; n < N; ++n) {
    const Tokens s = tokens_of_sequence(in, n);
    const std::int64_t row = lengths.shape[2] == 1 ? 0 : n;
    const auto batch = [&s](const auto& view) { return part(view, 0, s.b, s.b + 1); };
    const LinearAttentionInputs own{batch(in.q), batch(in.k), batch(in.v), batch(in.decay), batch(in.beta)};
    ConstTensorView before = part(in.state, 0, n, n + 1);
    std::int64_t from = 0;
    for (std::int64_t m = 0; m <= M; ++m) {
      const std::int64_t to = m < M ? load_index(narrow(lengths, 2, row, row + 1), m) : s.count;
      const TensorView behind = m < M ? part(out.snapshots, 0, n * M + m, n * M + m + 1) : part(out.state, 0, n, n + 1);
      linear_attention_forward({part(batch(out.y), 2, s.first + from, s.first + to), behind},
                               tokens_of(own, s.first + from, s.first + to, before), options);
      before = behind;
      from = to;
    }
  }
}

/// Expects that a call with snapshots writes the bytes of a call for each part.
void expect_snapshots_as_parts(const LinearCaseSpec& spec) {
  const auto error = verify::check_linear_on_every_target(
      spec, [](verify::LinearCase& problem, const std::string& /*target*/) -> std::optional<std::string> {
        problem.poison_outputs();  // also gives a state that the previous target updated in place its first values
        linear_attention_forward(problem.outputs(), problem.forward_inputs(), problem.options());
        const std::vector<std::uint8_t> whole = problem.output_bytes();
        problem.poison_outputs();
        forward_by_parts(problem.outputs(), problem.forward_inputs(), problem.options());
        if (problem.output_bytes() == whole) return std::nullopt;
        return "a call with snapshots differs from a call for each part: " + describe(problem.spec());
      });
  EXPECT_EQ(error.value_or(""), "");
}

TEST(LinearSnapshots, PackedBatch_EachRuleAndDecay_IsBitwiseIdenticalToACallForEachPart) {
  std::uint64_t seed = 1;
  for (const auto& [dtype, precision] : kArithmetics) {
    for (const LinearRule rule : {LinearRule::linear, LinearRule::gated, LinearRule::delta, LinearRule::gated_delta}) {
      for (const DecayInput decay : {DecayInput::headwise, DecayInput::per_feature}) {
        for (const DType snapshots : {DType::f32, DType::f64}) {
          LinearCaseSpec spec = packed_spec({70, 1, 0, 129, 5});
          spec.dtype = dtype;
          spec.precision = precision;
          spec.decay = decay;
          spec = of_rule(spec, rule);
          spec.Hq = spec.Hv = 4;
          spec.Hk = 2;
          spec.threads = 2;
          spec.snapshots = {.dtype = snapshots, .lengths = DType::i32, .count = 4};
          spec.seed = seed++;
          expect_snapshots_as_parts(spec);
        }
      }
    }
  }
}

TEST(LinearSnapshots, SharedHeadsLayoutsAndStates_AreBitwiseIdenticalToACallForEachPart) {
  std::uint64_t seed = 1;
  for (const auto& [dtype, precision] : kArithmetics) {
    for (const auto& [Hq, Hk, Hv] : {std::array{4, 1, 2}, {1, 1, 4}, {2, 2, 6}}) {
      for (const DType state : {DType::none, DType::f32, DType::f64}) {
        for (int layout = 0; layout < 6; ++layout) {
          LinearCaseSpec spec = gated_delta_spec(67, 16, 32);
          spec.B = 2;
          spec.Hq = Hq;
          spec.Hk = Hk;
          spec.Hv = Hv;
          spec.dtype = dtype;
          spec.precision = precision;
          spec.layout = static_cast<verify::Layout>(layout);
          spec.state = state;
          spec.in_place = state == DType::f64;
          spec.new_state = layout == 0 ? DType::none : DType::f32;
          spec.threads = 3;
          spec.snapshots = {.dtype = layout % 2 == 0 ? DType::f32 : DType::f64, .count = 5, .shared = layout == 3};
          spec.seed = seed++;
          expect_snapshots_as_parts(spec);
        }
      }
    }
  }
}

/// Without tokens every snapshot is S_0, or 0 without it.
TEST(LinearSnapshots, ZeroTokens_AnyState_AreThatState) {
  for (const DType state : {DType::none, DType::f32}) {
    LinearCaseSpec spec = gated_delta_spec(0, 9, 6);
    spec.B = 2;
    spec.state = state;
    spec.snapshots = {.dtype = DType::f32, .count = 2};
    expect_snapshots_as_parts(spec);
    verify::LinearCase problem(spec);
    linear_attention_forward(problem.outputs(), problem.forward_inputs(), problem.options());
    const Owned zeros = [&spec] {
      Owned all(DType::f32, {2, 1, spec.D, spec.Dv});
      std::fill(all.bytes.begin(), all.bytes.end(), 0);
      return all;
    }();
    for (std::int64_t m = 0; m < 4; ++m) {
      expect_equal(part(state == DType::none ? zeros.view : problem.inputs().state, 0, m / 2, m / 2 + 1),
                   part(problem.outputs().snapshots, 0, m, m + 1), "snapshot");
    }
  }
}

TEST(LinearSnapshots, AfterEveryToken_AreBitwiseTheStatesOfADecoder) {
  constexpr std::int64_t kTokens = 20;
  std::vector<std::int64_t> every(kTokens);
  std::iota(every.begin(), every.end(), 1);
  for (const DType dtype : kDTypes) {
    LinearCaseSpec spec = gated_delta_spec(kTokens, 40, 48);
    spec.Hq = spec.Hv = 4;
    spec.Hk = 2;
    spec.dtype = dtype;
    spec.state = spec.new_state = dtype == DType::f64 ? DType::f64 : DType::f32;
    verify::LinearCase problem(spec);
    SplitCalls(every).kernels().forward(problem.outputs(), problem.inputs(), problem.options());
    const std::vector<std::uint8_t> decoded = problem.output_bytes();
    problem.poison_outputs();
    const Owned snapshots(spec.state, {kTokens, spec.Hv, spec.D, spec.Dv});
    LinearAttentionInputs in = problem.inputs();
    in.snapshot_lengths = make_view(static_cast<const std::int64_t*>(every.data()), {1, 1, 1, kTokens});
    LinearAttentionOutputs out = problem.outputs();
    out.snapshots = snapshots.view;
    linear_attention_forward(out, in, problem.options());
    EXPECT_EQ(problem.output_bytes(), decoded) << describe(spec);
    expect_equal(out.state, part(out.snapshots, 0, kTokens - 1, kTokens), "last snapshot");
  }
}

TEST(LinearSnapshots, BackwardPassAndStatistics_GivenLengths_RefuseThem) {
  LinearCaseSpec spec = gated_delta_spec(5, 4, 4);
  spec.snapshots.dtype = DType::f32;
  const verify::LinearCase problem(spec);
  const LinearAttentionInputs in = problem.forward_inputs();
  const std::vector<std::int64_t> query{0};
  const auto expect_refused = [](const std::string& function, const std::function<void()>& call) {
    try {
      call();
      ADD_FAILURE() << function << " takes snapshot_lengths";
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), function +
                                  ": snapshot_lengths is given, but only the forward pass writes snapshots: leave it "
                                  "out");
    }
  };
  expect_refused("linear_attention_backward", [&] { linear_attention_backward({}, in, problem.incoming(), {}); });
  expect_refused("linear_attention_statistics", [&] { linear_attention_statistics({}, in, {}); });
  expect_refused("linear_attention_weights",
                 [&] { linear_attention_weights({}, in, make_vector_view(query.data(), 1), {}); });
}

}  // namespace
}  // namespace headgate
