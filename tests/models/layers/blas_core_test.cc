// SPDX-License-Identifier: Apache-2.0
#include "models/layers/blas_core.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headgate::layers {
namespace {

TEST(BlasCore, Kernels_ForOlderCpus_AreReplaced) {
  const std::vector<std::string> avx512{"avx3", "avx2", "sse4"}, avx2{"avx2", "sse4"}, sse4{"sse4"}, neon{"neon"};
  EXPECT_EQ(better_blas_core("Prescott", avx512), "SkylakeX");
  EXPECT_EQ(better_blas_core("Sandybridge", avx2), "Haswell");
  EXPECT_EQ(better_blas_core("Prescott", sse4), "");
  EXPECT_EQ(better_blas_core("armv8", neon), "");
}

TEST(BlasCore, Kernels_SuitableChoice_Stay) {
  const std::vector<std::string> avx512{"avx3", "avx2", "sse4"};
  for (const char* chosen : {"SkylakeX", "Cooperlake", "SapphireRapids", "Zen", "Haswell", "one of the future"}) {
    EXPECT_EQ(better_blas_core(chosen, avx512), "") << chosen;
  }
}

TEST(BlasCore, BlasCore_OfThisCpu_HasAName) { EXPECT_FALSE(blas_core().empty()); }

}  // namespace
}  // namespace headgate::layers
