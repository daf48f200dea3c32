// SPDX-License-Identifier: Apache-2.0
// attention_statistics against the oracle, on every vector target, by the tolerance rule of docs/NUMERICS.md.

#include "headgate/statistics.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "attention/property.hpp"

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

}  // namespace
}  // namespace headgate
