// SPDX-License-Identifier: Apache-2.0
#include "tool/demo/verdict.hpp"

#include <gtest/gtest.h>

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

TEST(BackcopyVerdict, Verdict_SeveralSeeds_SaysMeanAndRangeOfWhatPasses) {
  EXPECT_EQ(
      backcopy_verdict({{"no gate", spread_of({plain(0.71), plain(0.99)})},
                        {"headwise", spread_of({gated(0.02), gated(0.04)})},
                        {"elementwise", spread_of({gated(0.004)})}}),
      "Without a gate 85% (71% to 99%) of the attention goes to BOS where there is nothing to copy; BOS's value has "
      "0.05 "
      "of the norm of the others. With a headwise gate 3% (2% to 4%) goes there and passes the gate, whose scores are "
      "0.02 there and 0.95 after a trigger. With an elementwise gate 0.4% goes there and passes the gate, whose scores "
      "are 0.02 there and 0.95 after a trigger.");
}

TEST(BackcopyVerdict, Verdict_TaskNotLearnt_SaysNothingAboutSinks) {
  EXPECT_EQ(backcopy_verdict(
                {{"no gate", spread_of({plain(0.97, 2.87)})}, {"headwise", spread_of({gated(0.02, kNotLearnt)})}}),
            "Without a gate the model has not learnt to copy (loss 2.87 after a trigger): it needs more steps. With a "
            "headwise gate the model has not learnt to copy (loss 0.50 after a trigger): it needs more steps.");
}

TEST(TextVerdict, Verdict_Losses_SaysDifferences) {
  const auto of_loss = [](double loss) {
    metrics::FigureRow report;
    report.set(metrics::kLossNats, loss);
    return spread_of({report});
  };
  EXPECT_EQ(
      text_verdict({{"no gate", of_loss(1.6)}, {"headwise", of_loss(1.604)}, {"elementwise", of_loss(1.55)}}, 983040),
      "With a headwise gate the held-out loss differs by +0.004 nats a byte. With an elementwise gate the held-out "
      "loss differs by -0.050 nats a byte. This is one seed and 1.0 million bytes of training: an impression, not "
      "a result.");
}

}  // namespace
}  // namespace headgate::demo
