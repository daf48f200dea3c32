// SPDX-License-Identifier: Apache-2.0
#include "tool/demo/verdict.hpp"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "models/evaluate/first_token_attention_by_trigger.hpp"
#include "models/evaluate/first_token_attention_gated_by_trigger.hpp"
#include "models/evaluate/first_token_value_norm_ratio.hpp"
#include "models/evaluate/gate_by_trigger.hpp"
#include "models/evaluate/loss.hpp"
#include "models/evaluate/loss_by_trigger.hpp"

namespace headgate::demo {
namespace {

metrics::FigureRow plain(double bos, double loss = 0.003) {
  metrics::FigureRow report;
  report.set(metrics::kFirstTokenAttentionOther, bos);
  report.set(metrics::kLossTrigger, loss);
  report.set(metrics::kFirstTokenValueNormRatio, 0.05);
  return report;
}

metrics::FigureRow gated(double passing, double loss = 0.003) {
  metrics::FigureRow report = plain(0.9, loss);
  report.set(metrics::kFirstTokenAttentionGatedOther, passing);
  report.set(metrics::kGateOther, 0.02);
  report.set(metrics::kGateTrigger, 0.95);
  return report;
}

std::string text_verdict_of(std::initializer_list<double> losses) {
  std::vector<NamedSpread> models;
  for (const double loss : losses) {
    metrics::FigureRow report;
    report.set(metrics::kLossNats, loss);
    const char* name = models.empty() ? "no gate" : models.size() == 1 ? "headwise" : "elementwise";
    models.push_back({name, spread_of({report})});
  }
  return text_verdict(models, 983040);
}

TEST(BackcopyVerdict, Verdict_SeveralSeeds_SaysMeanAndRangeOfWhatPasses) {
  EXPECT_EQ(
      backcopy_verdict({{"no gate", spread_of({plain(0.71), plain(0.99)})},
                        {"headwise", spread_of({gated(0.02), gated(0.04)})},
                        {"elementwise", spread_of({gated(0.004)})}}),
      "Without a gate, 85% (71% to 99%) of the attention goes to BOS where there is nothing to copy; the norm of BOS's "
      "value is 0.05 times that of the others. With a headwise gate, 3% (2% to 4%) of the attention goes to BOS and "
      "passes the gate where there is nothing to copy; the mean gate score is 0.02 there and 0.95 after a trigger. "
      "With an elementwise gate, 0.4% of the attention goes to BOS and passes the gate where there is nothing to copy; "
      "the mean gate score is 0.02 there and 0.95 after a trigger.");
}

TEST(BackcopyVerdict, Verdict_TaskNotLearnt_SaysNothingAboutSinks) {
  EXPECT_EQ(backcopy_verdict(
                {{"no gate", spread_of({plain(0.97, 2.87)})}, {"headwise", spread_of({gated(0.02, kNotLearnt)})}}),
            "Without a gate, the model has not learnt to copy (loss 2.87 after a trigger): it needs more steps. With a "
            "headwise gate, the model has not learnt to copy (loss 0.50 after a trigger): it needs more steps.");
}

TEST(BackcopyVerdict, Verdict_SomeModelsHaveLearnt_SaysEachWithoutTheOthers) {
  EXPECT_EQ(
      backcopy_verdict({{"no gate", spread_of({plain(0.97, 2.87)})},
                        {"headwise", spread_of({gated(0.02)})},
                        {"elementwise", spread_of({gated(0.02, 1.5)})}}),
      "Without a gate, the model has not learnt to copy (loss 2.87 after a trigger): it needs more steps. With a "
      "headwise gate, 2% of the attention goes to BOS and passes the gate where there is nothing to copy; the "
      "mean gate score is 0.02 there and 0.95 after a trigger. With an elementwise gate, the model has not learnt "
      "to copy (loss 1.50 after a trigger): it needs more steps.");
}

TEST(TextVerdict, Verdict_Losses_SaysHigherAndLower) {
  EXPECT_EQ(
      text_verdict_of({1.6, 1.604, 1.55}),
      "With a headwise gate, the held-out loss is 0.004 nats a byte higher than without a gate. With an elementwise "
      "gate, the held-out loss is 0.050 nats a byte lower than without a gate. This is one seed and 1.0 million "
      "bytes of training: an impression, not a result.");
}

TEST(TextVerdict, Verdict_DifferencesThatRoundToZero_SaysEqual) {
  for (const double loss : {1.6, 1.6004, 1.5996}) {
    EXPECT_EQ(text_verdict_of({1.6, loss}),
              "With a headwise gate, the held-out loss equals that without a gate to three decimals. This is one seed "
              "and 1.0 million bytes of training: an impression, not a result.");
  }
}

}  // namespace
}  // namespace headgate::demo
