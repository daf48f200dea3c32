// SPDX-License-Identifier: Apache-2.0
// Tests the kernels for lists of keys where random problems are too small: several chunks of queries, threads that
// share a row, several blocks and ranges of keys. Random problems cover the options.

#include <cstdint>
#include <vector>

#include "library/attention/property.hpp"
#include "library/core/statistics_outputs.hpp"
#include "verify/case.hpp"

namespace headgate {
namespace {

using verify::CaseSpec;

CaseSpec listed(std::int64_t T, std::int64_t S, std::int64_t K) {
  CaseSpec spec = sized(T, S, 16, 8);
  spec.key_indices = DType::i32;
  spec.list_entries = K;
  return spec;
}

TEST(KeyLists, FewRows_ThreadsShareBlocks_MatchTheOracle) {
  for (const std::int64_t K : {127, 128, 129, 700}) {
    CaseSpec spec = listed(1, 900, K);
    spec.group = 3;
    spec.threads = 3;
    expect_both(spec);
    spec.sinks = DType::f32;
    spec.causality = Causality::causal;
    spec.weights = true;
    expect_both(spec);
    spec.weights = false;
    spec.closed_share = 0.5;
    expect_right(spec, verify::check_forward_case);
  }
}

TEST(KeyLists, LongLists_SeveralChunksOfQueries_MatchTheOracle) {
  CaseSpec spec = listed(30, 1500, 1400);
  spec.group = 96;  // the weights of a query's keys take 1.2 MB: a chunk holds 27 queries
  spec.D = spec.Dv = 1;
  spec.sinks = DType::f64;
  spec.threads = 2;
  expect_both(spec);
}

/// Lists that are short for their sequence are sorted, and their keys form long ranges in the backward pass.
TEST(KeyLists, ShortLists_OfLongSequences_MatchTheOracle) {
  CaseSpec spec = listed(7, 9100, 3);
  spec.D = spec.Dv = 4;
  spec.threads = 3;
  for (const std::int64_t block : {1, 5}) {
    spec.key_block_size = block;
    expect_both(spec);
    spec.absent_gradients = verify::kDk;
    expect_both(spec);
    spec.absent_gradients = verify::kDv | verify::kDq;
    expect_both(spec);
    spec.absent_gradients = 0;
  }
}

TEST(KeyLists, Softcap_BiasOfSeveralShapes_MatchesTheOracle) {
  for (const verify::MapSpec& bias :
       {verify::MapSpec{true, true, true, true}, verify::MapSpec{true, false, false, false},
        verify::MapSpec{true, false, true, true}}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CaseSpec spec = listed(30, 300, 200);
      spec.B = 2;
      spec.Hkv = 2;
      spec.group = 2;
      spec.dtype = dtype;
      spec.bias = bias;
      spec.softcap = 2.0;
      spec.dropout = 0.4;
      spec.lists_by_head = true;
      spec.threads = 3;
      expect_both(spec);
    }
  }
}

TEST(KeyLists, Blocks_LastOneCut_MatchTheOracle) {
  CaseSpec spec = listed(20, 530, 5);
  spec.key_block_size = 128;
  spec.causality = Causality::causal;
  spec.lists_by_batch = true;
  spec.B = 2;
  expect_both(spec);
}

/// Lists of several blocks, tiles of few and of many queries, and windows and top keys that lie in several panels.
TEST(KeyLists, Statistics_LongAndShortLists_MatchTheOracle) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const std::int64_t K : {900, 20}) {
      CaseSpec spec = listed(50, 1000, K);
      spec.dtype = dtype;
      spec.Hkv = 2;
      spec.group = 3;
      spec.lists_by_head = true;
      spec.threads = 3;
      spec.statistics.window = 40;
      spec.statistics.top_keys = 33;
      spec.statistics.queries = 9;
      spec.statistics.keys = 20;
      expect_right(spec, verify::check_statistics_case);
      spec.causality = Causality::causal;
      spec.alibi_slopes = DType::f32;
      spec.bias = {true, true, true, true};
      spec.sinks = DType::f32;
      expect_right(spec, verify::check_statistics_case);
    }
  }
}

/// Window shares alone need only the scores of listed keys in the window.
TEST(KeyLists, Statistics_WindowAlone_MatchesTheOracle) {
  CaseSpec spec = listed(50, 700, 300);
  spec.group = 2;
  spec.statistics.window = 60;
  for (std::size_t n = 0; n < kStatisticsOutputs.size(); ++n) {
    if (kStatisticsOutputs[n].member != &AttentionStatistics::window_share) spec.statistics.absent |= 1U << n;
  }
  expect_right(spec, verify::check_statistics_case);
}

TEST(KeyLists, Statistics_PagedInt8Keys_MatchTheOracle) {
  CaseSpec spec = listed(5, 600, 300);
  spec.B = spec.group = 2;
  spec.page = 50;
  spec.quantized = true;
  spec.key_lengths = spec.query_offsets = DType::i32;
  spec.causality = Causality::causal;
  spec.statistics.window = 40;
  expect_right(spec, verify::check_statistics_case);
  spec.first_rows = DType::f32;
  spec.first = 4;
  expect_right(spec, verify::check_statistics_case);
}

/// Order and repetition of entries change nothing.
TEST(KeyLists, ListOfAllKeys_AnyOrder_GivesTheSameBits) {
  constexpr std::int64_t kT = 5, kS = 300;
  CaseSpec spec = sized(kT, kS, 16, 16);
  spec.group = 2;
  verify::Case problem(spec);
  AttentionInputs in = problem.inputs();
  AttentionOptions options = problem.options();
  std::vector<std::int64_t> ascending(kT * kS), mixed;
  for (std::size_t n = 0; n < ascending.size(); ++n) ascending[n] = static_cast<std::int64_t>(n) % kS;
  for (const std::int64_t e : ascending) {
    mixed.push_back(e * 7 % kS);
    mixed.push_back(e % 3 == 0 ? -1 : e);
  }
  const auto bytes_with = [&](const std::vector<std::int64_t>& lists) {
    in.key_indices =
        make_view<const std::int64_t>(lists.data(), Shape{1, 1, kT, static_cast<std::int64_t>(lists.size()) / kT});
    problem.poison_outputs();
    attention_forward(problem.outputs(), in, options);
    return problem.output_bytes();
  };
  EXPECT_EQ(bytes_with(ascending), bytes_with(mixed));
}

}  // namespace
}  // namespace headgate
