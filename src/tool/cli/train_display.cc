// SPDX-License-Identifier: Apache-2.0
#include "tool/cli/train_display.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "models/evaluate/loss.hpp"
#include "models/io/units.hpp"
#include "models/train/metrics_log.hpp"
#include "tool/cli/signals.hpp"
#include "tool/console/console.hpp"
#include "tool/console/terminal_text.hpp"

namespace headgate::cli {
namespace {

using console::duration_text;
using console::say;

void print_line(const std::string& line) { say(stdout, line + "\n"); }

}  // namespace

std::string evaluation_line(const train::Evaluation& evaluation) {
  const metrics::Report& report = evaluation.report;
  std::string line;
  for (const metrics::Metric* metric : report.metrics) {
    if (metric->training_text == nullptr) continue;
    line += metric->training_text(metric->scope == metrics::Scope::triggers ? report.backcopy.value() : report.overall);
  }
  if (const auto bits = report.overall.find(metrics::kBitsPerByte)) line += fmt::format(", {:.4f} bits a byte", *bits);
  return line;
}

std::string loss_text(double loss, std::optional<double> bits_per_byte) {
  const std::string bits = bits_per_byte ? fmt::format(" ({:.4f} bits a byte)", *bits_per_byte) : "";
  return fmt::format("loss {:.4f}{}", loss, bits);
}

TrainDisplay::TrainDisplay(const train::Trainer& trainer, std::string checkpoint, std::int64_t log_every,
                           TrainLines lines)
    : lines_(lines),
      checkpoint_(std::move(checkpoint)),
      steps_(trainer.settings().schedule.steps),
      log_every_(log_every) {}

console::StatusLine TrainDisplay::status(const train::Progress& progress) const {
  const train::StepReport& step = progress.step;
  console::StatusLine line{.fraction = static_cast<double>(step.step) / static_cast<double>(steps_),
                           .seconds_left = seconds_per_step_ * static_cast<double>(steps_ - step.step)};
  line.parts.push_back({.text = fmt::format("{:.0f} tok/s", progress.tokens_per_second), .essential = true});
  line.parts.push_back({.text = fmt::format("{}/{}", step.step, steps_)});
  line.parts.push_back({.text = fmt::format("loss {:.4f}", step.loss)});
  if (progress.mfu) line.parts.push_back({.text = fmt::format("MFU {:.0f}%", 100.0 * *progress.mfu)});
  line.parts.push_back({.text = fmt::format("lr {:.2e}", step.lr)});
  line.parts.push_back({.text = fmt::format("|g| {:.2f}", step.grad_norm)});
  if (step.bits_per_byte) line.parts.push_back({.text = fmt::format("{:.4f} bits a byte", *step.bits_per_byte)});
  return line;
}

std::string TrainDisplay::log_line(const train::Progress& progress) const {
  const train::StepReport& step = progress.step;
  const double left = seconds_per_step_ * static_cast<double>(steps_ - step.step);
  const std::string mfu = progress.mfu ? fmt::format("  MFU {:.0f}%", 100.0 * *progress.mfu) : "";
  return fmt::format("step {}/{}  {}  |g| {:.2f}  lr {:.2e}  {:.0f} tok/s{}  {} left", step.step, steps_,
                     loss_text(step.loss, step.bits_per_byte), step.grad_norm, step.lr, progress.tokens_per_second, mfu,
                     duration_text(left));
}

void TrainDisplay::print_log(const std::string& line) const {
  if (lines_ == TrainLines::log) print_line(line);
}

void TrainDisplay::after_step(const train::Progress& progress) {
  constexpr double kShare = 0.1;  // weight of the newest step in the running mean of the step time
  const train::StepReport& step = progress.step;
  seconds_per_step_ += (step.seconds - seconds_per_step_) * (seconds_per_step_ > 0.0 ? kShare : 1.0);
  loss_ = step.loss;
  bits_per_byte_ = step.bits_per_byte;
  if (bar_.visible()) {
    bar_.show(status(progress));
  } else if (step.step == 1 || step.step % log_every_ == 0 || step.step == steps_) {
    print_log(log_line(progress));
  }
  if (lines_ == TrainLines::records) {
    bar_.clear();
    print_line(train::metrics_line(progress));
    return;
  }
  if (step.spike) {
    bar_.clear();
    print_log(fmt::format("step {}: the loss jumps to {:.4f}", step.step, step.loss));
  }
  if (progress.evaluation) evaluated(step.step, *progress.evaluation);
}

void TrainDisplay::evaluated(std::int64_t step, const train::Evaluation& evaluation) {
  bar_.clear();
  print_log(fmt::format("held out, step {}: {}", step, evaluation_line(evaluation)));
}

void TrainDisplay::saved(std::int64_t step, const std::string& directory) {
  if (directory != checkpoint_) {
    bar_.clear();
    say(stderr, fmt::format("headgate train: step {} is saved in {}: {} holds files that are not part of a checkpoint. "
                            "--resume and `headgate eval` use the newest\n",
                            step, console::terminal_text(directory), console::terminal_text(checkpoint_)));
    checkpoint_ = directory;
  }
  if (!bar_.visible() && step > 0) print_log(fmt::format("step {}: saved", step));
}

void TrainDisplay::not_written(const std::string& what) {
  bar_.clear();
  say(stderr, fmt::format("headgate train: {}\n", console::terminal_text(what)));
}

bool TrainDisplay::interrupted() { return SignalWatch::received() != 0; }

}  // namespace headgate::cli
