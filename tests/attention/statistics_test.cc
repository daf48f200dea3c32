// SPDX-License-Identifier: Apache-2.0
// attention_statistics against the oracle, on every vector target, by the tolerance rule of docs/NUMERICS.md.

#include "headgate/statistics.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "attention/property.hpp"
#include "attention/sample_call.hpp"

namespace headgate {
namespace {

using verify::CaseSpec;
using verify::check_statistics_case;

class Statistics : public ::testing::TestWithParam<DType> {};

TEST_P(Statistics, RandomProblems) {
  EXPECT_TRUE(holds_on_random_problems("statistics are the oracle's", GetParam(), check_statistics_case));
}

INSTANTIATE_TEST_SUITE_P(EveryDType, Statistics, ::testing::Values(DType::f32, DType::f64, DType::bf16, DType::f16),
                         dtype_test_name);

TEST(Statistics, StandardCases) {
  for (const CaseSpec& spec : verify::standard_cases()) expect_right(spec, check_statistics_case);
}

/// Keys that are alike have equal weights: the lower index comes first, across panels, blocks and threads.
TEST(Statistics, TopKeysOfEqualScoresComeByIndex) {
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

/// An infinite lse: no weights. NaN: nothing is known of the row.
TEST(Statistics, RowsWithoutWeightsAndRowsOfNaN) {
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

/// Neither can be read as rows of one sequence.
TEST(Statistics, RefusePackedBatchesAndCaches) {
  testing::SampleCall call;
  for (const auto& [member, name] :
       {std::pair{&AttentionInputs::cu_seqlens_q, "cu_seqlens_q"},
        std::pair{&AttentionInputs::cu_seqlens_k, "cu_seqlens_k"},
        std::pair{&AttentionInputs::block_table, "block_table"}, std::pair{&AttentionInputs::k_scale, "k_scale"},
        std::pair{&AttentionInputs::v_scale, "v_scale"}}) {
    call.in.*member = call.vector<std::int32_t>({0, 1});
    const auto before = call.snapshot();
    try {
      call.look();
      ADD_FAILURE() << name << " is taken";
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()), "attention_statistics: " + std::string(name) +
                                               " is given but statistics take no packed batches and no caches");
    }
    EXPECT_TRUE(call.unchanged_since(before)) << name;
    call.in.*member = {};
  }
}

}  // namespace
}  // namespace headgate
