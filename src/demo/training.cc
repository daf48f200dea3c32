// SPDX-License-Identifier: Apache-2.0
#include "demo/training.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>

#include "console/progress.hpp"
#include "console/table.hpp"
#include "console/units.hpp"
#include "demo/plan.hpp"
#include "train/trainer.hpp"

namespace headgate::demo {

namespace {

using Clock = std::chrono::steady_clock;
using console::duration_text;
using train::TrainSettings;

/// Thrown when interrupted() returns true; caught in show_training.
struct Interruption {};

void throw_if(const std::function<bool()>& interrupted) {
  if (interrupted()) throw Interruption{};
}

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// Seconds of a step on this machine, measured with a temporary trainer.
double measured_step_seconds(const models::DecoderConfig& config, const TrainSettings& settings,
                             const train::SequenceSource& source, const std::function<bool()>& interrupted) {
  constexpr double kEnough_s = 0.5;
  train::Trainer trainer(config, settings, source);
  trainer.step();  // not measured: the first step is slower, since its memory is touched for the first time
  double seconds = 0.0;
  int steps = 0;
  while (steps == 0 || (seconds < kEnough_s && !trainer.finished())) {
    throw_if(interrupted);
    seconds += trainer.step().seconds;
    ++steps;
  }
  return seconds / steps;
}

ComparisonCost cost_of(const Comparison& comparison, const std::function<bool()>& interrupted) {
  // The time of an evaluation over that of training on as many tokens: it has no backward pass and no optimizer.
  constexpr double kForward = 0.4;
  ComparisonCost cost;
  cost.steps = comparison.settings.schedule.steps;
  cost.least = comparison.least_steps;
  const TrainSettings settings = settings_of(comparison, std::max<std::int64_t>(cost.steps, 2));
  for (const ComparedModel& model : comparison.models) {
    cost.step_seconds += measured_step_seconds(model.config, settings, *comparison.source, interrupted);
  }
  const double passes = static_cast<double>(settings.eval_tokens) / static_cast<double>(settings.tokens_per_step());
  cost.fixed_seconds = kForward * passes * cost.step_seconds;
  return cost;
}

class Training {
 public:
  Training(const std::vector<Comparison>& comparisons, const DemoBudget& budget,
           const std::function<bool()>& interrupted)
      : comparisons_(comparisons), budget_(budget), interrupted_(interrupted) {}

  void run() {
    for (const Comparison& comparison : comparisons_) {
      bar_.show(0.0, "measuring the speed");
      costs_.push_back(cost_of(comparison, interrupted_));
    }
    bar_.clear();
    plan(0, budget_.aim_seconds);
    begin_ = Clock::now();
    for (std::size_t i = 0; i < comparisons_.size(); ++i) {
      if (i > 0) plan(i, budget_.limit_seconds);
      compare(i);
    }
  }

  void clear() { bar_.clear(); }

 private:
  /// Decides the steps of the comparisons from `first` on, so that the demo takes `seconds` in all.
  void plan(std::size_t first, double seconds) {
    const double time = seconds - seconds_since(budget_.begin);
    const std::vector<ComparisonCost> rest(costs_.begin() + static_cast<std::ptrdiff_t>(first), costs_.end());
    const std::vector<std::int64_t> steps = plan_steps(rest, time);
    double planned = 0.0;
    for (std::size_t i = 0; i < rest.size(); ++i) {
      if (steps[i] < rest[i].steps) {
        fmt::print("     {}: {} steps instead of {}, to finish in time on this machine\n", comparisons_[first + i].name,
                   steps[i], rest[i].steps);
      }
      costs_[first + i].steps = steps[i];
      planned += planned_seconds(rest[i], steps[i]);
    }
    planned_seconds_ = done_seconds_ + planned;
    if (first == 0) {
      fmt::print("     about {} from here on{}\n", duration_text(planned),
                 planned > time ? "; fewer steps would not show much" : "");
    }
    std::fflush(stdout);
  }

  /// Trains the models of a comparison and prints its result.
  void compare(std::size_t index) {
    const Comparison& comparison = comparisons_[index];
    const TrainSettings settings = settings_of(comparison, costs_[index].steps);
    fmt::print("\n\n{}: three models of {} steps, {} x {} tokens each\n\n{}\n", comparison.name,
               settings.schedule.steps, settings.batch * settings.accumulate, settings.seq_len,
               console::paragraph(comparison.introduction));
    std::fflush(stdout);
    std::vector<TrainedModel> trained;
    trained.reserve(comparison.models.size());
    for (const ComparedModel& model : comparison.models) trained.push_back(train_one(index, model, settings));
    bar_.clear();
    const std::int64_t tokens = settings.schedule.steps * settings.tokens_per_step();
    fmt::print("{}{}", bar_.visible() ? "" : "\n", comparison.result(trained, tokens));
    std::fflush(stdout);
  }

  TrainedModel train_one(std::size_t index, const ComparedModel& model, const TrainSettings& settings) {
    const Comparison& comparison = comparisons_[index];
    const ComparisonCost& cost = costs_[index];
    const auto models = static_cast<double>(comparison.models.size());
    const double before = done_seconds_;
    train::Trainer trainer(model.config, without_evaluation(settings), *comparison.source);
    double seconds = 0.0;
    train::StepReport step;
    while (!trainer.finished()) {
      step = trainer.step();
      seconds += step.seconds;
      done_seconds_ = before + cost.step_seconds / models * static_cast<double>(step.step);
      show(fmt::format("{}  {}/{}  loss {:.4f}  {:.0f} tok/s", model.name, step.step, settings.schedule.steps,
                       step.loss, static_cast<double>(step.tokens) / seconds));
      throw_if(interrupted_);
    }
    const double speed = static_cast<double>(step.tokens) / seconds;
    TrainedModel out{model, evaluate(index, model, settings, trainer.parameters()), speed};
    if (!bar_.visible()) {
      fmt::print("     {:<12} {} steps in {}, loss {:.4f} at the last, {:.0f} tokens/s\n", model.name,
                 trainer.steps_done(), duration_text(seconds), step.loss, speed);
      std::fflush(stdout);
    }
    return out;
  }

  train::Evaluation evaluate(std::size_t index, const ComparedModel& model, const TrainSettings& settings,
                             const std::vector<float>& parameters) {
    const Comparison& comparison = comparisons_[index];
    const double before = done_seconds_;
    const double planned = costs_[index].fixed_seconds / static_cast<double>(comparison.models.size());
    const auto plan = train::plan_evaluation(comparison.source->held_out_count(),
                                             settings.eval_tokens / settings.seq_len, settings.batch);
    train::HeldOutEvaluator evaluator(model.config, *comparison.source, plan, comparison.metrics);
    return evaluator.evaluate(parameters.data(), [&](double share) {
      done_seconds_ = before + share * planned;
      show(model.name + "  held-out text");
      throw_if(interrupted_);
    });
  }

  /// Settings of a trainer without evaluations of its own, which could not be interrupted.
  static TrainSettings without_evaluation(TrainSettings settings) {
    settings.eval_tokens = 0;
    return settings;
  }

  void show(const std::string& label) {
    const double left = seconds_left(planned_seconds_, done_seconds_, seconds_since(begin_));
    bar_.show(done_seconds_ / planned_seconds_, fmt::format("{}  {} left", label, duration_text(left)));
  }

  const std::vector<Comparison>& comparisons_;
  const DemoBudget& budget_;
  const std::function<bool()>& interrupted_;
  std::vector<ComparisonCost> costs_;
  console::ProgressBar bar_{16};
  Clock::time_point begin_;
  double planned_seconds_ = 0.0;  ///< of all comparisons, at the measured speed
  double done_seconds_ = 0.0;     ///< the planned time of the work done so far, not the time that it took
};

}  // namespace

TrainingEnd show_training(const std::vector<Comparison>& comparisons, const DemoBudget& budget,
                          const std::function<bool()>& interrupted) {
  omp_set_num_threads(comparisons.front().settings.threads);
  Training training(comparisons, budget, interrupted);
  try {
    training.run();
  } catch (const Interruption&) {
    training.clear();
    return {TrainingEnd::Reason::interrupted, ""};
  } catch (const train::Diverged& error) {
    training.clear();
    return {TrainingEnd::Reason::diverged, error.what()};
  }
  return {};
}

}  // namespace headgate::demo
