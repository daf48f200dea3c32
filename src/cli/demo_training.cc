// SPDX-License-Identifier: Apache-2.0
#include "cli/demo_training.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#include "cli/demo_plan.hpp"
#include "cli/demo_table.hpp"
#include "cli/progress.hpp"
#include "cli/train_display.hpp"
#include "cli/verbs.hpp"
#include "train/trainer.hpp"

namespace headgate::cli {

namespace {

using Clock = std::chrono::steady_clock;

/// A signal came: unwinds to show_training.
struct Interrupted {
  int number = 0;
};

void throw_if_interrupted() {
  if (const int number = SignalWatch::received(); number != 0) throw Interrupted{number};
}

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// Seconds of a step on this machine now, by a trainer that is thrown away.
double measured_step_seconds(const models::DecoderConfig& config, const train::TrainSettings& settings,
                             const train::SequenceSource& source) {
  constexpr double kEnough_s = 0.5;
  train::Trainer trainer(config, settings, source);
  trainer.step();  // which touches the memory first
  double seconds = 0.0;
  int steps = 0;
  while (steps == 0 || (seconds < kEnough_s && !trainer.finished())) {
    throw_if_interrupted();
    seconds += trainer.step().seconds;
    ++steps;
  }
  return seconds / steps;
}

StoryCost cost_of(const Story& story) {
  constexpr double kForward =
      0.4;  // of a step: without the backward pass and the optimizer, somewhat more than a third
  StoryCost cost;
  cost.steps = wanted_steps(story);
  cost.least = story.least_steps;
  const train::TrainSettings settings = story_settings(story, std::max<std::int64_t>(cost.steps, 2));
  for (const StoryModel& model : story.models) {
    cost.step_seconds += measured_step_seconds(model.config, settings, *story.source);
  }
  const double passes = static_cast<double>(settings.eval_tokens) / static_cast<double>(settings.tokens_per_step());
  cost.fixed_seconds = kForward * passes * cost.step_seconds;
  return cost;
}

class Training {
 public:
  Training(const std::vector<Story>& stories, const DemoBudget& budget) : stories_(stories), budget_(budget) {}

  void run() {
    for (const Story& story : stories_) {
      bar_.show(0.0, "measuring the speed");
      costs_.push_back(cost_of(story));
    }
    bar_.clear();
    plan(0, budget_.aim_seconds);
    begin_ = Clock::now();
    for (std::size_t i = 0; i < stories_.size(); ++i) {
      if (i > 0) plan(i, budget_.limit_seconds);
      tell(i);
    }
  }

  void clear() { bar_.clear(); }

 private:
  /// The steps of the stories from `first` on, so that the demo ends after `seconds` in all.
  void plan(std::size_t first, double seconds) {
    const double time = seconds - seconds_since(budget_.begin);
    const std::vector<StoryCost> rest(costs_.begin() + static_cast<std::ptrdiff_t>(first), costs_.end());
    const std::vector<std::int64_t> steps = plan_steps(rest, time);
    double planned = 0.0;
    for (std::size_t i = 0; i < rest.size(); ++i) {
      if (steps[i] < rest[i].steps) {
        fmt::print("     {}: {} steps instead of {}, for want of time at this machine's speed\n",
                   stories_[first + i].name, steps[i], rest[i].steps);
      }
      costs_[first + i].steps = steps[i];
      planned += planned_seconds(rest[i], steps[i]);
    }
    planned_seconds_ = done_seconds_ + planned;
    if (first == 0) {
      fmt::print("     about {} from here on{}\n", duration_text(planned),
                 planned > time ? "; still fewer steps would not show much" : "");
    }
    std::fflush(stdout);
  }

  void tell(std::size_t index) {
    const Story& story = stories_[index];
    const train::TrainSettings settings = story_settings(story, costs_[index].steps);
    fmt::print("\n\n{}: three models of {} steps, {} x {} tokens each\n\n{}\n", story.name, settings.schedule.steps,
               settings.batch * settings.accumulate, settings.seq_len, paragraph(story.introduction));
    std::fflush(stdout);
    std::vector<TrainedModel> trained;
    trained.reserve(story.models.size());
    for (const StoryModel& model : story.models) trained.push_back(train_one(index, model, settings));
    bar_.clear();
    const std::int64_t tokens = settings.schedule.steps * settings.tokens_per_step();
    fmt::print("{}{}", bar_.visible() ? "" : "\n", story.result(trained, tokens));
    std::fflush(stdout);
  }

  TrainedModel train_one(std::size_t index, const StoryModel& model, const train::TrainSettings& settings) {
    const Story& story = stories_[index];
    const StoryCost& cost = costs_[index];
    const double models = static_cast<double>(story.models.size());
    const double before = done_seconds_;
    train::Trainer trainer(model.config, without_evaluation(settings), *story.source);
    double seconds = 0.0;
    train::StepReport step;
    while (!trainer.finished()) {
      step = trainer.step();
      seconds += step.seconds;
      done_seconds_ = before + cost.step_seconds / models * static_cast<double>(step.step);
      show(fmt::format("{}  {}/{}  loss {:.4f}  {:.0f} tok/s", model.name, step.step, settings.schedule.steps,
                       step.loss, static_cast<double>(step.tokens) / seconds));
      throw_if_interrupted();
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

  train::Evaluation evaluate(std::size_t index, const StoryModel& model, const train::TrainSettings& settings,
                             const std::vector<float>& parameters) {
    const Story& story = stories_[index];
    const double before = done_seconds_;
    const double planned = costs_[index].fixed_seconds / static_cast<double>(story.models.size());
    const auto plan =
        train::plan_evaluation(story.source->held_out_count(), settings.eval_tokens / settings.seq_len, settings.batch);
    train::HeldOutEvaluator evaluator(model.config, *story.source, plan, story.metrics);
    return evaluator.evaluate(parameters.data(), [&](double share) {
      done_seconds_ = before + share * planned;
      show(model.name + "  held-out text");
      throw_if_interrupted();
    });
  }

  /// The trainer would hold an evaluator of its own, which cannot be interrupted.
  static train::TrainSettings without_evaluation(train::TrainSettings settings) {
    settings.eval_tokens = 0;
    return settings;
  }

  void show(const std::string& label) {
    const double left = seconds_left(planned_seconds_, done_seconds_, seconds_since(begin_));
    bar_.show(done_seconds_ / planned_seconds_, fmt::format("{}  {} left", label, duration_text(left)));
  }

  const std::vector<Story>& stories_;
  const DemoBudget& budget_;
  std::vector<StoryCost> costs_;
  ProgressBar bar_{16};
  Clock::time_point begin_;
  double planned_seconds_ = 0.0;  ///< of all stories, by the measured speed
  double done_seconds_ = 0.0;     ///< of those: not time that passed, but work
};

}  // namespace

int show_training(const std::vector<Story>& stories, const DemoBudget& budget) {
  constexpr int kSignalStatus = 128;  // + the signal's number, as shells have it
  omp_set_num_threads(story_settings(stories.front(), 1).threads);
  const SignalWatch watch;
  Training training(stories, budget);
  try {
    training.run();
  } catch (const Interrupted& interrupted) {
    training.clear();
    fmt::print(stderr, "headgate demo: interrupted\n");
    return kSignalStatus + interrupted.number;
  } catch (const train::Diverged& error) {
    training.clear();
    fmt::print(stderr, "headgate demo: the training diverged: {}\n", error.what());
    return kCheckFailed;
  }
  return kSuccess;
}

}  // namespace headgate::cli
