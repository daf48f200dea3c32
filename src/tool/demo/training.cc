// SPDX-License-Identifier: Apache-2.0
#include "tool/demo/training.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "library/core/stopwatch.hpp"
#include "models/io/units.hpp"
#include "models/train/trainer.hpp"
#include "tool/console/progress.hpp"
#include "tool/console/table.hpp"

namespace headgate::demo {

namespace {

using console::duration_text;

/// Thrown when interrupted() returns true. show_training() catches it.
struct Interruption {};

/// Trains every model of a comparison with every seed.
class Training {
 public:
  Training(const Comparison& comparison, const std::function<bool()>& interrupted)
      : comparison_(comparison), interrupted_(interrupted) {
    for (const ComparedModel& model : comparison.models) {
      trained_.push_back({model, std::vector<train::Evaluation>(comparison.sources.size()), {}, 0.0});
    }
  }

  std::size_t runs() const { return comparison_.models.size() * comparison_.sources.size(); }
  std::size_t at_a_time() const {
    return std::clamp<std::size_t>(static_cast<std::size_t>(comparison_.settings.threads), 1, runs());
  }

  /// Trains all models with the first seed, then all with the next, several runs at a time.
  /// After the first exception no further run starts. Rethrows the exception when the active runs have ended.
  std::vector<TrainedModel> run() {
    std::atomic<std::size_t> next = 0;
    const auto work = [&] {
      const std::size_t models = comparison_.models.size();
      for (std::size_t n = next++; n < runs(); n = next++) {
        try {
          train_one(trained_[n % models], n / models);
        } catch (...) {
          const std::lock_guard lock(mutex_);
          if (!error_) error_ = std::current_exception();
          next = runs();
        }
      }
    };
    std::vector<std::jthread> threads;  // jthread joins even if creating a later thread throws
    for (std::size_t n = 1; n < at_a_time(); ++n) threads.emplace_back(work);
    work();
    threads.clear();
    bar_.clear();
    if (error_) std::rethrow_exception(error_);
    return std::move(trained_);
  }

 private:
  void train_one(TrainedModel& out, std::size_t seed) {
    train::TrainSettings settings = comparison_.settings;
    settings.threads = 1;
    settings.seed += seed;
    settings.eval_tokens = 0;  // turns off the trainer's own evaluations, which cannot be interrupted
    const std::string name =
        comparison_.sources.size() == 1 ? out.model.name : fmt::format("{} {}", out.model.name, settings.seed);
    train::Trainer trainer(out.model.config, settings, *comparison_.sources[seed]);
    double seconds = 0.0;
    train::StepReport step;
    while (!trainer.finished()) {
      step = trainer.step();
      seconds += step.seconds;
      advance(1.0, fmt::format("{}  {}/{}  loss {:.4f}", name, step.step, settings.schedule.steps, step.loss));
    }
    train::Evaluation evaluation = evaluate(out.model.config, *comparison_.sources[seed], name, trainer.parameters());
    const double speed = static_cast<double>(step.tokens) / seconds;
    const std::lock_guard lock(mutex_);
    out.evaluations[seed] = std::move(evaluation);
    if (seed == 0) out.parameters = trainer.parameters();
    out.tokens_per_second += speed / static_cast<double>(comparison_.sources.size());
    if (!bar_.visible()) {
      fmt::print("     {:<14} {} steps in {}, loss {:.4f} at the last, {:.0f} tokens/s\n", name, trainer.steps_done(),
                 duration_text(seconds), step.loss, speed);
      std::fflush(stdout);
    }
  }

  train::Evaluation evaluate(const models::DecoderConfig& config, const train::SequenceSource& source,
                             const std::string& name, const std::vector<float>& parameters) {
    const train::TrainSettings& settings = comparison_.settings;
    const auto plan =
        train::plan_evaluation(source.held_out_count(), settings.eval_tokens / settings.seq_len, settings.batch);
    train::HeldOutEvaluator evaluator(config, source, plan, comparison_.metrics, {.threads = 1});
    return evaluator.evaluate(parameters.data(), [&](double) { advance(0.0, name + "  held-out text"); });
  }

  /// Counts `steps` finished training steps and updates the progress bar.
  /// Throws Interruption if the demo is interrupted or another run has failed.
  void advance(double steps, const std::string& text) {
    const std::lock_guard lock(mutex_);
    steps_done_ += steps;
    bar_.show(steps_done_ / static_cast<double>(comparison_.settings.schedule.steps) / static_cast<double>(runs()),
              {.text = text});
    if (error_ || interrupted_()) throw Interruption{};
  }

  const Comparison& comparison_;
  const std::function<bool()>& interrupted_;
  std::vector<TrainedModel> trained_;
  console::ProgressBar bar_;
  double steps_done_ = 0.0;
  std::exception_ptr error_;  ///< first exception that a run threw
  std::mutex mutex_;          ///< guards the members above, which the threads of all runs share
};

}  // namespace

std::vector<TrainedModel> show_training(const Comparison& comparison, const std::function<bool()>& interrupted) {
  const Stopwatch watch;
  const train::TrainSettings& settings = comparison.settings;
  Training training(comparison, interrupted);
  const std::size_t seeds = comparison.sources.size();
  fmt::print("\n\n{}: {} models{} of {} steps, {} x {} tokens each, {} at a time\n\n{}\n", comparison.name,
             comparison.models.size(), seeds > 1 ? fmt::format(" with {} seeds", seeds) : "", settings.schedule.steps,
             settings.batch * settings.accumulate, settings.seq_len, training.at_a_time(),
             console::paragraph(comparison.introduction));
  std::fflush(stdout);
  try {
    std::vector<TrainedModel> trained = training.run();
    fmt::print("\n{}\n     {} runs in {}\n", result_text(comparison, trained), training.runs(),
               duration_text(watch.seconds()));
    std::fflush(stdout);
    return trained;
  } catch (const Interruption&) {
    return {};
  }
}

}  // namespace headgate::demo
