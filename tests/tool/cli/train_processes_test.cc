// SPDX-License-Identifier: Apache-2.0
// Tests `headgate train` under a launcher of MPI processes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tool/cli/small_verbs.hpp"

namespace headgate {
namespace {

using nlohmann::json;
using testing::Outcome;
using testing::TrainVerb;

class TrainProcessesTest : public ::testing::Test {
 protected:
  /// Launches `processes` copies of a program.
  static std::vector<std::string> launcher(int processes) {
    // Open MPI refuses root and more processes than cores unless told otherwise.
    return {HEADGATE_MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n", std::to_string(processes)};
  }
  static Outcome launch(int processes, const std::vector<std::string>& arguments) {
    std::vector<std::string> command = launcher(processes);
    command.push_back(testing::headgate_path());
    command.insert(command.end(), arguments.begin(), arguments.end());
    return testing::run_program(command);
  }
  Outcome train(int processes, const std::string& run, std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--batch", "6", "--threads", "1"});
    return launch(processes, verb.command(run, more));
  }
  Outcome resume(int processes, const std::string& run) const {
    return launch(processes, {"train", "--resume", "--out", verb.path(run)});
  }
  std::vector<double> losses(const std::string& run) const {
    std::vector<double> out;
    std::istringstream lines(testing::read_bytes(verb.path(run) + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) out.push_back(json::parse(line)["loss"]);
    return out;
  }
  /// Expects equal numbers up to the order of sums in f32.
  static void expect_close(const std::vector<double>& some, const std::vector<double>& others) {
    ASSERT_EQ(some.size(), others.size());
    for (std::size_t i = 0; i < some.size(); ++i) EXPECT_NEAR(some[i], others[i], 1e-4 * some[i]) << "step " << i + 1;
  }

  TrainVerb verb;
};

#if HEADGATE_MPI

TEST_F(TrainProcessesTest, Loss_SeveralProcesses_IsThatOfOneAndRepeats) {
  const std::vector<std::string> more = {"--gate", "elementwise", "--accumulate", "2", "--eval-every", "10"};
  std::vector<std::string> alone = more;
  alone.insert(alone.end(), {"--batch", "6", "--threads", "1"});
  ASSERT_EQ(verb.train("alone", alone).status, 0);
  for (const int processes : {2, 3}) {
    const std::string name = "of" + std::to_string(processes);
    const Outcome outcome = train(processes, name, more);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("divided among " + std::to_string(processes) + " processes"), std::string::npos)
        << outcome.out;
    EXPECT_EQ(outcome.out.find("done "), outcome.out.rfind("done ")) << "one process reports:\n" << outcome.out;
    expect_close(losses(name), losses("alone"));
    ASSERT_EQ(train(processes, name + "-again", more).status, 0);
    for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
      EXPECT_EQ(verb.checkpoint_file(name, file), verb.checkpoint_file(name + "-again", file)) << processes;
    }
  }
  EXPECT_NE(verb.checkpoint_file("of2", "model.safetensors"), verb.checkpoint_file("alone", "model.safetensors"))
      << "sums in another order have other bits: else one process trained it";
}

TEST_F(TrainProcessesTest, Tokenizer_SeveralProcesses_ShareTheIdsOfTheFirst) {
  const std::string tokenizer = verb.path("t.json");
  const Outcome learned = testing::headgate({"tokenize", "--train", "290", "--text", verb.text(), "--out", tokenizer});
  ASSERT_EQ(learned.status, 0) << learned.err;
  const std::vector<std::string> more = {"--tokenizer", tokenizer};
  std::vector<std::string> alone = more;
  alone.insert(alone.end(), {"--batch", "6", "--threads", "1"});
  ASSERT_EQ(verb.train("alone", alone).status, 0);
  std::vector<std::string> begun = more;
  begun.insert(begun.end(), {"--stop-at", "7"});
  const Outcome outcome = train(2, "of2", begun);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::string ids = testing::read_bytes(verb.path("alone/token_ids.bin"));
  EXPECT_EQ(testing::read_bytes(verb.path("of2/token_ids.bin")), ids);
  // The first process encodes the text again where its ids are damaged.
  testing::write_bytes(verb.path("of2/token_ids.bin"), ids.substr(1));
  const Outcome resumed = resume(2, "of2");
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_EQ(testing::read_bytes(verb.path("of2/token_ids.bin")), ids);
  expect_close(losses("of2"), losses("alone"));
}

TEST_F(TrainProcessesTest, Run_OtherNumberOfProcesses_Resumes) {
  ASSERT_EQ(train(2, "whole").status, 0);
  ASSERT_EQ(train(2, "parts", {"--stop-at", "7"}).status, 0);
  for (const int processes : {3, 1}) {
    const std::string name = "parts-" + std::to_string(processes);
    std::filesystem::copy(verb.path("parts"), verb.path(name), std::filesystem::copy_options::recursive);
    const Outcome resumed = resume(processes, name);
    ASSERT_EQ(resumed.status, 0) << resumed.err;
    expect_close(losses(name), losses("whole"));
  }
  ASSERT_EQ(resume(2, "parts").status, 0);
  EXPECT_EQ(verb.checkpoint_file("parts", "model.safetensors"), verb.checkpoint_file("whole", "model.safetensors"));
}

TEST_F(TrainProcessesTest, Run_Refused_PrintsOneLineAndWritesNothing) {
  const auto expect_refused = [this](const Outcome& outcome, const std::string& reason) {
    EXPECT_EQ(outcome.status, 2) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_NE(outcome.err.find("headgate train: " + reason), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.err.find("headgate train: "), outcome.err.rfind("headgate train: ")) << outcome.err;
    EXPECT_FALSE(std::filesystem::exists(verb.path("run")));
  };
  const std::string batch = "--batch 6 is not a multiple of the number of processes, 4", ids = verb.path("t.json");
  expect_refused(train(4, "run"), batch);
  const Outcome learned = testing::headgate({"tokenize", "--train", "290", "--text", verb.text(), "--out", ids});
  ASSERT_EQ(learned.status, 0) << learned.err;
  expect_refused(train(4, "run", {"--tokenizer", ids}), batch);  // before the text is encoded
  expect_refused(train(2, "run", {"--data", verb.path("missing")}),
                 "--data " + verb.path("missing") + ": No such file");
  // One process has another text.
  const std::string own_text = "--data " + verb.text() + "$OMPI_COMM_WORLD_RANK";
  for (const char* rank : {"0", "1"}) testing::write_bytes(verb.text() + rank, testing::prose(4000) + rank);
  std::vector<std::string> command = launcher(2);
  std::string line = testing::headgate_path();
  for (const std::string& argument : verb.command("run")) line += " " + argument;
  command.insert(command.end(), {"sh", "-c", line + " --threads 1 " + own_text});
  expect_refused(testing::run_program(command), "the processes of the run differ in their data");
}

TEST_F(TrainProcessesTest, Run_ProcessKilled_EndsWithAWholeCheckpoint) {
  std::string line = testing::headgate_path();
  const std::vector<std::string> more = {"--batch", "6", "--threads", "1", "--steps", "1000000", "--save-every", "5"};
  for (const std::string& argument : verb.command("run", more)) line += " " + argument;
  const std::string log = verb.path("run") + "/metrics.jsonl";
  std::vector<std::string> command = launcher(2);
  command.insert(command.end(), {"sh", "-c",
                                 "[ $OMPI_COMM_WORLD_RANK = 0 ] && exec " + line + "; " + line + " & while ! [ -s " +
                                     log + " ]; do sleep 0.02; done; sleep 0.2; kill -9 $!; wait $!"});
  const Outcome outcome = testing::run_program(command);
  EXPECT_NE(outcome.status, 0);
  // Open MPI 5 kills the others within half a second, and drops what they print.
  if (testing::run_program({HEADGATE_MPIRUN, "--version"}).out.find("(Open MPI) 4") != std::string::npos) {
    EXPECT_NE(outcome.err.find("headgate train: other processes of the run do not answer any more at step "),
              std::string::npos)
        << outcome.err;
    EXPECT_NE(outcome.err.find("/checkpoint keeps its last save: headgate train --resume --out "), std::string::npos)
        << outcome.err;
  }
  EXPECT_EQ(verb.eval("run", {"--tokens", "32"}).status, 0);
  const json state = json::parse(verb.checkpoint_file("run", "trainer_state.json"));
  const std::string next = std::to_string(state["step"].get<int>() + 1);
  const Outcome resumed = verb.resume("run", {"--stop-at", next});
  EXPECT_EQ(resumed.status, 0) << resumed.err;
}

#else

TEST_F(TrainProcessesTest, Launcher_BuildWithoutMpi_IsRefused) {
  ASSERT_EQ(setenv("OMPI_COMM_WORLD_SIZE", "2", 1), 0);
  const Outcome outcome = verb.train("run");
  ASSERT_EQ(unsetenv("OMPI_COMM_WORLD_SIZE"), 0);
  testing::expect_refused(outcome, "train", "a launcher started 2 processes, but this build has no MPI");
  EXPECT_FALSE(std::filesystem::exists(verb.path("run")));
}

#endif

}  // namespace
}  // namespace headgate
