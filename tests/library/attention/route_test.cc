// SPDX-License-Identifier: Apache-2.0
// Which kernel computes a sequence, as HEADGATE_VERBOSE=1 prints it.

#include <algorithm>
#include <cstdlib>
#include <regex>
#include <string>
#include <vector>

#include "library/attention/property.hpp"
#include "verify/case.hpp"

namespace headgate {
namespace {

using verify::Case;
using verify::CaseSpec;

/// Before the first call, after which the variable is not read again.
class Verbose : public ::testing::Environment {
 public:
  void SetUp() override { setenv("HEADGATE_VERBOSE", "1", 1); }
};
const auto* const kVerbose = ::testing::AddGlobalTestEnvironment(new Verbose);

template <class Call>
std::string stderr_of(const Call& call) {
  ::testing::internal::CaptureStderr();
  call();
  return ::testing::internal::GetCapturedStderr();
}

std::string forward_line(const CaseSpec& spec) {
  Case problem(spec);
  return stderr_of([&] { attention_forward(problem.outputs(), problem.inputs(), problem.options()); });
}

std::string backward_line(const CaseSpec& spec) {
  Case problem(spec);
  const AttentionOptions options = problem.backward_options();
  (void)stderr_of([&] { attention_forward(problem.saving_outputs(), problem.inputs(), options); });
  return stderr_of(
      [&] { attention_backward(problem.gradients(), problem.inputs(), problem.saved(), problem.incoming(), options); });
}

/// "few_queries × 1, tiles × 2", in the order of the sequences.
std::string routes_in(const std::string& line) {
  static const std::regex route(R"(route (\w+ × \d+))");
  std::string routes;
  for (std::sregex_iterator at(line.begin(), line.end(), route), end; at != end; ++at) {
    routes += (routes.empty() ? "" : ", ") + at->str(1);
  }
  return routes;
}

CaseSpec plain(std::int64_t T, std::int64_t S, std::int64_t D = 64) {
  CaseSpec spec = sized(T, S, D, D);
  spec.B = 2;
  spec.Hkv = 4;
  return spec;
}

TEST(Route, ForwardCall_Verbose_PrintsOneLine) {
  CaseSpec spec = plain(40, 300);
  spec.softcap = 2.0;
  spec.causality = Causality::causal;
  const std::string line = forward_line(spec);
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
  const std::regex whole(
      R"(headgate: attention_forward, cpu \w+, 1 thread, q f32 \(2,4,40,64\), k f32 \(2,4,300,64\), )"
      R"(v f32 \(2,4,300,64\).*, gate, softcap 2, causality causal, route few_queries × 2, [\d.]+ MiB, [\d.]+ ms\n)");
  EXPECT_TRUE(std::regex_match(line, whole)) << line;
}

TEST(Route, EarlierRows_Declining_GiveTheirReasons) {
  const std::string line = forward_line(plain(300, 300));
  EXPECT_NE(line.find("route tiles × 2 (not few_queries: more than 64 queries share a key; not native16: precision is "
                      "exact; not small_heads: more than 256 queries or keys)"),
            std::string::npos)
      << line;
}

TEST(Route, RefusedCall_Verbose_PrintsNothing) {
  EXPECT_EQ(stderr_of([] { EXPECT_ANY_THROW(attention_forward({}, {}, {})); }), "");
}

TEST(Route, ForwardSequence_BySize_TakesItsRow) {
  EXPECT_EQ(routes_in(forward_line(plain(1, 4000))), "few_queries × 2");
  EXPECT_EQ(routes_in(forward_line(plain(8, 65))), "few_queries × 2");
  EXPECT_EQ(routes_in(forward_line(plain(9, 40))), "small_heads × 2");
  EXPECT_EQ(routes_in(forward_line(plain(9, 300))), "few_queries × 2");
  EXPECT_EQ(routes_in(forward_line(plain(256, 256))), "small_heads × 2");
  EXPECT_EQ(routes_in(forward_line(plain(256, 257))), "tiles × 2");
  EXPECT_EQ(routes_in(forward_line(plain(256, 256, 272))), "tiles × 2");
  CaseSpec weights = plain(1, 40);
  weights.weights = true;
  EXPECT_EQ(routes_in(forward_line(weights)), "tiles × 2");
  EXPECT_NE(forward_line(plain(0, 40)).find(", nothing to compute, "), std::string::npos);
}

TEST(Route, FewQueries_OfManyHeads_ShareKeys) {
  const auto route = [](std::int64_t T, std::int64_t heads_of_a_key) {
    CaseSpec spec = plain(T, 300, 16);
    spec.Hkv = 1;
    spec.group = heads_of_a_key;
    return routes_in(forward_line(spec));
  };
  EXPECT_EQ(route(1, 256), "few_queries × 2");
  EXPECT_EQ(route(1, 257), "tiles × 2");
  EXPECT_EQ(route(4, 64), "few_queries × 2");
  EXPECT_EQ(route(4, 65), "tiles × 2");
  EXPECT_EQ(route(5, 12), "few_queries × 2");
  EXPECT_EQ(route(5, 13), "tiles × 2");
}

TEST(Route, FewQueries_WithFewKeysEach_TakeTheProductsOfTheBackwardPass) {
  CaseSpec spec = plain(8, 32);
  EXPECT_EQ(routes_in(forward_line(spec)), "small_heads × 2");
  spec.softcap = 1.0;
  EXPECT_EQ(routes_in(forward_line(spec)), "tiles × 2");
  spec.S = 33;
  EXPECT_EQ(routes_in(forward_line(spec)), "few_queries × 2");
  EXPECT_EQ(routes_in(forward_line(plain(1, 1))), "few_queries × 2");
}

TEST(Route, BackwardSequence_BySizeAndOptions_TakesItsRow) {
  EXPECT_EQ(routes_in(backward_line(plain(256, 256))), "small_heads × 2");
  EXPECT_EQ(routes_in(backward_line(plain(257, 256))), "tiles × 2");
  EXPECT_EQ(routes_in(backward_line(plain(256, 257))), "tiles × 2");
  EXPECT_EQ(routes_in(backward_line(plain(20, 20, 257))), "tiles × 2");
  CaseSpec few_heads = plain(256, 193);
  few_heads.Hkv = 3;
  EXPECT_EQ(routes_in(backward_line(few_heads)), "tiles × 2");
  few_heads.S = 192;
  EXPECT_EQ(routes_in(backward_line(few_heads)), "small_heads × 2");
  std::vector<CaseSpec> others(5, plain(20, 20));
  others[0].softcap = 1.0;
  others[1].alibi_slopes = DType::f32;
  others[2].bias = {true, false, false, true};  // dbias is a sum over heads
  others[3].bias = {true, true, true, false};   // dbias is a sum over queries
  others[4].sinks = DType::f32;
  for (const CaseSpec& other : others) EXPECT_EQ(routes_in(backward_line(other)), "tiles × 2") << describe(other);
  std::vector<CaseSpec> maps(2, plain(20, 20));
  maps[0].bias = {true, false, true, true};
  maps[1].mask.present = true;
  for (const CaseSpec& map : maps) EXPECT_EQ(routes_in(backward_line(map)), "small_heads × 2") << describe(map);
}

TEST(Route, NarrowHeads_WithABias_MayHaveMoreRows) {
  const auto route = [](std::int64_t T, std::int64_t S, std::int64_t D, DType dtype) {
    CaseSpec spec = plain(T, S, D);
    spec.dtype = dtype;
    spec.bias = {true, false, true, true};
    EXPECT_EQ(routes_in(forward_line(spec)), routes_in(backward_line(spec))) << describe(spec);
    return routes_in(forward_line(spec));
  };
  EXPECT_EQ(route(512, 512, 32, DType::f32), "small_heads × 2");
  EXPECT_EQ(route(513, 512, 32, DType::f32), "tiles × 2");
  EXPECT_EQ(route(512, 513, 32, DType::f32), "tiles × 2");
  EXPECT_EQ(route(512, 512, 33, DType::f32), "tiles × 2");
  EXPECT_EQ(route(512, 512, 16, DType::f64), "small_heads × 2");
  EXPECT_EQ(route(512, 512, 17, DType::f64), "tiles × 2");
}

TEST(Route, PackedBatch_EachSequence_TakesTheRowOfItsOwnLengths) {
  CaseSpec spec = plain(1 + 64 + 300, 500 + 64 + 300);
  spec.B = 1;
  spec.cu_seqlens = DType::i32;
  spec.packed = 4;
  spec.packed_queries = {1, 64, 0, 300};
  spec.packed_keys = {500, 64, 0, 300};
  EXPECT_EQ(routes_in(forward_line(spec)), "few_queries × 1, small_heads × 1, empty × 1, tiles × 1");
  EXPECT_EQ(routes_in(backward_line(spec)), "tiles × 2, small_heads × 1, tiles × 1");  // for two reasons
}

TEST(Route, Bf16Sequence_OnEachTarget_TakesNative16WhereItCan) {
  const TargetGuard guard;
  for (const std::string& target : supported_targets()) {
    set_target(target);
    const bool has_products = !native16_products().empty();
    CaseSpec spec = plain(300, 300);
    spec.dtype = DType::bf16;
    spec.precision = Precision::native16;
    EXPECT_EQ(routes_in(forward_line(spec)), has_products ? "native16 × 2" : "tiles × 2") << target;
    EXPECT_EQ(routes_in(backward_line(spec)), has_products ? "native16 × 2" : "tiles × 2") << target;
    spec.weights = true;
    EXPECT_EQ(routes_in(forward_line(spec)), "tiles × 2") << target;
    spec.bias.present = true;
    EXPECT_EQ(routes_in(backward_line(spec)), has_products ? "native16 × 2" : "tiles × 2") << target;
  }
}

TEST(Route, Statistics_Verbose_PrintTheirLine) {
  Case problem(plain(40, 300));
  (void)stderr_of([&] { attention_forward(problem.saving_outputs(), problem.inputs(), problem.options()); });
  const std::string line = stderr_of([&] {
    attention_statistics(problem.statistics(), problem.inputs(), problem.saved().lse, problem.selection(),
                         problem.options());
  });
  EXPECT_EQ(routes_in(line), "statistics × 2") << line;
  EXPECT_EQ(line.find("headgate: attention_statistics, cpu "), 0U) << line;
}

}  // namespace
}  // namespace headgate
