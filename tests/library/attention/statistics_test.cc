// SPDX-License-Identifier: Apache-2.0
// Compares attention_statistics with the oracle, on every vector target, by the tolerance rule of
// docs/reference/numerics.md.

#include "headgate/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "library/attention/property.hpp"

namespace headgate {
namespace {

using verify::CaseSpec;
using verify::check_statistics_case;

class Statistics : public ::testing::TestWithParam<DType> {};

TEST_P(Statistics, Statistics_RandomProblems_MatchTheOracle) {
  EXPECT_TRUE(holds_on_random_problems("statistics are the oracle's", GetParam(), check_statistics_case));
}

INSTANTIATE_TEST_SUITE_P(EveryDType, Statistics, ::testing::Values(DType::f32, DType::f64, DType::bf16, DType::f16),
                         dtype_test_name);

TEST(Statistics, Statistics_StandardCases_MatchTheOracle) {
  for (const CaseSpec& spec : verify::standard_cases()) expect_right(spec, check_statistics_case);
}

/// Equal keys have equal weights. The lower index comes first, across panels, blocks and threads.
TEST(Statistics, TopKeys_EqualScores_AreOrderedByIndex) {
  const TargetGuard guard;
  constexpr std::int64_t kT = 5, kS = 900, kD = 3, kK = 20;
  const std::vector<float> q(kT * kD, 1.0F);
  std::vector<float> k(kS * kD, 0.5F);
  for (std::int64_t d = 0; d < kD; ++d) k[static_cast<std::size_t>(700 * kD + d)] = 1.0F;
  const std::vector<double> lse(
      kT, std::log(899.0 * std::exp(0.0) + std::exp(1.5 / std::sqrt(3.0))) + 1.5 / std::sqrt(3.0));
  std::vector<std::int32_t> index(kT * kK);
  AttentionInputs in;
  in.q = make_view(q.data(), {1, 1, kT, kD});
  in.k = make_view(k.data(), {1, 1, kS, kD});
  AttentionStatistics out;
  out.topk_index = make_view(index.data(), {1, 1, kT, kK});
  for (const std::string& target : supported_targets()) {
    set_target(target);
    attention_statistics(out, in, make_view(lse.data(), {1, 1, kT, 1}));
    for (std::int64_t i = 0; i < kT; ++i) {
      for (std::int64_t n = 0; n < kK; ++n) {
        EXPECT_EQ(index[static_cast<std::size_t>(i * kK + n)], n == 0 ? 700 : n - 1) << target;
      }
    }
  }
}

/// With an infinite lse a row has no weights; with NaN its statistics are NaN.
TEST(Statistics, Statistics_RowsWithoutWeightsOrOfNaN_AreDefined) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const std::vector<float> q(4, 1.0F), k(6, 1.0F);
  const std::vector<double> lse{-kInf, kInf, std::nan(""), 0.0};
  std::vector<double> max(4), entropy(4), first(4), weight(8);
  std::vector<std::int64_t> index(8);
  AttentionInputs in;
  in.q = make_view(q.data(), {1, 1, 4, 1});
  in.k = make_view(k.data(), {1, 1, 6, 1});
  AttentionStatistics out;
  out.row_max = make_view(max.data(), {1, 1, 4, 1});
  out.entropy = make_view(entropy.data(), {1, 1, 4, 1});
  out.first = make_view(first.data(), {1, 1, 4, 1});
  out.topk_index = make_view(index.data(), {1, 1, 4, 2});
  out.topk_weight = make_view(weight.data(), {1, 1, 4, 2});
  attention_statistics(out, in, make_view(lse.data(), {1, 1, 4, 1}));
  for (const std::size_t i : {0U, 1U}) {
    EXPECT_EQ(max[i], 0.0);
    EXPECT_EQ(entropy[i], 0.0);
    EXPECT_EQ(first[i], 0.0);
    EXPECT_EQ(weight[2 * i], 0.0);
    EXPECT_EQ(index[2 * i], -1);
  }
  EXPECT_TRUE(std::isnan(max[2]) && std::isnan(entropy[2]) && std::isnan(first[2]) && std::isnan(weight[4]));
  EXPECT_EQ(index[4], -1);
  EXPECT_GT(first[3], 0.0);
}

/// Roundings of scores in the millions leave weights in [0, 1], as the forward pass has them: y is the weights where v
/// is the identity.
TEST(Statistics, Statistics_HugeScores_AreThoseOfTheForwardPass) {
  constexpr std::int64_t kN = 48, kD = 16;
  constexpr auto kCount = static_cast<std::size_t>(kN);
  for (const std::string& target : supported_targets()) {
    for (const float factor : {1e4F, 1e6F, 1e9F, 1e12F}) {
      // Near 10⁴ some rows have two keys whose scores are close, and weights of three digits.
      const double tolerance = factor < 1e5F ? 5e-3 : 1e-5;
      std::vector<float> q(kN * kD), k(kN * kD), v(kN * kN), y(kN * kN), rows(kN * kN);
      for (std::size_t n = 0; n < q.size(); ++n) {
        q[n] = factor * static_cast<float>(std::sin(1.0 + static_cast<double>(n)));
        k[n] = static_cast<float>(std::cos(3.0 * static_cast<double>(n)));
      }
      for (std::size_t n = 0; n < kCount; ++n) v[n * (kCount + 1)] = 1;
      std::vector<double> lse(kCount), max(kCount), entropy(kCount);
      std::vector<std::int64_t> chosen(kCount);
      for (std::size_t n = 0; n < kCount; ++n) chosen[n] = static_cast<std::int64_t>(n);
      AttentionInputs in;
      in.q = make_view<const float>(q.data(), {1, 1, kN, kD});
      in.k = make_view<const float>(k.data(), {1, 1, kN, kD});
      in.v = make_view<const float>(v.data(), {1, 1, kN, kN});
      AttentionOptions options;
      options.causality = Causality::causal;
      options.context.target = find_target(target);
      attention_forward({.y = make_view(y.data(), {1, 1, kN, kN}), .lse = make_view(lse.data(), {1, 1, kN, 1})}, in,
                        options);
      AttentionStatistics out;
      out.row_max = make_view(max.data(), {1, 1, kN, 1});
      out.entropy = make_view(entropy.data(), {1, 1, kN, 1});
      out.rows = make_view(rows.data(), {1, 1, kN, kN});
      StatisticsSelection selection;
      selection.queries = make_vector_view<const std::int64_t>(chosen.data(), kN);
      attention_statistics(out, in, make_view<const double>(lse.data(), {1, 1, kN, 1}), selection, options);
      for (std::size_t i = 0; i < kCount; ++i) {
        const float* own = y.data() + i * kCount;
        EXPECT_NEAR(max[i], *std::max_element(own, own + kN), tolerance) << target << ", " << factor << ", query " << i;
        EXPECT_GE(entropy[i], 0.0) << target << ", " << factor << ", query " << i;
        EXPECT_LE(entropy[i], std::log(static_cast<double>(i + 1)) + 1e-5)
            << target << ", " << factor << ", query " << i;
        for (std::size_t j = 0; j < kCount; ++j)
          EXPECT_NEAR(rows[i * kCount + j], own[j], tolerance) << target << ", " << factor;
      }
    }
  }
}

void expect_same_bits(CaseSpec spec) {
  const TargetGuard guard;
  verify::Case problem(spec);
  for (const std::string& target : supported_targets()) {
    set_target(target);
    attention_forward(problem.saving_outputs(), problem.inputs(), problem.options());
    const auto run = [&](int threads) {
      problem.options().context.threads = threads;
      problem.poison_statistics();
      attention_statistics(problem.statistics(), problem.inputs(), problem.saved().lse, problem.selection(),
                           problem.options());
      return problem.statistics_bytes();
    };
    const std::vector<std::uint8_t> one = run(1);
    for (const int threads : {2, 5}) {
      EXPECT_TRUE(one == run(threads)) << target << ", " << threads << " threads: " << describe(spec);
    }
  }
}

TEST(Statistics, Statistics_AnyNumberOfThreads_AreBitwiseIdentical) {
  CaseSpec spec;
  spec.Hkv = spec.group = 2;
  spec.T = 300;
  spec.S = 500;
  spec.D = 24;
  spec.causality = Causality::causal;
  spec.statistics.queries = 9;
  expect_same_bits(spec);
  CaseSpec listed = spec;
  listed.key_indices = DType::i32;
  listed.list_entries = 200;
  expect_same_bits(listed);
  CaseSpec packed = spec;
  packed.cu_seqlens = DType::i32;
  packed.packed_queries = {110, 0, 97, 1, 92};
  packed.packed_keys = {100, 3, 0, 300, 97};
  packed.packed = 5;
  expect_same_bits(packed);
  CaseSpec cache = spec;
  cache.B = 2;
  cache.page = 100;
  cache.key_lengths = DType::i32;
  cache.query_offsets = DType::i32;
  expect_same_bits(cache);
  cache.quantized = true;
  expect_same_bits(cache);
}

/// Two sequences of 3 and 2 pages of 2 keys; pages hold the keys of the dense call in another order.
TEST(Statistics, Statistics_PagedKeys_AreBitwiseIdenticalToDenseKeys) {
  const TargetGuard guard;
  constexpr std::int64_t kB = 2, kT = 3, kS = 6, kD = 4, kPage = 2, kPages = 7;
  const std::vector<std::int32_t> table{5, 0, 3, 6, 2, -1}, lengths{5, 4};
  std::vector<float> q(kB * kT * kD), k(kB * kS * kD), pages(kPages * kPage * kD, std::nanf(""));
  for (std::size_t n = 0; n < q.size(); ++n) q[n] = std::sin(static_cast<float>(7 * n));
  for (std::size_t n = 0; n < k.size(); ++n) k[n] = std::cos(static_cast<float>(5 * n));
  for (std::int64_t b = 0; b < kB; ++b) {
    for (std::int64_t j = 0; j < lengths[static_cast<std::size_t>(b)]; ++j) {
      const std::int64_t page = table[static_cast<std::size_t>(b * kS / kPage + j / kPage)];
      std::copy_n(&k[static_cast<std::size_t>((b * kS + j) * kD)], kD,
                  &pages[static_cast<std::size_t>((page * kPage + j % kPage) * kD)]);
    }
  }
  AttentionInputs dense;
  dense.q = make_view(q.data(), {kB, 1, kT, kD});
  dense.k = dense.v = make_view(k.data(), {kB, 1, kS, kD});
  dense.key_lengths = make_vector_view(lengths.data(), kB);
  AttentionInputs paged = dense;
  paged.k = make_view(pages.data(), {kPages, 1, kPage, kD});
  paged.v = {};
  paged.block_table = make_view(table.data(), {1, 1, kB, kS / kPage});
  std::vector<float> y(kB * kT * kD), lse(kB * kT);
  const TensorView log_sum = make_view(lse.data(), {kB, 1, kT, 1});
  struct Out {
    std::vector<double> entropy = std::vector<double>(kB * kT), mass = std::vector<double>(kB * kS);
    std::vector<std::int32_t> top = std::vector<std::int32_t>(kB * kT * 2);
    bool operator==(const Out&) const = default;
  };
  for (const std::string& target : supported_targets()) {
    set_target(target);
    attention_forward({make_view(y.data(), {kB, 1, kT, kD}), log_sum}, dense, {});
    const auto look = [&](const AttentionInputs& in) {
      Out out;
      AttentionStatistics to;
      to.entropy = make_view(out.entropy.data(), {kB, 1, kT, 1});
      to.key_mass = make_view(out.mass.data(), {kB, 1, 1, kS});
      to.topk_index = make_view(out.top.data(), {kB, 1, kT, 2});
      attention_statistics(to, in, log_sum);
      return out;
    };
    const Out out = look(paged);
    EXPECT_TRUE(look(dense) == out) << target;
    EXPECT_EQ(out.mass[5], 0.0) << target;
    EXPECT_NEAR(out.mass[6] + out.mass[7] + out.mass[8] + out.mass[9], kT, 1e-5) << target;
  }
}

/// A packed batch has a mean for each sequence. Listed keys are counted in each sequence, listed queries in the batch.
TEST(Statistics, PackedBatch_SequencesOfOtherLengths_CountTheirOwnKeys) {
  const std::vector<float> q(5, 0.0F), k(5, 1.0F);  // all scores are 0: each key of a sequence weighs the same
  const std::vector<std::int64_t> queries{0, 2, 5}, keys{0, 4, 5}, listed{3, 0}, rows{4};
  const std::vector<float> lse{std::log(4.0F), std::log(4.0F), 0.0F, 0.0F, 0.0F};
  std::vector<double> weights(10), mean(4), share(2), all(5), mass(5);
  std::vector<std::int32_t> top(5);
  AttentionInputs in;
  in.q = make_view(q.data(), {1, 1, 5, 1});
  in.k = make_view(k.data(), {1, 1, 5, 1});
  in.cu_seqlens_q = make_vector_view(queries.data(), 3);
  in.cu_seqlens_k = make_vector_view(keys.data(), 3);
  AttentionStatistics out;
  out.key_weights = make_view(weights.data(), {1, 1, 5, 2});
  out.mean_key_weights = make_view(mean.data(), {2, 1, 1, 2});
  out.mean_row_max = make_view(share.data(), {2, 1, 1, 1});
  out.key_mass = make_view(mass.data(), {1, 1, 1, 5});
  out.topk_index = make_view(top.data(), {1, 1, 5, 1});
  out.rows = make_view(all.data(), {1, 1, 1, 5});
  StatisticsSelection selection;
  selection.keys = make_vector_view(listed.data(), 2);
  selection.queries = make_vector_view(rows.data(), 1);
  attention_statistics(out, in, make_view(lse.data(), {1, 1, 5, 1}), selection);
  const auto near = [](const std::vector<double>& actual, const std::vector<double>& expected) {
    for (std::size_t n = 0; n < expected.size(); ++n) EXPECT_NEAR(actual[n], expected[n], 1e-6) << n;
  };
  near(weights, {0.25, 0.25, 0.25, 0.25, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0});
  near(mean, {0.25, 0.25, 0.0, 1.0});
  near(share, {0.25, 1.0});
  near(mass, {0.5, 0.5, 0.5, 0.5, 3.0});
  near(all, {0.0, 0.0, 0.0, 0.0, 1.0});
  EXPECT_EQ(top, (std::vector<std::int32_t>{0, 0, 0, 0, 0}));
}

/// A packed batch has one mean for each of its sequences.
TEST(Statistics, MeanOutput_OtherNumberOfSequences_IsRefused) {
  const std::vector<float> q(5), k(5);
  const std::vector<std::int64_t> bounds{0, 2, 5};
  const std::vector<float> lse(5);
  std::vector<double> mean(1, 7.0);
  AttentionInputs in;
  in.q = make_view(q.data(), {1, 1, 5, 1});
  in.k = make_view(k.data(), {1, 1, 5, 1});
  in.cu_seqlens_q = in.cu_seqlens_k = make_vector_view(bounds.data(), 3);
  AttentionStatistics out;
  out.mean_row_max = make_view(mean.data(), {1, 1, 1, 1});
  try {
    attention_statistics(out, in, make_view(lse.data(), {1, 1, 5, 1}));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "attention_statistics: mean_row_max has shape (1,1,1,1) but (N,Hq,1,1) is (2,1,1,1)");
  }
  EXPECT_EQ(mean[0], 7.0);
}

/// Statistics use neither option, and refuse what no call takes.
TEST(Statistics, DropoutAndGateThreshold_OutOfRange_AreRefused) {
  const std::vector<float> x(4), lse(4);
  std::vector<double> first(4, 7.0);
  AttentionInputs in;
  in.q = in.k = make_view(x.data(), {1, 1, 4, 1});
  AttentionStatistics out;
  out.first = make_view(first.data(), {1, 1, 4, 1});
  const auto refusal = [&](const AttentionOptions& options) {
    try {
      attention_statistics(out, in, make_view(lse.data(), {1, 1, 4, 1}), {}, options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  AttentionOptions dropped, closed;
  dropped.dropout = std::nan("");
  closed.gate_threshold = -1.0;
  EXPECT_EQ(refusal(dropped), "attention_statistics: dropout is nan but must be in [0, 1)");
  EXPECT_EQ(refusal(closed), "attention_statistics: gate_threshold is -1 but must be at least 0 and finite in f32");
  EXPECT_EQ(first[0], 7.0);
}

TEST(Statistics, ManyBatchesWithoutQueries_Statistics_ReturnsAtOnce) {
  float x = 0.0F;
  const TensorView rows(&x, DType::f32, {std::int64_t{1} << 40, 1, 0, 1}, {0, 0, 0, 0});
  AttentionInputs in;
  in.q = rows;
  in.k = ConstTensorView(&x, DType::f32, {std::int64_t{1} << 40, 1, 5, 1}, {0, 0, 0, 0});
  AttentionStatistics out;
  out.entropy = rows;
  attention_statistics(out, in, rows);
}

}  // namespace
}  // namespace headgate
