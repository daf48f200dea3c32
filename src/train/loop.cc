// SPDX-License-Identifier: Apache-2.0
#include "train/loop.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "io/file_error.hpp"
#include "train/metrics_log.hpp"

namespace headgate::train {

namespace {

using nlohmann::ordered_json;

void make_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) {
    io::fail(path, "cannot make the directory: {}", std::strerror(errno));
  }
}

bool due(std::int64_t step, std::int64_t every) { return every > 0 && step % every == 0; }

bool evaluation_due(const Trainer& trainer) {
  const TrainSettings& settings = trainer.settings();
  return settings.eval_tokens > 0 && settings.eval_every > 0 &&
         (due(trainer.steps_done(), settings.eval_every) || trainer.finished());
}

Progress advance(Trainer& trainer, const LoopOptions& options) {
  Progress progress;
  progress.step = trainer.step();
  const double seconds = progress.step.seconds;
  progress.tokens_per_second = static_cast<double>(trainer.settings().tokens_per_step()) / seconds;
  if (options.fma_peak_gflops > 0.0) {
    progress.mfu = trainer.flops_per_step() / (seconds * 1e9 * options.fma_peak_gflops);
  }
  if (evaluation_due(trainer)) progress.evaluation = trainer.evaluate();
  return progress;
}

ordered_json record_of(const Progress& progress) {
  ordered_json out = {{"step", progress.step.step},
                      {"loss", progress.step.loss},
                      {"grad_norm", progress.step.grad_norm},
                      {"lr", progress.step.lr},
                      {"tokens", progress.step.tokens},
                      {"seconds", progress.step.seconds},
                      {"tokens_per_second", progress.tokens_per_second}};
  if (progress.mfu) out["mfu"] = *progress.mfu;
  if (progress.step.spike) out["spike"] = true;
  if (progress.evaluation) out["eval"] = evaluation_json(*progress.evaluation);
  return out;
}

}  // namespace

std::string checkpoint_directory(const std::string& run) { return run + "/checkpoint"; }
std::string metrics_path(const std::string& run) { return run + "/metrics.jsonl"; }

LoopEnd run_loop(Trainer& trainer, LoopObserver& observer, const LoopOptions& options) {
  make_directory(options.run);
  const std::string checkpoint = checkpoint_directory(options.run);
  MetricsLog log(metrics_path(options.run), trainer.steps_done());
  const auto save = [&] {
    trainer.save(checkpoint);
    observer.saved(trainer.steps_done());
  };
  // A directory that takes no file is known before the first step, and a run that diverges early leaves its start.
  if (trainer.steps_done() == 0) save();
  while (!trainer.finished()) {
    const Progress progress = advance(trainer, options);
    log.add(record_of(progress));
    observer.after_step(progress);
    const bool interrupted = observer.interrupted();
    const bool stop = trainer.steps_done() == options.stop_at;
    if (interrupted || stop || trainer.finished() || due(trainer.steps_done(), trainer.settings().save_every)) save();
    if (trainer.finished()) break;
    if (interrupted) return LoopEnd::interrupted;
    if (stop) return LoopEnd::stopped;
  }
  return LoopEnd::finished;
}

}  // namespace headgate::train
