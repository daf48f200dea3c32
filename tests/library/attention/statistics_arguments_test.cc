// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "headgate/statistics.hpp"
#include "library/attention/bad_call.hpp"
#include "library/attention/sample_call.hpp"

// Checks that bad arguments of attention_statistics throw headgate::Error before anything is written, in one line that
// names the function, the argument and the values that disagree.

namespace headgate::testing {
namespace {

class BadStatistics : public ::testing::TestWithParam<BadCall> {};

TEST_P(BadStatistics, Statistics_BadArgument_IsRefused) {
  SampleCall call;
  GetParam().spoil(call);
  expect_refused(
      call, "attention_statistics", [&] { call.look(); }, GetParam().said);
}

INSTANTIATE_TEST_SUITE_P(
    Arguments, BadStatistics,
    ::testing::Values(
        BadCall{"q_absent", [](SampleCall& c) { c.in.q = {}; }, {"q is required"}},
        BadCall{
            "k_batch", [](SampleCall& c) { c.in.k.shape[0] = 1; }, {"k has shape (1,2,5,8) but q has shape (2,4,3,8)"}},
        BadCall{"lse_absent", [](SampleCall& c) { c.saved.lse = {}; }, {"lse is required but absent"}},
        BadCall{"lse_shape",
                [](SampleCall& c) { c.saved.lse.shape[2] = 2; },
                {"lse has shape (2,4,2,1) but (B,Hq,T,1) is (2,4,3,1)"}},
        BadCall{"lse_bf16",
                [](SampleCall& c) { c.saved.lse.dtype = DType::bf16; },
                {"lse has dtype bf16 but must be f32 or f64"}},
        BadCall{"gate_absent", [](SampleCall& c) { c.in.gate = {}; }, {"first_gated is asked for but gate is absent"}},
        BadCall{"gate_added",
                [](SampleCall& c) { c.options.gate_op = GateOp::add; },
                {"first_gated is asked for but gate_op is add"}},
        BadCall{"gate_none",
                [](SampleCall& c) { c.options.gate_fn = GateFn::none; },
                {"first_gated is asked for but gate_fn is none"}},
        BadCall{"gate_shape", [](SampleCall& c) { c.in.gate.shape[2] = 2; }, {"gate has shape (2,4,2,6)"}},
        BadCall{"key_beyond",
                [](SampleCall& c) {
                  c.selection.keys = c.vector<std::int64_t>({1, 5, 0});
                },
                {"keys[1] is 5 but must be at least 0 and less than S = 5"}},
        BadCall{"query_negative",
                [](SampleCall& c) {
                  c.selection.queries = c.vector<std::int32_t>({-1, 0});
                },
                {"queries[0] is -1 but must be at least 0 and less than T = 3"}},
        BadCall{"keys_f32",
                [](SampleCall& c) { c.selection.keys.dtype = DType::f32; },
                {"keys has dtype f32 but must be i32 or i64"}},
        BadCall{"keys_absent",
                [](SampleCall& c) { c.selection.keys = {}; },
                {"key_weights is asked for but keys is absent"}},
        BadCall{"queries_absent",
                [](SampleCall& c) { c.selection.queries = {}; },
                {"rows is asked for but queries is absent"}},
        BadCall{"window", [](SampleCall& c) { c.selection.window = -3; }, {"window is -3 but must be at least 0"}},
        BadCall{"top_none",
                [](SampleCall& c) { c.statistics.topk_index.shape[3] = 0; },
                {"topk_index has shape (2,4,3,0): K is 0 but must be 1 to 1024"}},
        BadCall{"top_apart",
                [](SampleCall& c) { c.statistics.topk_weight.shape[3] = 1; },
                {"topk_weight has shape (2,4,3,1) but (B,Hq,T,K) is (2,4,3,2)"}},
        BadCall{"index_f32",
                [](SampleCall& c) { c.statistics.topk_index.dtype = DType::f32; },
                {"topk_index has dtype f32 but must be i32 or i64"}},
        BadCall{"entropy_bf16",
                [](SampleCall& c) { c.statistics.entropy.dtype = DType::bf16; },
                {"entropy has dtype bf16 but must be f32 or f64"}},
        BadCall{"mass_shape",
                [](SampleCall& c) { c.statistics.key_mass.shape[3] = 4; },
                {"key_mass has shape (2,4,1,4) but (B,Hq,1,S) is (2,4,1,5)"}},
        BadCall{"overlap",
                [](SampleCall& c) { c.statistics.first.data = c.statistics.entropy.data; },
                {"first overlaps entropy in memory"}}),
    test_name);

/// v is not read, and neither is the gate unless an output needs it.
TEST(StatisticsArguments, Statistics_WithoutValues_IsAccepted) {
  SampleCall call;
  call.in.v = {};
  call.look();
  call.in.gate = {};
  call.statistics.first_gated = call.statistics.mean_first_gated = {};
  call.look();
}

}  // namespace
}  // namespace headgate::testing
