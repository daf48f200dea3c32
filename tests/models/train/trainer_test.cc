// SPDX-License-Identifier: Apache-2.0
#include "models/train/trainer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "headgate/error.hpp"
#include "models/decoder/plain_decoder.hpp"
#include "models/evaluate/gate_by_trigger.hpp"
#include "models/evaluate/loss.hpp"
#include "models/evaluate/loss_by_trigger.hpp"
#include "models/layers/support.hpp"
#include "models/train/run.hpp"
#include "support/allocations.hpp"

namespace headgate::train {
namespace {

using testing::SmallRun;

constexpr std::pair<Task, models::ModelPrecision> kTasksAndPrecisions[] = {
    {Task::text, models::ModelPrecision::f32},
    {Task::bigram_backcopy, models::ModelPrecision::f32},
    {Task::text, models::ModelPrecision::bf16}};

std::vector<double> losses(Trainer& trainer, int steps) {
  std::vector<double> out;
  out.reserve(static_cast<std::size_t>(steps));
  for (int i = 0; i < steps; ++i) out.push_back(trainer.step().loss);
  return out;
}

TEST(Trainer, Training_SmallText_LearnsIt) {
  for (const models::ModelPrecision precision : {models::ModelPrecision::f32, models::ModelPrecision::bf16}) {
    SmallRun run;
    run.settings.schedule.steps = 120;
    run.settings.precision = precision;
    Trainer trainer = run.fresh();
    const std::vector<double> curve = losses(trainer, 120);
    EXPECT_NEAR(curve.front(), std::log(256.0), 0.2) << "nothing is known yet";
    EXPECT_LT(curve.back(), 0.5 * curve.front()) << word_of(precision);
    EXPECT_LT(trainer.evaluate().report.overall.at(metrics::kLossNats), 0.5 * curve.front()) << word_of(precision);
    EXPECT_TRUE(trainer.finished());
  }
}

TEST(Trainer, Training_InBf16_FollowsF32ButWithItsOwnRoundings) {
  SmallRun f32, bf16;
  bf16.settings.precision = models::ModelPrecision::bf16;
  Trainer exact = f32.fresh(), rounded = bf16.fresh();
  for (int step = 0; step < 20; ++step) {
    const double expected = exact.step().loss, found = rounded.step().loss;
    EXPECT_NEAR(found, expected, 0.02 * expected) << "step " << step;
    EXPECT_TRUE(step == 0 || found != expected);
  }
}

/// Sums up the items of a decoder's working memory but the rounded matrices.
std::size_t activation_bytes(const models::DecoderConfig& config, models::ModelPrecision precision) {
  std::size_t bytes = 0;
  for (const models::MemoryItem& item : models::planned_memory(config, {4, 256}, models::Purpose::train, precision)) {
    bytes += item.name == "matrices in bf16" ? 0 : item.bytes;
  }
  return bytes;
}

TEST(TrainingDecoder, PlannedMemory_InBf16_IsLittleMoreThanHalf) {
  models::DecoderConfig config = testing::small_model();
  config.dim = 384;
  config.layers = 6;
  config.heads = 6;
  config.kv_heads = 3;
  config.head_dim = 64;
  config.ffn = 1024;
  config.seq_len = 256;
  const auto f32 = static_cast<double>(activation_bytes(config, models::ModelPrecision::f32));
  EXPECT_LT(static_cast<double>(activation_bytes(config, models::ModelPrecision::bf16)), 0.62 * f32);
}

TEST(Trainer, Step_AfterTheFirst_AllocatesNothing) {
  if (!support::allocations_are_counted()) GTEST_SKIP() << "operator new belongs to the thread sanitizer";
  for (const Task task : {Task::text, Task::bigram_backcopy}) {
    SmallRun run(task);
    run.settings.accumulate = 2;
    Trainer trainer = run.fresh();
    trainer.step();
    const std::size_t before = support::allocations();
    EXPECT_GT(before, 0U);  // allocations are counted
    trainer.step();
    trainer.step();
    EXPECT_EQ(support::allocations(), before) << word_of(task);
  }
}

TEST(Trainer, Step_Each_ReportsItsFigures) {
  SmallRun run;
  run.settings.accumulate = 3;
  Trainer trainer = run.fresh();
  for (int step = 1; step <= 3; ++step) {
    const StepReport report = trainer.step();
    EXPECT_EQ(report.step, step);
    EXPECT_EQ(report.tokens, step * 16 * 2 * 3);
    EXPECT_EQ(report.lr, learning_rate(run.settings.schedule, step));
    EXPECT_GT(report.grad_norm, 0.0);
  }
  EXPECT_DOUBLE_EQ(trainer.flops_per_step(),
                   3.0 * models::training_flops(run.config, models::ParameterTable(run.config), 2, 16));
}

TEST(Trainer, Accumulation_SeveralBatches_EqualsOneLargerBatch) {
  SmallRun run;
  run.settings.batch = 3;
  Trainer whole = run.fresh();
  const models::BatchShape shape{3, run.config.seq_len};
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(shape.batch * shape.seq)), targets(tokens.size());
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    run.source().training_sequence(tokens.data() + b * shape.seq, targets.data() + b * shape.seq, b);
  }
  const models::PlainGradients expected = models::differentiate_plainly(
      run.config, {whole.parameters().begin(), whole.parameters().end()}, shape, tokens.data(), targets.data());
  layers::Number square;
  for (const layers::Number& g : expected.gradients) square += g * g;
  run.settings.batch = 1;
  run.settings.accumulate = 3;
  Trainer parts = run.fresh();
  for (Trainer* trainer : {&whole, &parts}) {
    const StepReport report = trainer->step();
    layers::expect_within("loss", static_cast<float>(report.loss), expected.loss);
    layers::expect_within("norm of the gradient", static_cast<float>(report.grad_norm), sqrt(square));
  }
}

TEST(Trainer, WeightDecay_Applied_ChangesMatricesOnly) {
  SmallRun run;
  run.settings.weight_decay = 0.0;
  Trainer without = run.fresh();
  run.settings.weight_decay = 0.5;
  Trainer with = run.fresh();
  without.step();
  with.step();
  const models::ParameterTable table(run.config);
  for (const models::Parameter& parameter : table.entries()) {
    const auto begin = static_cast<std::ptrdiff_t>(parameter.offset);
    const auto end = begin + static_cast<std::ptrdiff_t>(parameter.count);
    const bool same = std::equal(with.parameters().begin() + begin, with.parameters().begin() + end,
                                 without.parameters().begin() + begin);
    EXPECT_EQ(same, parameter.kind == models::ParameterKind::norm) << parameter.name;
  }
}

TEST(Trainer, GatesAlone_Trained_LeaveOthersBitwise) {
  for (const models::ModelPrecision precision : {models::ModelPrecision::f32, models::ModelPrecision::bf16}) {
    SmallRun run;
    run.config.gate = layers::parse_gate("elementwise-sigmoid2-bias");
    run.settings.weight_decay = 0.5;
    run.settings.precision = precision;
    run.settings.trained = TrainedPart::gates;
    run.settings.clip = 0.0;
    Trainer trainer = run.fresh();
    const std::vector<float> before = trainer.parameters();
    const StepReport first = trainer.step();
    trainer.save(run.path("saved"));
    const Checkpoint saved = load_checkpoint(run.path("saved"), CheckpointParts::all);
    ASSERT_EQ(std::ssize(saved.first_moment), models::ParameterTable(run.config).gates().total());
    EXPECT_EQ(std::ssize(saved.second_moment), trainer.trained_count());
    EXPECT_EQ(trainer.memory_plan()[2].bytes, 8 * saved.first_moment.size()) << "frozen parameters have no moments";
    double square = 0.0;
    for (const float m : saved.first_moment) square += static_cast<double>(m) * m;
    EXPECT_NEAR(first.grad_norm, std::sqrt(square) / (1.0 - run.settings.beta1), 1e-5 * first.grad_norm);
    losses(trainer, 3);
    const models::ParameterTable table(run.config);
    for (const models::Parameter& parameter : table.entries()) {
      const auto begin = static_cast<std::ptrdiff_t>(parameter.offset);
      const auto end = begin + static_cast<std::ptrdiff_t>(parameter.count);
      const bool same = std::equal(before.begin() + begin, before.begin() + end, trainer.parameters().begin() + begin);
      EXPECT_EQ(same, !models::is_gate(parameter.kind)) << parameter.name;
    }
    Trainer resumed = run.resumed(run.path("saved"));
    losses(resumed, 3);
    EXPECT_EQ(resumed.parameters(), trainer.parameters());
  }
}

TEST(Trainer, GatesAlone_ModelWithoutGates_IsRefused) {
  SmallRun run;
  run.config.gate = {};
  run.settings.trained = TrainedPart::gates;
  EXPECT_THROW(run.fresh(), Error);
}

TEST(Trainer, Gradient_AboveTheLimit_IsClipped) {
  SmallRun run;
  run.settings.clip = 0.01;
  Trainer trainer = run.fresh();
  const StepReport report = trainer.step();
  EXPECT_GT(report.grad_norm, 0.1) << "the norm before clipping";
  trainer.save(run.path("saved"));
  const Checkpoint saved = load_checkpoint(run.path("saved"), CheckpointParts::all);
  double square = 0.0;
  for (const float m : saved.first_moment) square += static_cast<double>(m) * m;
  // After one step the first moment is (1 − β₁) · the clipped gradient.
  layers::expect_within("norm of the first moment", static_cast<float>(std::sqrt(square)),
                        layers::Number((1.0 - run.settings.beta1) * 0.01));
}

TEST(Trainer, Trainer_RestoredFromACheckpoint_IsBitwiseIdentical) {
  for (const auto& [task, precision] : kTasksAndPrecisions) {
    SmallRun run(task);
    run.settings.accumulate = 2;
    run.settings.precision = precision;
    Trainer whole = run.fresh();
    const std::vector<double> expected = losses(whole, 20);

    Trainer first = run.fresh();
    std::vector<double> got = losses(first, 10);
    first.save(run.path("half"));
    Trainer second = run.resumed(run.path("half"));
    EXPECT_EQ(second.steps_done(), 10);
    const std::vector<double> rest = losses(second, 10);
    got.insert(got.end(), rest.begin(), rest.end());
    EXPECT_EQ(got, expected);
    EXPECT_EQ(second.parameters(), whole.parameters());
    EXPECT_EQ(write_state(second.state()), write_state(whole.state()));
  }
}

TEST(Trainer, Loss_OverflowInBf16_StopsTheTraining) {
  SmallRun run;
  run.settings.precision = models::ModelPrecision::bf16;
  Trainer first = run.fresh();
  first.save(run.path("saved"));
  Checkpoint checkpoint = load_checkpoint(run.path("saved"), CheckpointParts::all);
  // More than bf16 holds, and less than f32 does.
  const auto last =
      std::find_if(checkpoint.parameters.begin(), checkpoint.parameters.end(), [](float x) { return x != 0; });
  *last = std::numeric_limits<float>::max();
  const TrainerState state = read_state(checkpoint.trainer_state);
  Trainer broken(std::move(checkpoint), state, run.source());
  EXPECT_THROW(broken.step(), Diverged);
}

TEST(Trainer, Loss_NotFinite_StopsTheTraining) {
  SmallRun run;
  Trainer first = run.fresh();
  first.step();
  first.save(run.path("saved"));
  Checkpoint checkpoint = load_checkpoint(run.path("saved"), CheckpointParts::all);
  checkpoint.parameters[checkpoint.parameters.size() / 2] = std::numeric_limits<float>::quiet_NaN();
  const TrainerState state = read_state(checkpoint.trainer_state);
  Trainer broken(std::move(checkpoint), state, run.source());
  try {
    broken.step();
    ADD_FAILURE() << "trained on";
  } catch (const Diverged& error) {
    EXPECT_EQ(std::string(error.what()), "step 2: the loss is nan");
  }
  EXPECT_EQ(broken.steps_done(), 1);
  EXPECT_THROW(broken.save(run.path("saved")), Diverged);
  EXPECT_EQ(load_checkpoint(run.path("saved"), CheckpointParts::all).parameters, first.parameters());
}

TEST(Trainer, Trainer_OtherDataOrModel_IsRefused) {
  SmallRun run;
  Trainer trainer = run.fresh();
  trainer.save(run.path("saved"));
  SmallRun other;
  testing::write_bytes(other.settings.paths[0], testing::prose(4000, 2));
  EXPECT_THROW(other.resumed(run.path("saved")), Error);
  SmallRun narrow;
  narrow.config.vocab = 255;
  EXPECT_THROW(narrow.fresh(), Error);
  SmallRun empty;
  empty.settings.batch = 0;
  EXPECT_THROW(empty.fresh(), Error);
}

TEST(Trainer, MemoryPlan_EveryItem_AddsUpToWhatIsTaken) {
  SmallRun run;
  const Trainer trainer = run.fresh();
  const auto total = static_cast<std::size_t>(models::parameter_count(run.config));
  const std::vector<models::MemoryItem> plan = trainer.memory_plan();
  ASSERT_GE(plan.size(), 5U);
  EXPECT_EQ(plan[0].name, "parameters");
  EXPECT_EQ(plan[0].bytes, 4 * total);
  EXPECT_EQ(plan[1].bytes, 4 * total);
  EXPECT_EQ(plan[2].bytes, 8 * total);
  EXPECT_EQ(plan.back().name, "evaluation");
  EXPECT_GT(plan.back().bytes, 0U);
}

TEST(Evaluation, Batches_AnyNumberOfSequences_LeaveFewOut) {
  const auto plan = [](std::int64_t held_out, std::int64_t sequences, std::int64_t max_batch) {
    const EvaluationPlan p = plan_evaluation(held_out, sequences, max_batch);
    return std::pair(p.batch, p.batches);
  };
  EXPECT_EQ(plan(100, 64, 16), std::pair(std::int64_t{16}, std::int64_t{4}));
  EXPECT_EQ(plan(100, 1000, 16), std::pair(std::int64_t{10}, std::int64_t{10}));
  EXPECT_EQ(plan(3, 64, 16), std::pair(std::int64_t{3}, std::int64_t{1}));
  EXPECT_EQ(plan(100, 0, 16), std::pair(std::int64_t{1}, std::int64_t{1}));
  for (std::int64_t n = 1; n < 200; ++n) {
    const EvaluationPlan p = plan_evaluation(n, n, 16);
    ASSERT_LE(p.batch, 16);
    ASSERT_GE(p.batch * p.batches, n - 5) << n;
  }
}

TEST(Evaluation, Triggers_OfBackcopy_AreDistinguished) {
  SmallRun run(Task::bigram_backcopy);
  Trainer trainer = run.fresh();
  const Evaluation evaluation = trainer.evaluate();
  ASSERT_TRUE(evaluation.report.backcopy.has_value());
  EXPECT_EQ(evaluation.tokens, 64);
  EXPECT_NEAR(evaluation.report.backcopy->at(metrics::kLossTrigger), std::log(257.0), 0.3);
  EXPECT_NEAR(evaluation.report.backcopy->at(metrics::kGateOther), 0.5, 0.1);
  SmallRun text;
  EXPECT_FALSE(text.fresh().evaluate().report.backcopy.has_value());
}

}  // namespace
}  // namespace headgate::train
