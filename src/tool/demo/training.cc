// SPDX-License-Identifier: Apache-2.0
#include "tool/demo/training.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>

#include "models/io/units.hpp"
#include "models/train/trainer.hpp"
#include "tool/console/progress.hpp"
#include "tool/console/table.hpp"
#include "tool/demo/plan.hpp"

namespace headgate::demo {

namespace {

using Clock = std::chrono::steady_clock;
using console::duration_text;
using train::TrainSettings;

/// Thrown when interrupted() returns true; caught in show_training.
struct Interruption {};

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// Calls run(n) for all n < count in ascending order, with at most `at_a_time` calls at once on separate threads. After
/// the first exception no further call begins; the exception is rethrown once the running calls have ended.
void run_concurrently(std::int64_t count, std::int64_t at_a_time, const std::function<void(std::int64_t)>& run) {
  std::atomic<std::int64_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    for (std::int64_t n = next++; n < count; n = next++) {
      try {
        run(n);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::jthread> threads;  // joined even if a later thread cannot be created
  for (std::int64_t n = 1; n < std::min(at_a_time, count); ++n) threads.emplace_back(work);
  work();
  threads.clear();
  if (error) std::rethrow_exception(error);
}

/// Trains every model of every comparison with every seed. Each run uses one thread, and as many runs as there are
/// threads are active at once.
class Training {
 public:
  Training(const std::vector<Comparison>& comparisons, const DemoBudget& budget,
           const std::function<bool()>& interrupted)
      : comparisons_(comparisons), budget_(budget), interrupted_(interrupted) {}

  void run() {
    for (const Comparison& comparison : comparisons_) {
      bar_.show(0.0, {.text = "measuring the speed"});
      costs_.push_back(cost_of(comparison));
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
  /// Identifies one run of a comparison.
  struct Run {
    std::int64_t model = 0, seed = 0;
  };
  static std::int64_t seeds_of(const Comparison& comparison) {
    return static_cast<std::int64_t>(comparison.sources.size());
  }
  static std::int64_t runs_of(const Comparison& comparison) {
    return static_cast<std::int64_t>(comparison.models.size()) * seeds_of(comparison);
  }
  /// Returns run n: all models with the first seed, then all models with the next seed.
  static Run run_at(const Comparison& comparison, std::int64_t n) {
    const auto models = static_cast<std::int64_t>(comparison.models.size());
    return {n % models, n / models};
  }
  static std::int64_t at_a_time(const Comparison& comparison) {
    return std::clamp<std::int64_t>(comparison.settings.threads, 1, runs_of(comparison));
  }
  /// Returns the settings of one run's trainer. The trainer's own evaluations are off, because they could not be
  /// interrupted.
  static TrainSettings settings_of_run(TrainSettings settings, std::int64_t seed) {
    settings.threads = 1;
    settings.seed += static_cast<std::uint64_t>(seed);
    settings.eval_tokens = 0;
    return settings;
  }

  void throw_if_interrupted() {
    const std::lock_guard lock(mutex_);
    stopped_ = stopped_ || interrupted_();
    if (stopped_) throw Interruption{};
  }

  /// Returns the seconds per step, measured with a temporary trainer.
  double measured_step_seconds(const Comparison& comparison, const TrainSettings& settings, const Run& run) {
    constexpr double kEnough_s = 0.5;
    train::Trainer trainer(comparison.models[static_cast<std::size_t>(run.model)].config,
                           settings_of_run(settings, run.seed),
                           *comparison.sources[static_cast<std::size_t>(run.seed)]);
    trainer.step();  // not measured: the first step is slower, since it touches its memory for the first time
    double seconds = 0.0;
    int steps = 0;
    while (steps == 0 || (seconds < kEnough_s && !trainer.finished())) {
      throw_if_interrupted();
      seconds += trainer.step().seconds;
      ++steps;
    }
    return seconds / steps;
  }

  ComparisonCost cost_of(const Comparison& comparison) {
    // Time of an evaluation relative to training on as many tokens: it has no backward pass and no optimizer step.
    constexpr double kForward = 0.4;
    ComparisonCost cost;
    cost.steps = comparison.settings.schedule.steps;
    cost.least = comparison.least_steps;
    const TrainSettings settings = settings_of(comparison, std::max<std::int64_t>(cost.steps, 2));
    const auto models = static_cast<std::int64_t>(comparison.models.size());
    std::vector<double> seconds(comparison.models.size());
    run_concurrently(models, at_a_time(comparison), [&](std::int64_t n) {
      seconds[static_cast<std::size_t>(n)] = measured_step_seconds(comparison, settings, {n, 0});
    });
    const double mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(models);
    const std::int64_t rounds = (runs_of(comparison) + at_a_time(comparison) - 1) / at_a_time(comparison);
    cost.step_seconds = mean * static_cast<double>(rounds);
    const double passes = static_cast<double>(settings.eval_tokens) / static_cast<double>(settings.tokens_per_step());
    cost.fixed_seconds = kForward * passes * cost.step_seconds;
    return cost;
  }

  /// Plans the steps of the comparisons from `first` on, so that the demo takes `seconds` in total.
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
    const std::int64_t runs = runs_of(comparison), seeds = seeds_of(comparison);
    fmt::print("\n\n{}: {} models{} of {} steps, {} x {} tokens each, {} at a time\n\n{}\n", comparison.name,
               comparison.models.size(), seeds > 1 ? fmt::format(" with {} seeds", seeds) : "", settings.schedule.steps,
               settings.batch * settings.accumulate, settings.seq_len, at_a_time(comparison),
               console::paragraph(comparison.introduction));
    std::fflush(stdout);
    std::vector<TrainedModel> trained;
    for (const ComparedModel& model : comparison.models) {
      trained.push_back({model, std::vector<train::Evaluation>(comparison.sources.size()), {}, 0.0});
    }
    const Clock::time_point begin = Clock::now();
    run_concurrently(runs, at_a_time(comparison), [&](std::int64_t n) {
      const Run run = run_at(comparison, n);
      try {
        train_one(index, settings, run, trained[static_cast<std::size_t>(run.model)]);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        stopped_ = true;
        throw;
      }
    });
    bar_.clear();
    const std::int64_t tokens = settings.schedule.steps * settings.tokens_per_step();
    fmt::print("{}{}\n     {} runs in {}\n", bar_.visible() ? "" : "\n", comparison.result(trained, tokens), runs,
               duration_text(seconds_since(begin)));
    std::fflush(stdout);
    if (comparison.after) comparison.after(trained);
  }

  /// Returns one run's share of `seconds`, the planned time of a comparison's step or evaluation.
  double share_of_run(std::size_t index, double seconds) const {
    return seconds / static_cast<double>(runs_of(comparisons_[index]));
  }

  void train_one(std::size_t index, const TrainSettings& settings, const Run& run, TrainedModel& out) {
    const Comparison& comparison = comparisons_[index];
    const std::string name =
        seeds_of(comparison) == 1
            ? out.model.name
            : fmt::format("{} {}", out.model.name, settings.seed + static_cast<std::uint64_t>(run.seed));
    train::Trainer trainer(out.model.config, settings_of_run(settings, run.seed),
                           *comparison.sources[static_cast<std::size_t>(run.seed)]);
    double seconds = 0.0;
    train::StepReport step;
    while (!trainer.finished()) {
      step = trainer.step();
      seconds += step.seconds;
      done(share_of_run(index, costs_[index].step_seconds),
           {{.text = name},
            {.text = fmt::format("{}/{}", step.step, settings.schedule.steps)},
            {.text = fmt::format("loss {:.4f}", step.loss)}});
      throw_if_interrupted();
    }
    train::Evaluation evaluation = evaluate(index, settings, run, name, out.model, trainer.parameters());
    const double speed = static_cast<double>(step.tokens) / seconds;
    const std::lock_guard lock(mutex_);
    out.evaluations[static_cast<std::size_t>(run.seed)] = std::move(evaluation);
    if (run.seed == 0) out.parameters = trainer.parameters();
    out.tokens_per_second += speed / static_cast<double>(comparison.sources.size());
    if (!bar_.visible()) {
      fmt::print("     {:<14} {} steps in {}, loss {:.4f} at the last, {:.0f} tokens/s\n", name, trainer.steps_done(),
                 duration_text(seconds), step.loss, speed);
      std::fflush(stdout);
    }
  }

  train::Evaluation evaluate(std::size_t index, const TrainSettings& settings, const Run& run, const std::string& name,
                             const ComparedModel& model, const std::vector<float>& parameters) {
    const Comparison& comparison = comparisons_[index];
    const train::SequenceSource& source = *comparison.sources[static_cast<std::size_t>(run.seed)];
    const auto plan =
        train::plan_evaluation(source.held_out_count(), settings.eval_tokens / settings.seq_len, settings.batch);
    train::HeldOutEvaluator evaluator(model.config, source, plan, comparison.metrics, {.threads = 1});
    double before = 0.0;
    return evaluator.evaluate(parameters.data(), [&](double share) {
      done(share_of_run(index, (share - before) * costs_[index].fixed_seconds),
           {{.text = name}, {.text = "held-out text"}});
      before = share;
      throw_if_interrupted();
    });
  }

  /// Adds `planned_seconds` to the planned time of the completed work and updates the progress bar.
  void done(double planned_seconds, const std::vector<console::LinePart>& parts) {
    const std::lock_guard lock(mutex_);
    done_seconds_ += planned_seconds;
    show(parts);
  }

  void show(const std::vector<console::LinePart>& parts) {
    const double left = seconds_left(planned_seconds_, done_seconds_, seconds_since(begin_));
    bar_.show({.fraction = done_seconds_ / planned_seconds_, .seconds_left = left, .parts = parts});
  }

  const std::vector<Comparison>& comparisons_;
  const DemoBudget& budget_;
  const std::function<bool()>& interrupted_;
  std::vector<ComparisonCost> costs_;
  console::ProgressBar bar_;
  Clock::time_point begin_;
  double planned_seconds_ = 0.0;  ///< planned time of all comparisons, at the measured speed
  double done_seconds_ = 0.0;     ///< planned time of the completed work, which may differ from the time it took
  bool stopped_ = false;
  std::mutex mutex_;  ///< guards the state that the runs' threads share: the bar, done_seconds_, interrupted_, stopped_
};

}  // namespace

TrainingEnd show_training(const std::vector<Comparison>& comparisons, const DemoBudget& budget,
                          const std::function<bool()>& interrupted) {
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
