// SPDX-License-Identifier: Apache-2.0
#include "cli/train_display.hpp"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <utility>

#include "cli/console.hpp"

namespace headgate::cli {
namespace {

constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP};

// Both are also read and written by the handler, in whatever thread.
std::atomic<int> g_signal{0};
std::atomic<std::int64_t> g_noted_at{0};  // milliseconds of the monotonic clock
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free);

std::int64_t milliseconds_now() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

extern "C" void headgate_cli_note_signal(int number) {
  constexpr std::int64_t kCopies = 1000;
  const std::int64_t now = milliseconds_now();
  int none = 0;
  if (g_signal.compare_exchange_strong(none, number)) {
    g_noted_at.store(now);
  } else if (number != SIGHUP && now - g_noted_at.load() >= kCopies) {
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
}

void print_line(const std::string& line) { say(stdout, line + "\n"); }

}  // namespace

std::string duration_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::ceil(seconds));
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string evaluation_line(const train::Evaluation& evaluation) {
  const models::AttentionStatistics& all = evaluation.report.overall.attention;
  std::string line = fmt::format(
      "loss {:.4f} nats, first-token attention {:.3f} (uniform {:.3f}), sink rate {:.2f}, "
      "max |h| {:.1f}",
      evaluation.report.overall.loss.nats, all.first_token_attention, all.first_token_attention_uniform, all.sink_rate,
      all.massive_activation);
  if (all.gate_mean) {
    line += fmt::format(", gate {:.3f} ({:.1f} % below 0.1)", *all.gate_mean, 100.0 * all.gate_below_tenth.value_or(0));
  }
  if (evaluation.backcopy) {
    line += fmt::format("; BOS attention {:.3f}, after a trigger {:.3f}", evaluation.backcopy->bos_attention_other,
                        evaluation.backcopy->bos_attention_trigger);
  }
  return line;
}

TrainDisplay::TrainDisplay(const train::Trainer& trainer, std::string checkpoint, std::int64_t log_every)
    : bar_(16), checkpoint_(std::move(checkpoint)), steps_(trainer.settings().schedule.steps), log_every_(log_every) {}

std::string TrainDisplay::status(const train::Progress& progress) const {
  const train::StepReport& step = progress.step;
  const double left = seconds_per_step_ * static_cast<double>(steps_ - step.step);
  const std::string mfu = progress.mfu ? fmt::format("  MFU {:.0f}%", 100.0 * *progress.mfu) : "";
  return fmt::format("{}/{}  loss {:.4f}  |g| {:.2f}  lr {:.2e}  {:.0f} tok/s{}  {} left", step.step, steps_, step.loss,
                     step.grad_norm, step.lr, progress.tokens_per_second, mfu, duration_text(left));
}

void TrainDisplay::after_step(const train::Progress& progress) {
  constexpr double kShare = 0.1;  // of the newest step in the running mean
  const train::StepReport& step = progress.step;
  seconds_per_step_ += (step.seconds - seconds_per_step_) * (seconds_per_step_ > 0.0 ? kShare : 1.0);
  loss_ = step.loss;
  if (bar_.visible()) {
    bar_.show(static_cast<double>(step.step) / static_cast<double>(steps_), status(progress));
  } else if (step.step == 1 || step.step % log_every_ == 0 || step.step == steps_) {
    print_line("step " + status(progress));
  }
  if (step.spike) {
    bar_.clear();
    print_line(fmt::format("step {}: the loss jumps to {:.4f}", step.step, step.loss));
  }
  if (progress.evaluation) {
    bar_.clear();
    print_line(fmt::format("held out, step {}: {}", step.step, evaluation_line(*progress.evaluation)));
  }
}

void TrainDisplay::saved(std::int64_t step, const std::string& directory) {
  if (directory != checkpoint_) {
    bar_.clear();
    say(stderr, fmt::format("headgate train: step {} is saved in {}: files in {} are no part of a checkpoint. "
                            "--resume and `headgate eval` take the newest\n",
                            step, directory, checkpoint_));
    checkpoint_ = directory;
  }
  if (!bar_.visible() && step > 0) print_line(fmt::format("step {}: saved", step));
}

void TrainDisplay::not_written(const std::string& what) {
  bar_.clear();
  say(stderr, fmt::format("headgate train: {}\n", what));
}

bool TrainDisplay::interrupted() { return SignalWatch::received() != 0; }

SignalWatch::SignalWatch() {
  g_signal.store(0);
  for (const int number : kSignals) {
    struct sigaction action {};
    action.sa_handler = headgate_cli_note_signal;
    action.sa_flags = SA_RESTART;
    struct sigaction before {};
    // What the parent wants ignored, as nohup does, stays ignored.
    if (::sigaction(number, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) {
      ::sigaction(number, &action, nullptr);
    }
  }
}

SignalWatch::~SignalWatch() {
  for (const int number : kSignals) {
    struct sigaction now {};
    if (::sigaction(number, nullptr, &now) == 0 && now.sa_handler == headgate_cli_note_signal) {
      std::signal(number, SIG_DFL);
    }
  }
}

int SignalWatch::received() { return g_signal.load(); }

}  // namespace headgate::cli
