// SPDX-License-Identifier: Apache-2.0
#include "tool/demo/spread.hpp"

#include <gtest/gtest.h>

#include "models/evaluate/first_token_attention_by_trigger.hpp"
#include "models/evaluate/loss_by_trigger.hpp"

namespace headgate::demo {
namespace {

metrics::FigureRow row(double bos, std::optional<double> loss) {
  metrics::FigureRow out;
  out.set(metrics::kFirstTokenAttentionOther, bos);
  out.set(metrics::kLossTrigger, loss);
  return out;
}

TEST(Spread, Spread_SeveralRuns_HasMeanLeastAndMost) {
  const Spread spread = spread_of({row(0.5, 2.0), row(0.25, 1.0), row(0.75, 6.0)});
  EXPECT_EQ(spread.runs, 3U);
  EXPECT_DOUBLE_EQ(spread.mean.at(metrics::kFirstTokenAttentionOther), 0.5);
  EXPECT_DOUBLE_EQ(spread.least.at(metrics::kFirstTokenAttentionOther), 0.25);
  EXPECT_DOUBLE_EQ(spread.most.at(metrics::kFirstTokenAttentionOther), 0.75);
  EXPECT_DOUBLE_EQ(spread.mean.at(metrics::kLossTrigger), 3.0);
}

TEST(Spread, Spread_FigureMissingInARun_IsNone) {
  const Spread spread = spread_of({row(0.5, 2.0), row(0.25, std::nullopt)});
  EXPECT_FALSE(spread.mean.find(metrics::kLossTrigger));
  EXPECT_FALSE(spread.least.find(metrics::kLossTrigger));
  EXPECT_FALSE(spread.most.find(metrics::kLossTrigger));
  EXPECT_TRUE(spread.mean.find(metrics::kFirstTokenAttentionOther));
}

TEST(Spread, Spread_AsPerCents_IsPrinted) {
  EXPECT_EQ(percent(spread_of({row(0.71, 0.0), row(1.0, 0.0)}), metrics::kFirstTokenAttentionOther),
            "86% (71% to 100%)");
  EXPECT_EQ(percent(spread_of({row(0.711, 0.0), row(0.712, 0.0)}), metrics::kFirstTokenAttentionOther), "71%");
  EXPECT_EQ(percent(spread_of({row(0.97, 0.0)}), metrics::kFirstTokenAttentionOther), "97%");
}

}  // namespace
}  // namespace headgate::demo
