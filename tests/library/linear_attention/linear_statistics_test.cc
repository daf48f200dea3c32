// SPDX-License-Identifier: Apache-2.0
// Compares the weights and statistics of linear attention with the oracle, on every vector target, by the tolerance
// rule of docs/reference/numerics.md; and their bits over numbers of threads, other queries and other outputs.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "library/core/linear_statistics_rows.hpp"
#include "library/linear_attention/linear_property.hpp"
#include "support/cancellable.hpp"
#include "support/owned_tensor.hpp"
#include "verify/fill.hpp"
#include "verify/linear_statistics_check.hpp"

namespace headgate {
namespace {

using verify::BetaInput;
using verify::DecayInput;
using verify::LinearCase;
using verify::LinearCaseSpec;
using verify::LinearFigures;

std::optional<std::string> figures_mismatch(const LinearCaseSpec& spec) {
  std::optional<verify::ExpectedLinearFigures> expected;
  return verify::check_linear_on_every_target(spec, [&expected](LinearCase& problem, const std::string& /*target*/) {
    if (!expected) expected.emplace(problem);
    return verify::check_linear_statistics_case(problem, *expected);
  });
}

void expect_figures(const LinearCaseSpec& spec) {
  if (!meets_next_case()) return;
  EXPECT_EQ(figures_mismatch(spec).value_or(""), "");
}

class LinearStatistics : public ::testing::TestWithParam<DType> {};

TEST_P(LinearStatistics, Figures_RandomProblems_MatchTheOracle) {
  EXPECT_TRUE(holds_on_drawn_problems("weights and statistics of linear attention are the oracle's", [] {
    LinearCaseSpec spec = verify::draw_linear_spec(picked);
    spec.dtype = GetParam();
    if (spec.dtype != DType::bf16) spec.precision = Precision::exact;
    return figures_mismatch(spec);
  }));
}

INSTANTIATE_TEST_SUITE_P(EveryDType, LinearStatistics,
                         ::testing::Values(DType::f32, DType::f64, DType::bf16, DType::f16), dtype_test_name);

TEST(LinearStatistics, Figures_StandardCases_MatchTheOracle) {
  for (const LinearCaseSpec& spec : verify::standard_linear_cases()) expect_figures(spec);
}

/// More tokens than a tile of queries, and a last tile and chunk that are not full.
TEST(LinearStatistics, Figures_LongSequence_MatchTheOracle) {
  for (const LinearRule rule : {LinearRule::gated_delta, LinearRule::delta, LinearRule::gated, LinearRule::linear}) {
    LinearCaseSpec spec = gated_delta_spec(555, 12, 8);
    spec.rule = rule;
    if (!spec.may_decay()) spec.decay = DecayInput::none;
    if (!spec.has_delta()) spec.beta = BetaInput::none;
    spec.threads = 2;
    expect_figures(spec);
    if (spec.may_decay()) spec.decay = DecayInput::per_feature;
    spec.Hq = 2;
    expect_figures(spec);
  }
}

/// Values as f64 numbers, in the order of the shape.
std::vector<double> numbers(const ConstTensorView& view) {
  std::vector<double> all;
  verify::for_each_index(view.shape, [&](std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
    all.push_back(load(view, a, b, c, d));
  });
  return all;
}

/// All queries of a problem, and the tensors of their weights.
struct AllWeights {
  explicit AllWeights(const LinearCaseSpec& spec)
      : queries(static_cast<std::size_t>(spec.T)),
        weights(DType::f64, {spec.B, spec.Ho(), spec.T, spec.T}),
        state_query(DType::f64, {spec.B, spec.Ho(), spec.T, spec.D}) {
    std::iota(queries.begin(), queries.end(), 0);
  }
  ConstTensorView chosen() const { return make_vector_view(queries.data(), static_cast<std::int64_t>(queries.size())); }

  std::vector<std::int64_t> queries;
  Owned weights, state_query;
};

/// Σⱼ a_tj v_j + S_0ᵀ r_t of feature x.
double output_of_weights(const LinearCase& problem, const AllWeights& all, std::int64_t b, std::int64_t ho,
                         std::int64_t t, std::int64_t x) {
  const LinearCaseSpec& spec = problem.spec();
  const LinearAttentionInputs& in = problem.inputs();
  const std::int64_t h = ho / (spec.Ho() / spec.Hv);
  double y = 0.0;
  for (std::int64_t j = 0; j < spec.T; ++j) y += load(all.weights.view, b, ho, t, j) * load(in.v, b, h, j, x);
  for (std::int64_t d = 0; d < spec.D && in.state.present(); ++d)
    y += load(all.state_query.view, b, ho, t, d) * load(in.state, b, h, d, x);
  return y;
}

TEST(LinearWeights, AllQueries_TimesValues_AreTheOutput) {
  for (const auto [Hq, Hk, Hv] : {std::array<std::int64_t, 3>{1, 1, 1}, {2, 2, 4}, {4, 1, 2}}) {
    for (const DecayInput decay : {DecayInput::headwise, DecayInput::per_feature}) {
      LinearCaseSpec spec = gated_delta_spec(90, 10, 7);
      spec.B = 2;
      spec.Hq = Hq;
      spec.Hk = Hk;
      spec.Hv = Hv;
      spec.decay = decay;
      spec.dtype = DType::f64;
      LinearCase problem(spec);
      const AllWeights all(spec);
      linear_attention_forward(problem.outputs(), problem.inputs(), problem.options());
      linear_attention_weights({all.weights.view, all.state_query.view}, problem.inputs(), all.chosen(),
                               problem.options());
      verify::for_each_index(
          {spec.B, spec.Ho(), spec.T, spec.Dv}, [&](std::int64_t b, std::int64_t ho, std::int64_t t, std::int64_t x) {
            ASSERT_NEAR(output_of_weights(problem, all, b, ho, t, x), load(problem.outputs().y, b, ho, t, x), 1e-12)
                << describe(spec) << ": " << b << " " << ho << " " << t << " " << x;
          });
    }
  }
}

/// The statistics by the weights of all queries, one thread, another path through the kernels.
TEST(LinearStatistics, QueryFigures_OfAllWeights_AreTheirSums) {
  LinearCaseSpec spec = gated_delta_spec(300, 16, 16);
  spec.dtype = DType::f64;
  const LinearCase problem(spec);
  const AllWeights all(spec);
  linear_attention_weights({all.weights.view, {}}, problem.inputs(), all.chosen(), problem.options());
  const Owned absolute(DType::f64, {1, 1, spec.T, 1}), reach(absolute.view), share(absolute.view);
  LinearAttentionStatistics out;
  out.absolute_sum = absolute.view;
  out.reach = reach.view;
  out.first_share = share.view;
  linear_attention_statistics(out, problem.inputs(), problem.options());
  for (std::int64_t t = 0; t < spec.T; ++t) {
    double sum = 0.0, moment = 0.0;
    for (std::int64_t j = 0; j <= t; ++j) {
      const double size = std::abs(load(all.weights.view, 0, 0, t, j));
      sum += size;
      moment += size * static_cast<double>(t - j);
    }
    EXPECT_NEAR(load(absolute.view, 0, 0, t, 0), sum, 1e-12);
    if (sum == 0.0) continue;  // a query of zeros
    EXPECT_NEAR(load(reach.view, 0, 0, t, 0), moment / sum, 1e-11);
    EXPECT_NEAR(load(share.view, 0, 0, t, 0), std::abs(load(all.weights.view, 0, 0, t, 0)) / sum, 1e-12);
  }
  EXPECT_EQ(load(reach.view, 0, 0, 0, 0), 0.0);
  EXPECT_EQ(load(share.view, 0, 0, 0, 0), 1.0);
}

std::vector<std::uint8_t> bytes_with(LinearCase& problem, LinearFigures& figures, int threads) {
  problem.options().context.threads = threads;
  figures.poison();
  linear_attention_weights(figures.weights(), problem.inputs(), figures.queries(), problem.options());
  linear_attention_statistics(figures.statistics(), problem.inputs(), problem.options());
  return figures.bytes();
}

TEST(LinearStatistics, Figures_AnyNumberOfThreads_AreBitwiseIdentical) {
  const TargetGuard guard;
  for (const DecayInput decay : {DecayInput::headwise, DecayInput::per_feature}) {
    LinearCaseSpec spec = gated_delta_spec(600, 24, 20);
    spec.Hq = 4;
    spec.Hv = 2;
    spec.decay = decay;
    spec.seed = 5;
    LinearCase problem(spec);
    LinearFigures figures(spec);
    for (const std::string& target : supported_targets()) {
      set_target(target);
      const std::vector<std::uint8_t> one = bytes_with(problem, figures, 1);
      for (const int threads : {2, 3, 5}) EXPECT_TRUE(bytes_with(problem, figures, threads) == one) << target;
    }
  }
}

/// Chosen queries that enter before, with and behind others, also in one chunk and more than a tile of them.
TEST(LinearWeights, Query_BesideAnyOthers_HasTheSameBits) {
  const TargetGuard guard;
  LinearCaseSpec spec = gated_delta_spec(330, 20, 4);
  LinearCase problem(spec);
  const AllWeights all(spec);
  const Owned weights(DType::f64, {1, 1, 3, spec.T}), state_query(DType::f64, {1, 1, 3, spec.D});
  for (const std::string& target : supported_targets()) {
    set_target(target);
    linear_attention_weights({all.weights.view, all.state_query.view}, problem.inputs(), all.chosen(),
                             problem.options());
    for (const std::vector<std::int32_t>& few :
         {std::vector<std::int32_t>{0, 0, 329}, {70, 64, 63}, {200, 201, 300}, {128, 5, 128}}) {
      linear_attention_weights({weights.view, state_query.view}, problem.inputs(), make_vector_view(few.data(), 3),
                               problem.options());
      for (std::int64_t r = 0; r < 3; ++r) {
        const std::int64_t t = few[static_cast<std::size_t>(r)];
        expect_equal(part(TensorView(weights.view), 2, r, r + 1), part(TensorView(all.weights.view), 2, t, t + 1),
                     target);
        expect_equal(part(TensorView(state_query.view), 2, r, r + 1),
                     part(TensorView(all.state_query.view), 2, t, t + 1), target);
      }
    }
  }
}

TEST(LinearStatistics, Output_AloneOrAmongOthers_HasTheSameBits) {
  LinearCaseSpec spec = gated_delta_spec(150, 12, 16);
  spec.Hq = 2;
  const LinearCase problem(spec);
  LinearFigures figures(spec);
  linear_attention_statistics(figures.statistics(), problem.inputs(), problem.options());
  const LinearAttentionStatistics among = figures.statistics();
  std::array<std::vector<double>, kLinearStatistics.size()> expected;
  for (std::size_t n = 0; n < expected.size(); ++n) expected[n] = numbers(among.*kLinearStatistics[n].member);
  for (std::size_t n = 0; n < kLinearStatistics.size(); ++n) {
    const LinearStatisticsOutput& row = kLinearStatistics[n];
    LinearAttentionStatistics alone;
    alone.*row.member = among.*row.member;
    figures.poison();
    linear_attention_statistics(alone, problem.inputs(), problem.options());
    EXPECT_EQ(numbers(among.*row.member), expected[n]) << row.name;
    for (const LinearStatisticsOutput& other : kLinearStatistics) {
      const TensorView& view = among.*other.member;
      EXPECT_TRUE(other.name == row.name || std::isnan(load(view, 0, 0, 0, 0))) << other.name << " beside " << row.name;
    }
  }
  EXPECT_FALSE(figures.spilled());
}

TEST(LinearStatistics, PackedBatch_AnySequences_IsBitwiseIdenticalToSeparateCalls) {
  LinearCaseSpec spec = gated_delta_spec(420, 16, 12);
  spec.Hq = spec.Hv = 4;
  spec.Hk = 2;
  spec.cu_seqlens = DType::i64;
  spec.packed = 6;
  spec.packed_tokens = {70, 1, 0, 280, 5, 64};
  spec.threads = 2;
  const LinearCase problem(spec);
  const LinearFigures figures(spec);
  linear_attention_statistics(figures.statistics(), problem.inputs(), problem.options());
  std::int64_t first = 0;
  for (std::int64_t n = 0; n < spec.packed; ++n) {
    const std::int64_t end = first + spec.packed_tokens[static_cast<std::size_t>(n)];
    const LinearAttentionInputs& in = problem.inputs();
    const auto rows = [&](const ConstTensorView& view) { return part(view, 2, first, end); };
    const LinearAttentionInputs own{
        rows(in.q), rows(in.k), rows(in.v), rows(in.decay), rows(in.beta), part(in.state, 0, n, n + 1), {}};
    for (const LinearStatisticsOutput& row : kLinearStatistics) {
      const TensorView& packed = figures.statistics().*row.member;
      const TensorView among = counts_sequences(row.dims) ? part(packed, 0, n, n + 1) : part(packed, 2, first, end);
      const Owned alone(ConstTensorView{among});
      LinearAttentionStatistics out;
      out.*row.member = alone.view;
      linear_attention_statistics(out, own, problem.options());
      expect_equal(alone.view, among, std::string(row.name) + " of sequence " + std::to_string(n));
    }
    first = end;
  }
}

/// NaN and infinities of later tokens do not reach a query's weights, not even within its chunk.
TEST(LinearWeights, LaterTokens_OfNaN_DoNotReachAQuery) {
  const TargetGuard guard;
  for (const LinearRule rule : {LinearRule::gated_delta, LinearRule::gated}) {
    LinearCaseSpec spec = gated_delta_spec(80, 8, 4);
    spec.rule = rule;
    if (!spec.has_delta()) spec.beta = BetaInput::none;
    LinearCase problem(spec);
    const AllWeights clean(spec), spoilt(spec);
    const Owned sum(DType::f64, {1, 1, spec.T, 1}), spoilt_sum(sum.view);
    for (const std::string& target : supported_targets()) {
      set_target(target);
      LinearCase copy(spec);
      const auto spoil = [](const ConstTensorView& view, double with) {
        const TensorView writable(const_cast<void*>(view.data), view.dtype, view.shape, view.strides);
        store(writable, 0, 0, 70, 0, with);
      };
      spoil(copy.inputs().k, std::numeric_limits<double>::infinity());
      spoil(copy.inputs().decay, std::nan(""));
      spoil(copy.inputs().q, std::nan(""));
      const auto look = [&](const LinearCase& at, const AllWeights& to, const Owned& sums) {
        linear_attention_weights({to.weights.view, to.state_query.view}, at.inputs(), to.chosen(), at.options());
        LinearAttentionStatistics out;
        out.absolute_sum = sums.view;
        linear_attention_statistics(out, at.inputs(), at.options());
      };
      look(problem, clean, sum);
      look(copy, spoilt, spoilt_sum);
      const auto before = [](const Owned& owned) { return part(TensorView(owned.view), 2, 0, 70); };
      expect_equal(before(spoilt.weights), before(clean.weights), target);
      expect_equal(before(spoilt.state_query), before(clean.state_query), target);
      expect_equal(before(spoilt_sum), before(sum), target);
      EXPECT_TRUE(std::isnan(load(spoilt_sum.view, 0, 0, 70, 0)));
      EXPECT_TRUE(std::isnan(load(spoilt.weights.view, 0, 0, 75, 10)));
      EXPECT_EQ(load(spoilt.weights.view, 0, 0, 69, 70), 0.0);
    }
  }
}

/// Rank, norm, half-life and mean decay of S_0 behind tokens that only let it decay.
void look_at_states(const Owned& state, const std::vector<Owned>& figures, double g = 0.0, std::int64_t tokens = 0) {
  const std::int64_t D = state.view.shape[2], Dv = state.view.shape[3];
  const std::vector<double> zeros(static_cast<std::size_t>(tokens * std::max(D, Dv)), 0.0);
  const std::vector<double> decays(static_cast<std::size_t>(tokens), g);
  LinearAttentionInputs in;
  in.q = in.k = make_view(zeros.data(), {1, 1, tokens, D});
  in.v = make_view(zeros.data(), {1, 1, tokens, Dv});
  in.decay = make_view(decays.data(), {1, 1, tokens, 1});
  in.state = state.view;
  LinearAttentionStatistics out;
  out.effective_rank = figures[0].view;
  out.state_norm = figures[1].view;
  out.half_life = figures[2].view;
  out.mean_decay = figures[3].view;
  linear_attention_statistics(out, in);
}

TEST(LinearStatistics, StateFigures_OfKnownStates_AreKnown) {
  std::vector<Owned> own(4);
  for (Owned& one : own) one = Owned(DType::f64, {1, 1, 1, 1});
  const auto value = [&](std::size_t n) { return load(own[n].view, 0, 0, 0, 0); };
  Owned state(DType::f64, {1, 1, 3, 5});
  const auto fill = [&](const auto& element) {
    for (std::int64_t i = 0; i < 3; ++i) {
      for (std::int64_t j = 0; j < 5; ++j) store(state.view, 0, 0, i, j, element(i, j));
    }
  };
  fill([](std::int64_t i, std::int64_t j) { return i == j ? 2e200 : 0.0; });  // whose fourth power overflows
  look_at_states(state, own);
  EXPECT_NEAR(value(0), 3.0, 1e-14);
  EXPECT_NEAR(value(1) / 2e200, std::sqrt(3.0), 1e-14);
  EXPECT_EQ(value(2), std::numeric_limits<double>::infinity());
  EXPECT_EQ(value(3), 0.0);
  fill([](std::int64_t i, std::int64_t j) { return static_cast<double>((i + 1) * (j - 2)); });
  look_at_states(state, own, -std::log(2.0), 3);
  EXPECT_NEAR(value(0), 1.0, 1e-14);
  EXPECT_NEAR(value(1), std::sqrt(140.0) / 8.0, 1e-14);
  EXPECT_NEAR(value(2), 1.0, 1e-14);
  EXPECT_NEAR(value(3), 0.5, 1e-15);
  fill([](std::int64_t, std::int64_t) { return 0.0; });
  look_at_states(state, own, 0.25, 2);
  EXPECT_EQ(value(0), 0.0);
  EXPECT_EQ(value(1), 0.0);
  EXPECT_EQ(value(2), std::numeric_limits<double>::infinity());
}

TEST(LinearStatistics, Cancelled_AtAnyPoint_EndsAndAffectsNoLaterCall) {
  LinearCaseSpec spec = gated_delta_spec(300, 24, 24);
  spec.B = 3;
  spec.Hq = spec.Hk = spec.Hv = 4;
  spec.seed = 5;
  LinearCase problem(spec);
  LinearFigures figures(spec);
  ASSERT_FALSE(figures.chosen().empty());
  const auto options = [&](const ExecutionContext& context) {
    LinearAttentionOptions with = problem.options();
    with.context = context;
    return with;
  };
  expect_cancellable({"weights",
                      [&](const ExecutionContext& context) {
                        linear_attention_weights(figures.weights(), problem.inputs(), figures.queries(),
                                                 options(context));
                      },
                      [&] { return figures.bytes(); }},
                     2);
  expect_cancellable({"statistics",
                      [&](const ExecutionContext& context) {
                        linear_attention_statistics(figures.statistics(), problem.inputs(), options(context));
                      },
                      [&] { return figures.bytes(); }},
                     2);
}

// --- arguments
// --------------------------------------------------------------------------------------------------------

/// A call that fits: B 1, T 3, Hq 2, Hk 2, Hv 4, D 2, Dv 3.
struct FigureCall {
  std::vector<float> memory = std::vector<float>(64, 0.5F), written = std::vector<float>(400, -7.0F);
  std::vector<std::int32_t> chosen{2, 0};
  LinearAttentionInputs in;
  LinearAttentionOptions options;
  LinearAttentionWeights weights;
  LinearAttentionStatistics statistics;
  ConstTensorView queries = make_vector_view(static_cast<const std::int32_t*>(chosen.data()), 2);

  FigureCall() {
    const auto input = [this](const Shape& shape) {
      return make_view(static_cast<const float*>(memory.data()), shape);
    };
    in.q = in.k = input({1, 2, 3, 2});
    in.v = input({1, 4, 3, 3});
    in.decay = in.beta = input({1, 4, 3, 1});
    weights.weights = output(0, {1, 4, 2, 3});
    weights.state_query = output(30, {1, 4, 2, 2});
    statistics.first = output(50, {1, 4, 3, 1});
    statistics.reach = output(80, {1, 4, 3, 1});
    statistics.mean_reach = output(100, {1, 4, 1, 1});
    statistics.state_norm = output(110, {1, 4, 1, 1});
  }
  TensorView output(std::size_t at, const Shape& shape) { return make_view(written.data() + at, shape); }

  std::string message(bool of_weights) const {
    try {
      of_weights ? linear_attention_weights(weights, in, queries, options)
                 : linear_attention_statistics(statistics, in, options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

void expect_wrong(bool of_weights, const std::function<void(FigureCall&)>& change, const std::string& expected) {
  FigureCall call;
  change(call);
  EXPECT_EQ(call.message(of_weights), expected);
  EXPECT_EQ(call.written, std::vector<float>(400, -7.0F)) << expected;
}

TEST(LinearStatisticsArguments, Call_Fits_IsComputed) {
  const FigureCall call;
  EXPECT_EQ(call.message(true), "");
  EXPECT_EQ(call.message(false), "");
  EXPECT_EQ(std::count(call.written.begin(), call.written.end(), -7.0F), 400 - 24 - 16 - 12 - 12 - 4 - 4);
}

TEST(LinearStatisticsArguments, Weights_Wrong_NamesTheArgumentAndWritesNothing) {
  const std::string call = "linear_attention_weights: ";
  expect_wrong(
      true, [](FigureCall& c) { c.queries = {}; }, call + "queries is required but absent");
  expect_wrong(
      true, [](FigureCall& c) { c.chosen[1] = 3; },
      call + "queries[1] is 3 but must be at least 0 and less than T = 3");
  expect_wrong(
      true, [](FigureCall& c) { c.chosen[0] = -1; },
      call + "queries[0] is -1 but must be at least 0 and less than T = 3");
  expect_wrong(
      true, [](FigureCall& c) { c.queries.dtype = DType::f32; }, call + "queries has dtype f32 but must be i32 or i64");
  expect_wrong(
      true,
      [](FigureCall& c) {
        c.weights.weights = c.output(0, {1, 4, 3, 3});
      },
      call + "weights has shape (1,4,3,3) but (B,Ho,R,T) is (1,4,2,3)");
  expect_wrong(
      true, [](FigureCall& c) { c.weights.state_query.dtype = DType::bf16; },
      call + "state_query has dtype bf16 but must be f32 or f64");
  expect_wrong(
      true,
      [](FigureCall& c) {
        c.weights.state_query = c.output(20, {1, 4, 2, 2});
      },
      call +
          "state_query overlaps weights in memory: state_query has shape (1,4,2,2) and strides (16,4,2,1), "
          "weights has shape (1,4,2,3) and strides (24,6,3,1)");
  expect_wrong(
      true, [](FigureCall& c) { c.in.v = {}; }, call + "v is required but absent");
  expect_wrong(
      true, [](FigureCall& c) { c.options.rule = LinearRule::gated; },
      call + "beta is given but the rule gated has none");
}

TEST(LinearStatisticsArguments, Statistics_Wrong_NamesTheArgumentAndWritesNothing) {
  const std::string call = "linear_attention_statistics: ";
  expect_wrong(
      false,
      [](FigureCall& c) {
        c.statistics.reach = c.output(80, {1, 2, 3, 1});
      },
      call + "reach has shape (1,2,3,1) but (B,Ho,T,1) is (1,4,3,1)");
  expect_wrong(
      false,
      [](FigureCall& c) {
        c.statistics.mean_reach = c.output(100, {2, 4, 1, 1});
      },
      call + "mean_reach has shape (2,4,1,1) but (N,Ho,1,1) is (1,4,1,1)");
  expect_wrong(
      false,
      [](FigureCall& c) {
        c.statistics.state_norm = c.output(110, {1, 2, 1, 1});
      },
      call + "state_norm has shape (1,2,1,1) but (N,Hv,1,1) is (1,4,1,1)");
  expect_wrong(
      false, [](FigureCall& c) { c.statistics.first.dtype = DType::i32; },
      call + "first has dtype i32 but must be f32 or f64");
  expect_wrong(
      false, [](FigureCall& c) { c.options.scale = std::nan(""); }, call + "scale is nan but must be finite in f32");
  expect_wrong(
      false, [](FigureCall& c) { c.options.context.threads = -1; }, call + "threads is -1 but must be at least 0");
}

}  // namespace
}  // namespace headgate
