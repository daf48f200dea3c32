// SPDX-License-Identifier: Apache-2.0
#include "tool/demo/verdict.hpp"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "models/evaluate/first_token_attention.hpp"
#include "models/evaluate/first_token_attention_by_trigger.hpp"
#include "models/evaluate/first_token_attention_gated_by_trigger.hpp"
#include "models/evaluate/first_token_attention_uniform.hpp"
#include "models/evaluate/first_token_value_norm_ratio.hpp"
#include "models/evaluate/gate_by_trigger.hpp"
#include "models/evaluate/loss.hpp"
#include "models/evaluate/loss_by_trigger.hpp"
#include "models/evaluate/massive_activation.hpp"
#include "models/evaluate/sink_rate.hpp"
#include "tool/console/table.hpp"

namespace headgate::demo {
namespace {

using metrics::FigureRow;

/// A model that has learnt to copy; `bos` is its attention to BOS where there is nothing to copy.
FigureRow report_of(double bos) {
  FigureRow report;
  report.set(metrics::kFirstTokenAttentionTrigger, 0.01);
  report.set(metrics::kFirstTokenAttentionOther, bos);
  report.set(metrics::kLossTrigger, 0.003);
  report.set(metrics::kLossOther, 2.4);
  report.set(metrics::kFirstTokenValueNormRatio, 0.05);
  return report;
}

FigureRow gated(double bos, double gate_other = 0.02, double gate_trigger = 0.95) {
  FigureRow report = report_of(bos);
  report.set(metrics::kGateOther, gate_other);
  report.set(metrics::kGateTrigger, gate_trigger);
  return report;
}

FigureRow unlearnt(FigureRow report) {
  report.set(metrics::kLossTrigger, 2.87);
  return report;
}

/// One run.
Spread once(const FigureRow& row) { return spread_of({row}); }

void expect_says(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\nshould say: " << part;
}

void expect_does_not_say(const std::string& text, const std::string& part) {
  EXPECT_EQ(text.find(part), std::string::npos) << text << "\nshould not say: " << part;
}

TEST(SinkEffect, Effect_EachCase_FollowsFromTheNumbers) {
  const FigureRow sink = report_of(0.97);
  EXPECT_EQ(sink_effect(sink, gated(0.06)), SinkEffect::clear);
  EXPECT_EQ(sink_effect(sink, gated(0.48)), SinkEffect::clear);
  EXPECT_EQ(sink_effect(sink, gated(0.49)), SinkEffect::small);
  EXPECT_EQ(sink_effect(sink, gated(0.91)), SinkEffect::small);
  EXPECT_EQ(sink_effect(sink, gated(0.93)), SinkEffect::none);
  EXPECT_EQ(sink_effect(sink, gated(0.97)), SinkEffect::none);
  EXPECT_EQ(sink_effect(report_of(0.90), gated(0.94)), SinkEffect::none);
  EXPECT_EQ(sink_effect(report_of(0.90), gated(0.96)), SinkEffect::opposite);
  EXPECT_EQ(sink_effect(report_of(0.29), gated(0.01)), SinkEffect::no_sink);
  EXPECT_EQ(sink_effect(report_of(0.10), gated(0.60)), SinkEffect::opposite);
  EXPECT_EQ(sink_effect(unlearnt(sink), gated(0.06)), SinkEffect::not_learnt);
  EXPECT_EQ(sink_effect(sink, unlearnt(gated(0.06))), SinkEffect::not_learnt);
}

TEST(BackcopyVerdict, Verdict_ClearEffect_SaysSo) {
  const std::string text = backcopy_verdict(
      once(report_of(0.97)), {{"headwise", once(gated(0.06))}, {"elementwise", once(gated(0.15, 0.03, 0.76))}});
  EXPECT_EQ(
      text,
      "Without a gate 97% of the attention goes to BOS where there is nothing to copy, which adds little: "
      "BOS's value has 0.05 of the norm of the others. With a headwise gate 6% goes there; the gate closes "
      "where there is nothing to copy (0.02 there, 0.95 after a trigger). With an elementwise gate 15% goes there; "
      "the gate closes where there is nothing to copy (0.03 there, 0.76 after a trigger).");
}

TEST(BackcopyVerdict, Verdict_SmallNoOrOppositeEffect_SaysSo) {
  const auto verdict = [](double bos) {
    return backcopy_verdict(once(report_of(0.80)), {{"headwise", once(gated(bos))}});
  };
  expect_says(verdict(0.60), "With a headwise gate 60% goes there, only somewhat less;");
  expect_says(verdict(0.78), "With a headwise gate 78% goes there: that gate makes no clear difference;");
  expect_says(verdict(0.95), "With a headwise gate 95% goes there, more than without one;");
}

TEST(BackcopyVerdict, Verdict_WithoutASink_SaysThereIsNothingToRemove) {
  const std::string text = backcopy_verdict(once(report_of(0.12)), {{"headwise", once(gated(0.004))}});
  expect_says(text, "Without a gate 12% of the attention goes to BOS where there is nothing to copy: no sink here. ");
  expect_says(text, "With a headwise gate 0.4% goes there;");
  expect_does_not_say(text, "norm");
}

TEST(BackcopyVerdict, Verdict_TaskNotLearnt_SaysNothingAboutSinks) {
  const std::string none = backcopy_verdict(once(unlearnt(report_of(0.97))), {{"headwise", once(gated(0.06))}});
  EXPECT_EQ(none,
            "The model without a gate has not learnt to copy (loss 2.87 after a trigger): there is nothing to compare "
            "yet. More steps are needed.");
  const std::string one = backcopy_verdict(
      once(report_of(0.97)), {{"headwise", once(unlearnt(gated(0.06)))}, {"elementwise", once(gated(0.2))}});
  expect_says(one, "With a headwise gate the model has not learnt to copy (loss 2.87 after a trigger)");
  expect_does_not_say(one, "6%");
  expect_says(one, "With an elementwise gate 20% goes there;");
}

TEST(BackcopyVerdict, Verdict_GateAndValue_SaysWhatTheyDo) {
  const auto verdict = [](const FigureRow& report) {
    return backcopy_verdict(once(report_of(0.97)), {{"headwise", once(report)}});
  };
  expect_says(verdict(gated(0.06, 0.45, 0.52)), "; the gate hardly differs between the two (0.45 there, 0.52 after");
  expect_says(verdict(gated(0.06, 0.80, 0.10)), "; the gate opens where there is nothing to copy (0.80 there");
  expect_does_not_say(verdict(report_of(0.06)), "the gate ");
  FigureRow full = report_of(0.97);
  full.set(metrics::kFirstTokenValueNormRatio, 0.9);
  expect_says(backcopy_verdict(once(full), {}), "although BOS's value is not small (0.90 of the norm of the others).");
}

TEST(BackcopyVerdict, Verdict_GatedAttention_CountsWhatPassesTheGate) {
  FigureRow closed = gated(0.90);
  closed.set(metrics::kFirstTokenAttentionGatedOther, 0.004);
  EXPECT_EQ(sink_effect(report_of(0.97), closed), SinkEffect::clear);
  expect_says(backcopy_verdict(once(report_of(0.97)), {{"headwise", once(closed)}}),
              "With a headwise gate 0.4% goes there and passes the gate; the gate closes");
  closed.set(metrics::kFirstTokenAttentionGatedOther, 0.95);
  EXPECT_EQ(sink_effect(report_of(0.97), closed), SinkEffect::none);
}

TEST(BackcopyVerdict, Verdict_SeveralSeeds_SaysMeanAndRange) {
  const std::string text = backcopy_verdict(spread_of({report_of(0.71), report_of(0.99)}),
                                            {{"headwise", spread_of({gated(0.02), gated(0.04)})}});
  expect_says(text, "Without a gate 85% (71% to 99%) of the attention goes to BOS");
  expect_says(text, "With a headwise gate 3% (2% to 4%) goes there;");
}

FigureRow evaluation(double loss, double first_token, double sink_rate, double activation) {
  FigureRow report;
  report.set(metrics::kLossNats, loss);
  report.set(metrics::kFirstTokenAttention, first_token);
  report.set(metrics::kFirstTokenAttentionUniform, 0.0201);
  report.set(metrics::kSinkRate, sink_rate);
  report.set(metrics::kMassiveActivation, activation);
  return report;
}

TEST(TextVerdict, Verdict_SmallModelsWithoutSinks_SaysSo) {
  const std::string text = text_verdict(
      evaluation(1.6, 0.011, 0.0, 10.0),
      {{"headwise", evaluation(1.596, 0.010, 0.0, 11.0)}, {"elementwise", evaluation(1.55, 0.009, 0.0, 7.0)}}, 983040);
  EXPECT_EQ(text,
            "At equal parameter counts the held-out loss is with a headwise gate no different (-0.004 nats a byte) and "
            "with an elementwise gate 0.050 nats a byte lower than without one. No head of any model has a sink "
            "on the first token: it gets at most 1% of the attention of a model; uniform attention would give it 2%. "
            "Sinks are not expected from so short a training. Against the model without a gate, the largest "
            "activation is alike with a headwise gate (1.10 of it) and smaller with an elementwise gate (0.70 of it). "
            "This is one seed and 1.0 million bytes of training: an impression, not a result.");
}

TEST(TextVerdict, Verdict_HarmOrSinks_SaysSo) {
  const std::string text =
      text_verdict(evaluation(1.6, 0.30, 0.5, 10.0), {{"headwise", evaluation(1.7, 0.04, 0.0, 15.0)}}, 100000);
  expect_says(text, "with a headwise gate 0.100 nats a byte higher than without one.");
  expect_says(text, "Heads with a sink on the first token: 50% of them without a gate and 0.0% with a headwise gate.");
  expect_says(text, "larger with a headwise gate (1.50 of it)");
  expect_does_not_say(text, "No head");
}

}  // namespace
}  // namespace headgate::demo
