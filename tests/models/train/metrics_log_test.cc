// SPDX-License-Identifier: Apache-2.0
#include "models/train/metrics_log.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/io/scratch.hpp"

namespace headgate::train {
namespace {

Progress step(std::int64_t number) {
  Progress progress;
  progress.step.step = number;
  progress.step.loss = 2.5;
  return progress;
}

std::string line(std::int64_t number) {
  return "{\"step\":" + std::to_string(number) +
         ",\"loss\":2.5,\"grad_norm\":0.0,\"lr\":0.0,\"tokens\":0,\"seconds\":0.0,\"tokens_per_second\":0.0}\n";
}

class MetricsLogTest : public ::testing::Test {
 protected:
  /// Returns what is left of a file once a run at `at` has opened it.
  std::string kept(const std::string& bytes, std::int64_t at) const {
    testing::write_bytes(path, bytes);
    const MetricsLog log(path, at);
    return testing::read_bytes(path);
  }

  void expect_refused(const std::string& bytes, const std::string& why) const {
    testing::write_bytes(path, bytes);
    try {
      const MetricsLog log(path, 2);
      ADD_FAILURE() << "taken without complaint: " << bytes;
    } catch (const io::FileError& error) {
      EXPECT_EQ(std::string(error.what()), path + ": " + why);
    }
    EXPECT_EQ(testing::read_bytes(path), bytes) << "left as it was";
  }

  testing::Scratch scratch;
  const std::string path = scratch / "m.jsonl";
};

TEST_F(MetricsLogTest, Record_Written_IsOneLineAtOnce) {
  MetricsLog log(path, 0);
  log.add(step(1));
  EXPECT_EQ(testing::read_bytes(path), line(1));
  log.add(step(2));
  EXPECT_EQ(testing::read_bytes(path), line(1) + line(2));
  EXPECT_EQ(log.error(), "");
}

TEST_F(MetricsLogTest, Records_AfterTheCheckpoint_AreDroppedOnResume) {
  EXPECT_EQ(kept(line(1) + line(2) + line(3) + line(4), 2), line(1) + line(2));
  EXPECT_EQ(kept(line(1) + line(4), 2), line(1)) << "lines may be missing where the disk was full";
  for (const char* torn : {"{", "{\"st", "{\"step\":3", "{\"step\":3,\"loss\":2.5,\"gr"}) {
    EXPECT_EQ(kept(line(1) + line(2) + torn, 2), line(1) + line(2)) << torn;
  }
}

TEST_F(MetricsLogTest, LastLine_WithoutItsNewline_IsEnded) {
  const std::string first = line(1);
  testing::write_bytes(path, first.substr(0, first.size() - 1));
  MetricsLog log(path, 1);
  log.add(step(2));
  EXPECT_EQ(testing::read_bytes(path), line(1) + line(2));
}

TEST_F(MetricsLogTest, Key_DuplicateInALine_IsRefused) {
  std::string twice = line(2);
  twice.insert(twice.find('}'), ",\"step\":1");
  expect_refused(line(1) + twice, "line 2 is not a record of a run; move the file away");
}

/// A hole of a terabyte follows a record. Reading it to its end would take hours and all memory.
TEST_F(MetricsLogTest, Line_Endless_IsRefusedBeforeItIsReadWhole) {
  testing::write_bytes(path, line(1));
  std::filesystem::resize_file(path, std::uintmax_t{1} << 40);
  EXPECT_THROW(check_metrics(path), io::FileError);
  EXPECT_THROW(MetricsLog(path, 1), io::FileError);
}

TEST_F(MetricsLogTest, File_NotALog_IsNotChanged) {
  expect_refused("epoch,loss\n1,2.5\n", "line 1 is not a record of a run; move the file away");
  expect_refused(line(1) + "[]\n" + line(2), "line 2 is not a record of a run; move the file away");
  expect_refused(line(1) + line(2) + line(3) + "my notes", "line 4 is not a record of a run; move the file away");
  expect_refused("{\"step\":1,\"loss\":2.5}\n", "line 1 is not a record of a run; move the file away");
  expect_refused(line(1) + line(3) + line(3), "line 3 has step 3 after step 3; move the file away");
}

TEST_F(MetricsLogTest, Log_NotWritable_NamesThePath) {
  EXPECT_THROW(MetricsLog("/nonexistent/m.jsonl", 0), io::WriteError);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THROW(MetricsLog(path, 0), io::FileError);
}

}  // namespace
}  // namespace headgate::train
