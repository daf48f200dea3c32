// SPDX-License-Identifier: Apache-2.0
#include "models/layers/gate_site.hpp"

#include <gtest/gtest.h>

#include "models/layers/gated_attention.hpp"

namespace headgate::layers {
namespace {

constexpr std::int64_t C = 24, Hq = 6, Hkv = 2, D = 5;

GateLogits logits_of(GateSite site, GateGrain grain) {
  GateVariant variant;
  variant.site = site;
  variant.grain = grain;
  return gate_logits(variant, C, Hq, Hkv, D);
}

TEST(GateSites, Row_EachSite_IsFoundAndNoneHasNone) {
  for (const GateSiteRow& row : kGateSites) EXPECT_EQ(find_site(row.value), &row) << row.word;
  EXPECT_EQ(find_site(GateSite::none), nullptr);
}

// Compares with the paper's figure 1: G1 after the attention, G2 to G4 on v, k and q, G5 after W_o.
TEST(GateSites, Logits_EachSite_HaveTheShapeOfWhatIsGated) {
  const GateGrain each = GateGrain::elementwise, head = GateGrain::headwise;
  EXPECT_EQ(logits_of(GateSite::g1, each).count(), Hq * D);
  EXPECT_EQ(logits_of(GateSite::g1, head).count(), Hq);
  EXPECT_EQ(logits_of(GateSite::g2, each).count(), Hkv * D);
  EXPECT_EQ(logits_of(GateSite::g3, head).count(), Hkv);
  EXPECT_EQ(logits_of(GateSite::g4, head).count(), Hq);
  EXPECT_EQ(logits_of(GateSite::g5, each).count(), C);
  EXPECT_EQ(logits_of(GateSite::g5, head).count(), 1);
  EXPECT_EQ(logits_of(GateSite::none, each).count(), 0);
}

TEST(GateSites, Projection_EachSite_IsGatedAtItsColumns) {
  ProjectionColumns columns{.q = 1, .gate = 2, .k = 3, .v = 4, .width = 5};
  EXPECT_EQ(columns.*find_site(GateSite::g2)->column, columns.v);
  EXPECT_EQ(columns.*find_site(GateSite::g3)->column, columns.k);
  EXPECT_EQ(columns.*find_site(GateSite::g4)->column, columns.q);
  EXPECT_EQ(find_site(GateSite::g1)->column, nullptr);
  EXPECT_EQ(find_site(GateSite::g5)->column, nullptr);
}

}  // namespace
}  // namespace headgate::layers
