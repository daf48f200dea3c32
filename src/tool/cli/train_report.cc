// SPDX-License-Identifier: Apache-2.0
#include "tool/cli/train_report.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>

#include "models/io/units.hpp"
#include "models/layers/gate_variant.hpp"
#include "tool/cli/signals.hpp"
#include "tool/cli/verbs.hpp"
#include "tool/console/console.hpp"
#include "tool/console/shell_word.hpp"
#include "tool/console/terminal_text.hpp"

namespace headgate::cli {
namespace {

using console::bytes_text;
using console::duration_text;
using console::say;
using console::shell_word;
using console::terminal_text;

std::string model_text(const models::DecoderConfig& c) {
  return fmt::format(
      "model   {} layers, dim {}, {} heads on {} kv heads of {}, ffn {}, vocab {}: {} parameters\n"
      "gate    {}{}\n",
      c.layers, c.dim, c.heads, c.kv_heads, c.head_dim, c.ffn, c.vocab, models::parameter_count(c),
      layers::gate_name(c.gate), c.norm_placement == models::NormPlacement::sandwich ? ", sandwich norm" : "");
}

/// Returns up to two lines:
/// - with --init, the model whose parameters the run starts from
/// - if only a part of the model is trained, this part and its number of parameters
std::string start_text(const train::Trainer& trainer) {
  const train::TrainSettings& s = trainer.settings();
  std::string text;
  if (!s.init.empty()) text += fmt::format("init    {}\n", terminal_text(s.init));
  if (s.trained != train::TrainedPart::all) {
    text += fmt::format("trains  {}: {} parameters\n", word_of(s.trained), trainer.trained_count());
  }
  return text;
}

std::string data_text(const train::SequenceSource& source, train::Task task) {
  std::string text = fmt::format("data    {}, {}\n", word_of(task), source.description());
  for (const std::string& what : source.left_out().phrases())
    text += fmt::format("        left out: {}\n", terminal_text(what));
  return text;
}

std::string memory_text(const train::Trainer& trainer) {
  double total = 0.0;
  std::string items;
  for (const models::MemoryItem& item : trainer.memory_plan()) {
    total += static_cast<double>(item.bytes);
    items += fmt::format("        {:>10}  {}\n", bytes_text(static_cast<double>(item.bytes)), item.name);
  }
  return fmt::format("memory  {} for every step, allocated now:\n{}", bytes_text(total), items);
}

std::string processes_text(const train::Trainer& trainer) {
  const int processes = trainer.group().size();
  if (processes == 1) return "";
  const std::int64_t batch = trainer.settings().batch;
  return fmt::format("        divided among {} processes: {} of the {} sequences of a pass each\n", processes,
                     batch / processes, batch);
}

std::string checkpoint_of(const train::Run& run) { return terminal_text(run.directory->checkpoint()); }

std::string resume_command(const std::string& out) {
  return fmt::format("headgate train --resume --out {}", shell_word(out));
}

}  // namespace

void print_start(const train::Run& run) {
  const train::Trainer& trainer = *run.trainer;
  const train::TrainSettings& s = trainer.settings();
  std::string text = model_text(trainer.config()) + start_text(trainer) + data_text(*run.source, s.task);
  if (!trainer.finished()) {
    text +=
        fmt::format("run     steps {} to {}, {} x {} tokens in {} pass{} each; lr {:g} {}, warm-up {}; {} thread{}\n",
                    trainer.steps_done() + 1, s.schedule.steps, s.batch * s.accumulate, s.seq_len, s.accumulate,
                    s.accumulate == 1 ? "" : "es", s.schedule.peak, word_of(s.schedule.decay), s.schedule.warmup,
                    s.threads, s.threads == 1 ? "" : "s") +
        processes_text(trainer) + memory_text(trainer);
  }
  say(stdout, text);
}

void print_nothing_to_do(const train::Trainer& trainer) {
  const std::int64_t done = trainer.steps_done(), steps = trainer.settings().schedule.steps;
  say(stdout,
      done == steps
          ? fmt::format("done    all {} steps are done already; a larger --steps continues the run\n", steps)
          : fmt::format("done    {} steps are done already, more than --steps {}; a larger one continues the run\n",
                        done, steps));
}

void print_end(const train::Run& run, double seconds, const std::string& loss) {
  const std::int64_t spikes = run.trainer->spikes();
  say(stdout, fmt::format("done    {} steps in {}{}{}, {} loss spike{}; {}\n", run.trainer->steps_done(),
                          duration_text(seconds), loss.empty() ? "" : ", ", loss, spikes, spikes == 1 ? "" : "s",
                          checkpoint_of(run)));
}

int report_stop(const train::Trainer& trainer, const std::string& out, int signal_number) {
  say(stderr,
      fmt::format(
          "headgate train: {} at step {} of {}, {} loss spikes so far; everything is saved. To continue:\n  {}\n",
          signal_number != 0 ? "interrupted" : "stopped", trainer.steps_done(), trainer.settings().schedule.steps,
          trainer.spikes(), resume_command(out)));
  return signal_number != 0 ? kSignalStatus + signal_number : kSuccess;
}

int report_divergence(const train::Diverged& error, const train::Run& run) {
  say(stderr,
      fmt::format("headgate train: {}; stopped after {} loss spikes. The last good checkpoint is in {}; a lower "
                  "--lr, a longer --warmup or a {}--clip may help\n",
                  error.what(), run.trainer->spikes(), checkpoint_of(run),
                  run.trainer->settings().clip > 0.0 ? "smaller " : ""));
  return kCheckFailed;
}

int report_lost_group(const train::GroupLost& error, const train::Run& run, const std::string& out) {
  say(stderr, fmt::format("headgate train: {} at step {} of {}; {} keeps its last save: {}\n", error.what(),
                          run.trainer->steps_done() + 1, run.trainer->settings().schedule.steps, checkpoint_of(run),
                          resume_command(out)));
  return kSignalStatus + SignalWatch::received();
}

int report_loss(const train::Run& run, const std::string& out, const train::LoopEnd& end) {
  const std::int64_t done = run.trainer->steps_done();
  const std::string checkpoint = checkpoint_of(run);
  if (end.not_saved.empty()) {
    say(stderr,
        fmt::format("headgate train: {}; it lacks lines up to step {}. The checkpoint of step {} is complete, in {}\n",
                    terminal_text(end.not_logged), done, end.saved_step, checkpoint));
  } else {
    say(stderr, fmt::format("headgate train: ended at step {} of {}, but steps {} to {} are lost: {}. {} has step {}. "
                            "To repeat them:\n  {}\n",
                            done, run.trainer->settings().schedule.steps, end.saved_step + 1, done,
                            terminal_text(end.not_saved), checkpoint, end.saved_step, resume_command(out)));
  }
  return kBadUsage;
}

}  // namespace headgate::cli
