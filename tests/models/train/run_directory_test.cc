// SPDX-License-Identifier: Apache-2.0
#include "models/train/run_directory.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>

#include "models/io/file_error.hpp"
#include "models/train/run.hpp"

namespace headgate::train {
namespace {

namespace fs = std::filesystem;
using testing::SmallRun;

std::string refusal(const std::function<void()>& work) {
  try {
    work();
    return "(taken without complaint)";
  } catch (const io::FileError& error) {
    return error.what();
  }
}

class RunDirectoryTest : public ::testing::Test {
 protected:
  std::string refused(RunStart start) const {
    return refusal([&] { const RunDirectory directory(out, start); });
  }

  SmallRun run;
  const std::string out = run.path("run");
};

TEST_F(RunDirectoryTest, Directory_SecondTrainer_IsRefused) {
  {
    const RunDirectory directory(out, RunStart::fresh);
    if (!directory.lock_unavailable().empty()) GTEST_SKIP() << "no locks here: " << directory.lock_unavailable();
    EXPECT_TRUE(refused(RunStart::fresh).starts_with(out + ": in use by ")) << refused(RunStart::fresh);
    EXPECT_TRUE(refused(RunStart::resumed).starts_with(out + ": in use by "));
  }
  EXPECT_EQ(refused(RunStart::fresh), "(taken without complaint)");
}

TEST_F(RunDirectoryTest, Directory_OfAnotherRun_IsRefusedToAFreshRun) {
  fs::create_directory(out);
  EXPECT_EQ(refused(RunStart::fresh), "(taken without complaint)");
  testing::write_bytes(metrics_path(out), "");
  EXPECT_EQ(refused(RunStart::fresh), "(taken without complaint)") << "an empty file does not belong to a run";
  testing::write_bytes(metrics_path(out), "epoch,loss\n");
  EXPECT_EQ(refused(RunStart::fresh), out + "/metrics.jsonl: exists already and would be overwritten");
  EXPECT_EQ(testing::read_bytes(metrics_path(out)), "epoch,loss\n");
  fs::remove(metrics_path(out));
  fs::create_directory(out + "/checkpoint");
  testing::write_bytes(out + "/checkpoint/.DS_Store", "x");
  EXPECT_NE(refused(RunStart::fresh).find("'.DS_Store' in it is not part of a checkpoint"), std::string::npos);
  fs::remove(out + "/checkpoint/.DS_Store");
  run.fresh().save(out + "/checkpoint.3");
  EXPECT_EQ(refused(RunStart::fresh), out + ": holds a run already");
}

TEST_F(RunDirectoryTest, Directory_Resumed_IsInOrderBeforeTheFirstStep) {
  EXPECT_EQ(refused(RunStart::resumed), out + ": cannot open: No such file or directory");
  run.fresh().save(out + "/checkpoint");
  EXPECT_EQ(refused(RunStart::resumed), "(taken without complaint)");
  testing::write_bytes(metrics_path(out), "epoch,loss\n");
  EXPECT_EQ(refused(RunStart::resumed), out + "/metrics.jsonl: line 1 is not a record of a run; move the file away");
  fs::remove(metrics_path(out));
  testing::write_bytes(out + "/checkpoint/.DS_Store", "x");
  EXPECT_NE(refused(RunStart::resumed).find("'.DS_Store' in it is not part of a checkpoint"), std::string::npos);
}

TEST_F(RunDirectoryTest, Checkpoints_Several_TheOneOfMostStepsIsTheNewest) {
  EXPECT_EQ(newest_checkpoint(out), out + "/checkpoint");
  Trainer trainer = run.fresh();
  for (const char* place : {"/checkpoint.2", "/checkpoint", "/checkpoint.7"}) {
    trainer.save(out + place);
    trainer.step();
    EXPECT_EQ(newest_checkpoint(out), out + place);
  }
  trainer.save(out + "/checkpoint");
  EXPECT_EQ(newest_checkpoint(out), out + "/checkpoint");
  // A checkpoint whose step is unreadable might be the newest.
  testing::write_bytes(out + "/checkpoint.7/trainer_state.json", "{");
  const std::string why = refusal([&] { newest_checkpoint(out); });
  EXPECT_TRUE(why.starts_with(out + "/checkpoint.7/trainer_state.json: ")) << why;
}

}  // namespace
}  // namespace headgate::train
