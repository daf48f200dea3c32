// SPDX-License-Identifier: Apache-2.0
#include "models/train/loop.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "models/io/file_error.hpp"
#include "models/train/run.hpp"

namespace headgate::train {
namespace {

using nlohmann::json;
using testing::SmallRun;
using Steps = std::vector<std::int64_t>;

class Recorder : public LoopObserver {
 public:
  explicit Recorder(std::int64_t interrupt_at = 0) : interrupt_at_(interrupt_at) {}

  void after_step(const Progress& progress) override {
    last_ = progress.step.step;
    if (progress.evaluation) evaluations.push_back(last_);
    if (after) after(last_);
  }
  void evaluated(std::int64_t step, const Evaluation& /*evaluation*/) override { late_evaluations.push_back(step); }
  void saved(std::int64_t step, const std::string& directory) override {
    saves.push_back(step);
    if (places.empty() || places.back() != directory) places.push_back(directory);
  }
  void not_written(const std::string& what) override { troubles.push_back(what); }
  bool interrupted() override {
    ++asked;
    return last_ == interrupt_at_ || (interrupts && interrupts());
  }

  Steps evaluations, late_evaluations, saves;
  std::int64_t asked = 0;
  std::vector<std::string> places, troubles;
  std::function<void(std::int64_t)> after;  ///< called after each step with its number, if set
  std::function<bool()> interrupts;         ///< returns whether to interrupt, if set

 private:
  std::int64_t interrupt_at_;
  std::int64_t last_ = -1;
};

std::vector<json> records(const std::string& run) {
  std::vector<json> out;
  std::istringstream lines(testing::read_bytes(metrics_path(run)));
  for (std::string line; std::getline(lines, line);) out.push_back(json::parse(line));
  return out;
}

/// Removes times from records, which may differ between runs with the same bits.
std::vector<json> timeless(std::vector<json> all) {
  for (json& record : all) {
    for (const char* key : {"seconds", "tokens_per_second", "mfu"}) record.erase(key);
  }
  return all;
}

/// Runs the loop in a directory, as a fresh run if it holds no checkpoint yet.
LoopEnd loop(Trainer& trainer, LoopObserver& observer, const std::string& directory, std::int64_t stop_at = 0) {
  const bool begun = std::filesystem::exists(newest_checkpoint(directory));
  RunDirectory run(directory, begun ? RunStart::resumed : RunStart::fresh);
  LoopOptions options;
  options.stop_at = stop_at;
  options.fma_peak_gflops = 100.0;
  return run_loop(trainer, run, observer, options);
}

std::int64_t saved_step(const std::string& run) { return checkpoint_step(newest_checkpoint(run)); }

/// Limits the size of files, as on a full disk, with EFBIG instead of ENOSPC.
class FileLimit {
 public:
  FileLimit() : handler_(std::signal(SIGXFSZ, SIG_IGN)) { ::getrlimit(RLIMIT_FSIZE, &before_); }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;
  ~FileLimit() {
    lift();
    std::signal(SIGXFSZ, handler_);
  }
  void set(std::uint64_t bytes) const {
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  void lift() const { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(Loop, Run_AtItsIntervals_SavesEvaluatesAndLogs) {
  SmallRun run;
  run.settings.schedule.steps = 10;
  run.settings.save_every = 4;
  run.settings.eval_every = 3;
  Trainer trainer = run.fresh();
  Recorder recorder;
  EXPECT_EQ(loop(trainer, recorder, run.path("run")).reason, LoopReason::finished);
  EXPECT_EQ(recorder.saves, (Steps{0, 4, 8, 10}));
  EXPECT_EQ(recorder.evaluations, (Steps{3, 6, 9, 10}));
  const std::vector<json> log = records(run.path("run"));
  ASSERT_EQ(log.size(), 10U);
  for (std::size_t i = 0; i < log.size(); ++i) {
    EXPECT_EQ(log[i].at("step"), i + 1);
    for (const char* key : {"loss", "grad_norm", "lr", "tokens", "seconds", "tokens_per_second", "mfu"}) {
      EXPECT_TRUE(log[i].at(key).is_number()) << key;
    }
    EXPECT_DOUBLE_EQ(log[i].at("mfu").get<double>(),
                     trainer.flops_per_step() / log[i].at("seconds").get<double>() / 100e9);
    EXPECT_EQ(log[i].contains("eval"), (i + 1) % 3 == 0 || i + 1 == 10);
  }
  EXPECT_TRUE(log[2].at("eval").at("first_token_attention").is_number());
  EXPECT_EQ(log[2].at("eval").at("layers").size(), 2U);
}

TEST(Loop, Run_InterruptedAndResumed_IsBitwiseIdentical) {
  SmallRun run;
  run.settings.eval_every = 7;
  Trainer whole = run.fresh();
  Recorder quiet;
  loop(whole, quiet, run.path("whole"));

  Trainer first = run.fresh();
  Recorder interrupted(10);
  EXPECT_EQ(loop(first, interrupted, run.path("parts")).reason, LoopReason::interrupted);
  EXPECT_EQ(interrupted.saves, (Steps{0, 10}));
  Trainer second = run.resumed(newest_checkpoint(run.path("parts")));
  Recorder rest;
  EXPECT_EQ(loop(second, rest, run.path("parts")).reason, LoopReason::finished);
  EXPECT_EQ(rest.saves, (Steps{20}));

  for (const char* file : {"/model.safetensors", "/optimizer.safetensors", "/trainer_state.json", "/config.json"}) {
    EXPECT_EQ(testing::read_bytes(newest_checkpoint(run.path("parts")) + file),
              testing::read_bytes(newest_checkpoint(run.path("whole")) + file))
        << file;
  }
  EXPECT_EQ(timeless(records(run.path("parts"))), timeless(records(run.path("whole"))));
}

/// Expects two runs to have left the same bytes: checkpoints, and records without times.
void expect_same_run(const std::string& run, const std::string& other) {
  for (const char* file : {"/model.safetensors", "/optimizer.safetensors", "/trainer_state.json", "/config.json"}) {
    EXPECT_EQ(testing::read_bytes(newest_checkpoint(run) + file), testing::read_bytes(newest_checkpoint(other) + file))
        << file;
  }
  EXPECT_EQ(timeless(records(run)), timeless(records(other)));
}

TEST(Loop, Run_InterruptedWithinAStep_IsBitwiseIdenticalAfterResume) {
  SmallRun run;
  run.settings.eval_every = 4;
  run.settings.schedule.steps = 8;
  Trainer whole = run.fresh();
  Recorder all;
  loop(whole, all, run.path("whole"));
  EXPECT_GT(all.asked, 8 * 20) << "asked within steps";

  // Each part ends a little later than the one before: within forward and backward passes, evaluations and saved steps.
  std::int64_t parts = 0;
  for (std::int64_t questions = 3; parts < 200; questions += 7, ++parts) {
    const bool begun = std::filesystem::exists(run.path("parts"));
    Trainer trainer = begun ? run.resumed(newest_checkpoint(run.path("parts"))) : run.fresh();
    const std::int64_t before = trainer.steps_done();
    Recorder recorder;
    recorder.interrupts = [&] { return recorder.asked >= questions; };
    const LoopEnd end = loop(trainer, recorder, run.path("parts"));
    EXPECT_EQ(end.saved_step, trainer.steps_done());
    EXPECT_EQ(saved_step(run.path("parts")), trainer.steps_done());
    EXPECT_EQ(records(run.path("parts")).size(), static_cast<std::size_t>(trainer.steps_done()));
    if (trainer.steps_done() == before) {
      EXPECT_EQ(recorder.saves, begun ? Steps{} : Steps{0}) << "a resumed run has its first checkpoint";
    }
    if (end.reason == LoopReason::finished) break;
    EXPECT_EQ(end.reason, LoopReason::interrupted);
  }
  EXPECT_GT(parts, 5);
  expect_same_run(run.path("parts"), run.path("whole"));
}

TEST(Loop, LastEvaluation_Interrupted_IsAddedOnResume) {
  SmallRun run;
  run.settings.eval_every = 100;
  run.settings.schedule.steps = 3;
  Trainer whole = run.fresh();
  Recorder all;
  loop(whole, all, run.path("whole"));

  Trainer first = run.fresh();
  Recorder interrupted;
  interrupted.interrupts = [&] { return first.finished(); };  // interrupts after the last update
  EXPECT_EQ(loop(first, interrupted, run.path("parts")).reason, LoopReason::interrupted);
  EXPECT_EQ(saved_step(run.path("parts")), 3);
  EXPECT_FALSE(records(run.path("parts")).back().contains("eval"));

  Trainer second = run.resumed(newest_checkpoint(run.path("parts")));
  {
    const RunDirectory directory(run.path("parts"), RunStart::resumed);
    EXPECT_TRUE(lacks_evaluation(second, directory));
  }
  Recorder rest;
  EXPECT_EQ(loop(second, rest, run.path("parts")).reason, LoopReason::finished);
  EXPECT_EQ(rest.late_evaluations, Steps{3});
  expect_same_run(run.path("parts"), run.path("whole"));
}

TEST(Loop, Steps_AfterTheLastSave_AreRepeatedOnResume) {
  SmallRun run;
  run.settings.save_every = 5;
  Trainer whole = run.fresh();
  Recorder quiet;
  loop(whole, quiet, run.path("run"));
  const std::vector<json> expected = timeless(records(run.path("run")));

  // Continues as after SIGKILL at step 8: the checkpoint is that of step 5, the log has lines up to step 8.
  Trainer killed = run.fresh();
  loop(killed, quiet, run.path("again"), 5);
  std::istringstream whole_log(testing::read_bytes(metrics_path(run.path("run"))));
  std::string kept = testing::read_bytes(metrics_path(run.path("again")));
  std::string line;
  for (int step = 1; step <= 7 && std::getline(whole_log, line); ++step) kept += step > 5 ? line + "\n" : "";
  testing::write_bytes(metrics_path(run.path("again")), kept + "{\"step\":8,\"lo");
  Trainer second = run.resumed(newest_checkpoint(run.path("again")));
  loop(second, quiet, run.path("again"));
  EXPECT_EQ(timeless(records(run.path("again"))), expected);
}

TEST(Loop, Run_StopRequested_Stops) {
  SmallRun run;
  Trainer trainer = run.fresh();
  Recorder recorder;
  EXPECT_EQ(loop(trainer, recorder, run.path("run"), 6).reason, LoopReason::stopped);
  EXPECT_EQ(recorder.saves, (Steps{0, 6}));
  EXPECT_EQ(trainer.steps_done(), 6);
}

TEST(Loop, Run_Diverged_KeepsItsLastGoodCheckpoint) {
  SmallRun run;
  Trainer start = run.fresh();
  Checkpoint checkpoint;
  start.save(run.path("start"));
  checkpoint = load_checkpoint(run.path("start"), CheckpointParts::all);
  TrainerState state = read_state(checkpoint.trainer_state);
  state.settings.schedule = {Decay::constant, 1e6, 0.1, 0, 20};  // a rate that makes training diverge
  state.settings.save_every = 1;
  Trainer wild(std::move(checkpoint), state, run.source());
  Recorder recorder;
  EXPECT_THROW(loop(wild, recorder, run.path("run")), Diverged);
  ASSERT_FALSE(recorder.saves.empty());
  const Checkpoint last = load_checkpoint(newest_checkpoint(run.path("run")), CheckpointParts::all);
  EXPECT_EQ(read_state(last.trainer_state).step, recorder.saves.back());
  EXPECT_EQ(records(run.path("run")).size(), static_cast<std::size_t>(wild.steps_done()));
}

TEST(Loop, CheckpointDirectory_WithForeignFiles_IsSavedBeside) {
  SmallRun run;
  run.settings.save_every = 5;
  Trainer whole = run.fresh();
  Recorder quiet;
  loop(whole, quiet, run.path("whole"));

  const std::string place = run.path("run") + "/checkpoint";
  Trainer trainer = run.fresh();
  Recorder recorder;
  recorder.after = [&place](std::int64_t step) {
    if (step == 7) testing::write_bytes(place + "/.DS_Store", "a visitor's");
  };
  const LoopEnd end = loop(trainer, recorder, run.path("run"), 15);
  EXPECT_EQ(end.not_saved, "");
  EXPECT_EQ(recorder.saves, (Steps{0, 5, 10, 15}));
  EXPECT_EQ(recorder.places, (std::vector{place, place + ".1"}));
  EXPECT_EQ(checkpoint_step(place), 5);
  EXPECT_EQ(testing::read_bytes(place + "/.DS_Store"), "a visitor's");

  // Resuming uses the newest one, and saves replace it.
  EXPECT_EQ(checkpoints_of(run.path("run")), (std::vector{place + ".1", place}));
  Trainer second = run.resumed(newest_checkpoint(run.path("run")));
  EXPECT_EQ(second.steps_done(), 15);
  loop(second, quiet, run.path("run"));
  EXPECT_EQ(second.parameters(), whole.parameters());
  EXPECT_EQ(checkpoint_step(place + ".1"), 20);
  EXPECT_EQ(timeless(records(run.path("run"))), timeless(records(run.path("whole"))));
}

TEST(Loop, DirectoriesOfTheUser_BesideACheckpoint_AreNotReplaced) {
  SmallRun run;
  const std::string place = run.path("run") + "/checkpoint";
  Trainer trainer = run.fresh();
  Recorder recorder;
  recorder.after = [&place](std::int64_t step) {
    if (step != 3) return;
    std::filesystem::create_directory(place + ".1");  // a directory of the user
    testing::write_bytes(place + "/notes", "mine");
  };
  loop(trainer, recorder, run.path("run"), 4);
  EXPECT_TRUE(std::filesystem::is_empty(place + ".1"));
  EXPECT_EQ(checkpoint_step(place + ".2"), 4);
}

TEST(Loop, Save_DiskFullForAWhile_ContinuesTheRun) {
  SmallRun run;
  run.settings.save_every = 3;
  Trainer whole = run.fresh();
  Recorder quiet;
  loop(whole, quiet, run.path("whole"));

  const FileLimit limit;
  Trainer trainer = run.fresh();
  Recorder recorder;
  recorder.after = [&limit](std::int64_t step) {
    if (step == 4) limit.set(700);  // the log is larger already, and a checkpoint is far larger
    if (step == 10) limit.lift();
  };
  const LoopEnd end = loop(trainer, recorder, run.path("run"));
  EXPECT_EQ(end.reason, LoopReason::finished);
  EXPECT_EQ(end.not_saved + end.not_logged, "");
  EXPECT_EQ(recorder.saves, (Steps{0, 3, 12, 15, 18, 20}));
  ASSERT_EQ(recorder.troubles.size(), 3U) << "the log once, and the saves of steps 6 and 9";
  EXPECT_NE(recorder.troubles[0].find("metrics.jsonl: cannot write: File too large"), std::string::npos);
  EXPECT_NE(recorder.troubles[0].find("lines from step 5 on"), std::string::npos) << recorder.troubles[0];
  EXPECT_TRUE(recorder.troubles[1].starts_with("step 6 is not saved: ")) << recorder.troubles[1];
  EXPECT_NE(recorder.troubles[2].find("keeps step 3"), std::string::npos) << recorder.troubles[2];
  EXPECT_EQ(trainer.parameters(), whole.parameters());
  EXPECT_EQ(timeless(records(run.path("run"))), timeless(records(run.path("whole")))) << "no line is lost or torn";
}

TEST(Loop, Save_DiskStaysFull_LeavesTheLastGoodCheckpoint) {
  SmallRun run;
  run.settings.save_every = 5;
  const FileLimit limit;
  Trainer trainer = run.fresh();
  Recorder recorder(13);
  recorder.after = [&limit](std::int64_t step) {
    if (step == 7) limit.set(700);
  };
  const LoopEnd end = loop(trainer, recorder, run.path("run"));
  limit.lift();
  EXPECT_EQ(end.reason, LoopReason::interrupted);
  EXPECT_EQ(end.saved_step, 5);
  EXPECT_NE(end.not_saved.find("File too large"), std::string::npos) << end.not_saved;
  EXPECT_NE(end.not_logged.find("metrics.jsonl: cannot write"), std::string::npos) << end.not_logged;
  EXPECT_EQ(saved_step(run.path("run")), 5);
  // Resuming from what was saved gives the same result.
  Trainer second = run.resumed(newest_checkpoint(run.path("run")));
  Recorder rest;
  loop(second, rest, run.path("run"));
  Trainer whole = run.fresh();
  loop(whole, rest, run.path("whole"));
  EXPECT_EQ(second.parameters(), whole.parameters());
  EXPECT_EQ(timeless(records(run.path("run"))), timeless(records(run.path("whole"))));
}

TEST(Loop, Save_NotWritable_NamesThePath) {
  SmallRun run;
  Trainer trainer = run.fresh();
  Recorder recorder;
  EXPECT_THROW(loop(trainer, recorder, "/nonexistent/run"), io::FileError);
  EXPECT_EQ(trainer.steps_done(), 0);
}

}  // namespace
}  // namespace headgate::train
