// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "models/decoder/config_keys.hpp"
#include "models/train/settings.hpp"
#include "tool/cli/small_verbs.hpp"

namespace headgate {
namespace {

using nlohmann::json;
using testing::expect_refused;
using testing::Outcome;
using testing::TrainVerb;

class TrainVerbTest : public ::testing::Test {
 protected:
  json config(const std::string& run) const { return json::parse(verb.checkpoint_file(run, "config.json")); }

  TrainVerb verb;
};

TEST_F(TrainVerbTest, Train_SmallRun_TrainsAndReports) {
  const Outcome outcome = verb.train("run", {"--gate", "headwise", "--eval-every", "10", "--log-every", "5"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "") << "no progress bar where there is no terminal";
  for (const char* told : {"gate    g1-headwise-sigmoid-mul", "memory  ", "optimizer moments", "step 1/20  loss ",
                           "step 5/20", "step 20/20", "MFU ", "held out, step 10: loss ", "held out, step 20: loss ",
                           "step 20: saved", "done    20 steps in ", "0 loss spikes"}) {
    EXPECT_NE(outcome.out.find(told), std::string::npos) << told << " is not in\n" << outcome.out;
  }
  const std::string log = testing::read_bytes(verb.path("run") + "/metrics.jsonl");
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 20);
}

TEST_F(TrainVerbTest, Help_EveryRow_HasItsOption) {
  const std::string help = testing::headgate({"train", "--help"}).out;
  const auto expect_listed = [&help](const auto& row) {
    if (row.option.empty()) return;
    std::string option(row.option);
    if (!row.type.empty()) option += fmt::format(" {}", row.type);
    const bool listed = help.find("\n  " + option) != std::string::npos ||  // or behind its short form
                        help.find(", " + option) != std::string::npos;
    EXPECT_TRUE(listed) << row.option;
  };
  for_each_row(models::kConfigKeys, expect_listed);
  for_each_row(train::kSettings, expect_listed);
}

TEST_F(TrainVerbTest, Run_Resumed_IsBitwiseIdentical) {
  for (const std::vector<std::string>& kind :
       {std::vector<std::string>{"--gate", "elementwise", "--accumulate", "2"},
        std::vector<std::string>{"--task", "bigram-backcopy", "--sinks", "learned"}}) {
    const std::string name = kind[1];
    ASSERT_EQ(verb.train(name + "-whole", kind).status, 0);
    std::vector<std::string> half = kind;
    half.insert(half.end(), {"--stop-at", "10"});
    const Outcome stopped = verb.train(name, half);
    ASSERT_EQ(stopped.status, 0) << stopped.err;
    EXPECT_NE(stopped.err.find("headgate train --resume --out " + verb.path(name)), std::string::npos) << stopped.err;
    const Outcome resumed = verb.resume(name);
    ASSERT_EQ(resumed.status, 0) << resumed.err;
    for (const char* file : {"model.safetensors", "optimizer.safetensors", "trainer_state.json", "config.json"}) {
      EXPECT_EQ(verb.checkpoint_file(name, file), verb.checkpoint_file(name + "-whole", file)) << file;
    }
  }
}

TEST_F(TrainVerbTest, Resume_SameCommandAndMoreSteps_IsAccepted) {
  const std::vector<std::string> gate = {"--gate", "headwise", "--match-params"};
  ASSERT_EQ(verb.train("run", gate).status, 0);
  const Outcome nothing = verb.resume("run");
  EXPECT_EQ(nothing.status, 0) << nothing.err;
  EXPECT_NE(nothing.out.find("all 20 steps are done already"), std::string::npos) << nothing.out;
  for (const char* untrue : {"run     steps", "allocated now"}) {
    EXPECT_EQ(nothing.out.find(untrue), std::string::npos) << nothing.out;
  }
  const Outcome fewer = verb.resume("run", {"--steps", "9"});
  EXPECT_EQ(fewer.status, 0) << fewer.err;
  EXPECT_NE(fewer.out.find("20 steps are done already, more than --steps 9"), std::string::npos) << fewer.out;
  ASSERT_EQ(verb.train("short", {"--stop-at", "5", "--threads", "1"}).status, 0);
  const Outcome evaluated = verb.resume("short", {"--steps", "5", "--threads", "2"});
  EXPECT_EQ(evaluated.status, 0) << evaluated.err;
  EXPECT_NE(evaluated.out.find("note: the run had 1 thread; with 2"), std::string::npos) << evaluated.out;
  EXPECT_NE(evaluated.out.find("held out, step 5"), std::string::npos) << evaluated.out;
  const std::string last = evaluated.out.substr(evaluated.out.find("done  "));
  EXPECT_EQ(last.find("loss 0"), std::string::npos) << "no step was taken, which would have a loss: " << last;
  std::vector<std::string> again = verb.command("run", gate);
  again.push_back("--resume");
  *std::find(again.begin(), again.end(), "20") = "22";
  const Outcome more = testing::headgate(again);
  EXPECT_EQ(more.status, 0) << more.err;
  EXPECT_NE(more.out.find("steps 21 to 22"), std::string::npos) << more.out;
}

TEST_F(TrainVerbTest, Resume_OtherRun_IsRefused) {
  ASSERT_EQ(verb.train("run").status, 0);
  expect_refused(verb.train("run"), "train", "holds a run: continue it with --resume");
  expect_refused(verb.resume("none"), "train", "holds no checkpoint");
  expect_refused(verb.resume("run", {"--lr", "1"}), "train", "--lr 1 is not the run's 0.002");
  expect_refused(verb.resume("run", {"--batch", "3"}), "train", "--batch 3 is not the run's 2");
  const std::string has = verb.path("run") + "/checkpoint has ";
  expect_refused(verb.resume("run", {"--gate", "headwise"}), "train",
                 "--gate g1-headwise-sigmoid-mul: " + has + "the gate none");
  expect_refused(verb.resume("run", {"--dim", "17"}), "train", "--dim 17: " + has + "16");
  expect_refused(verb.resume("run", {"--layer-types", "sliding"}), "train", "--layer-types sliding: " + has);
  expect_refused(verb.resume("run", {"--match-params"}), "train", "--match-params: ");
  const Outcome same = verb.resume("run", {"--dim", "16", "--gate", "none", "--seq-len", "16", "--layer-types", "0:1"});
  EXPECT_EQ(same.status, 0) << same.err;
  testing::write_bytes(verb.path("other"), testing::prose(4000, 2));
  expect_refused(verb.resume("run", {"--data", verb.path("other")}), "train",
                 "differs from what the run was trained on");
  testing::write_bytes(verb.path("run") + "/checkpoint/trainer_state.json", "{}");
  expect_refused(verb.resume("run"), "train", "no key \"format\"");
}

TEST_F(TrainVerbTest, StopAt_AStepThatIsDone_IsRefused) {
  ASSERT_EQ(verb.train("run", {"--stop-at", "5"}).status, 0);
  for (const char* step : {"3", "5"}) {
    expect_refused(verb.resume("run", {"--stop-at", step}), "train",
                   std::string("--stop-at ") + step + ": " + verb.path("run") + "/checkpoint has done 5 steps already");
  }
  EXPECT_EQ(json::parse(verb.checkpoint_file("run", "trainer_state.json")).at("step"), 5);
}

TEST_F(TrainVerbTest, Name_WithControlCharacters_DoesNotReachTheTerminal) {
  const std::string run = "bad\x1b[31m\xff";
  for (const std::vector<std::string>& options : {std::vector<std::string>{"--stop-at", "5"}, {"--resume"}}) {
    const Outcome outcome = verb.train(run, options);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ((outcome.out + outcome.err).find('\x1b'), std::string::npos) << outcome.out << outcome.err;
    EXPECT_EQ((outcome.out + outcome.err).find('\xff'), std::string::npos);
    if (options.size() == 2) {
      EXPECT_NE(outcome.err.find("/bad\\x1b[31m\\xff'\n"), std::string::npos) << outcome.err;
    } else {
      EXPECT_NE(outcome.out.find("/bad [31m\\xff/checkpoint"), std::string::npos) << outcome.out;
    }
  }
  for (const char* shown : {"xray", "eval"}) {
    const Outcome outcome =
        testing::headgate({shown, verb.path(run), verb.path(run), "--text", verb.text(), "--tokens", "16"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("bad [31m\\xff"), std::string::npos) << outcome.out;
  }
}

TEST_F(TrainVerbTest, Name_NotUtf8_IsRefusedBeforeTheRun) {
  const std::string text = verb.path("te\xffxt");
  testing::write_bytes(text, testing::prose(4000));
  expect_refused(verb.train("run", {"--data", text}), "train", "te\\xffxt: not UTF-8");
  std::filesystem::create_directory(verb.path("texts"));
  expect_refused(verb.train("run", {"--data", verb.path("texts"), "--include", "*\xff"}), "train",
                 "--include *\\xff: not UTF-8");
  EXPECT_FALSE(std::filesystem::exists(verb.path("run")));
}

TEST_F(TrainVerbTest, Evaluation_FiguresThatDoNotExist_AreLeftOut) {
  const std::vector<std::vector<std::string>> models{
      {"--window", "4"}, {"--seq-len", "1", "--batch", "16"}, {"--layer-types", "1:0"}};
  int run = 0;
  for (std::vector<std::string> options : models) {
    options.insert(options.end(), {"--eval-every", "20"});
    const Outcome outcome = verb.train("run" + std::to_string(run++), options);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("held out, step 20: loss "), std::string::npos) << outcome.out;
    for (const char* figure : {"first-token attention", "uniform", "sink rate"}) {
      EXPECT_EQ(outcome.out.find(figure), std::string::npos) << options.front() << ": " << outcome.out;
    }
  }
  const Outcome outcome =
      verb.train("backcopy", {"--task", "bigram-backcopy", "--window", "4", "--eval-every", "20", "--vocab", "264"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out.find("at triggers"), std::string::npos) << outcome.out;
}

TEST_F(TrainVerbTest, GateOptions_Each_ReachTheModel) {
  struct Case {
    std::vector<std::string> options;
    const char* key;
    json value;
  };
  const Case cases[] = {{{"--gate", "head-shared"}, "gate_grain", "head_shared"},
                        {{"--gate-site", "g2"}, "gate_site", "g2"},
                        {{"--gate", "headwise", "--gate-site", "g5"}, "gate_site", "g5"},
                        {{"--gate", "headwise", "--gate-fn", "ns_sigmoid"}, "gate_fn", "ns_sigmoid"},
                        {{"--gate", "headwise", "--gate-fn", "silu", "--gate-op", "add"}, "gate_op", "add"},
                        {{"--gate", "headwise", "--gate-source", "parameter"}, "gate_source", "parameter"},
                        {{"--gate", "headwise", "--gate-bias", "1.5"}, "gate_bias_init", 1.5},
                        {{"--gate", "headwise", "--gate-init-std", "0.5"}, "gate_init_std", 0.5},
                        {{"--output-control", "head-rmsnorm"}, "attention_output_control", "head_rmsnorm"},
                        {{"--output-control", "silu"}, "attention_output_control", "output_silu"},
                        {{"--sinks", "off-by-one"}, "attention_sinks", "off_by_one"},
                        {{"--sandwich-norm"}, "norm_placement", "sandwich"},
                        {{"--norm", "zero-centred"}, "norm_kind", "zero_centred"},
                        {{"--embeddings", "separate"}, "tie_word_embeddings", false},
                        {{"--kv-heads", "2"}, "num_key_value_heads", 2},
                        {{"--rope-fraction", "0.5"}, "partial_rotary_factor", 0.5}};
  int run = 0;
  for (const Case& c : cases) {
    std::vector<std::string> options = c.options;
    options.insert(options.end(), {"--stop-at", "1"});
    const std::string name = std::to_string(run++);
    const Outcome outcome = verb.train(name, options);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(config(name).at(c.key), c.value) << c.options[0];
  }
}

TEST_F(TrainVerbTest, MatchParamsAndConfig_Given_AreUsed) {
  ASSERT_EQ(verb.train("plain", {"--stop-at", "1"}).status, 0);
  EXPECT_EQ(config("plain").at("intermediate_size"), 48);
  ASSERT_EQ(verb.train("none", {"--stop-at", "1", "--gate", "none", "--match-params"}).status, 0);
  EXPECT_EQ(config("none").at("intermediate_size"), 48);
  ASSERT_EQ(verb.train("gated", {"--stop-at", "1", "--gate", "elementwise", "--match-params"}).status, 0);
  // 16 · 16 of the gate against 3 · 16 of a row of the MLP: 5⅓ rows, in steps of 4.
  EXPECT_EQ(config("gated").at("intermediate_size"), 44);
  const Outcome from_file =
      testing::headgate({"train", "--data", verb.text(), "--out", verb.path("file"), "--config",
                         verb.path("gated") + "/checkpoint/config.json", "--layers", "1", "--stop-at", "1"});
  ASSERT_EQ(from_file.status, 0) << from_file.err;
  EXPECT_EQ(config("file").at("intermediate_size"), 44);
  EXPECT_EQ(config("file").at("num_hidden_layers"), 1);
  EXPECT_EQ(config("file").at("gate_grain"), "elementwise");
}

TEST_F(TrainVerbTest, LayerTypesAndPrecision_Given_TrainAHybridInBf16) {
  ASSERT_EQ(
      verb.train("hybrid", {"--stop-at", "2", "--layers", "2", "--layer-types", "1:1", "--precision", "bf16"}).status,
      0);
  EXPECT_EQ(config("hybrid").at("layer_types"), (nlohmann::json{"linear_attention", "full_attention"}));
  const Outcome changed = verb.train("hybrid", {"--resume", "--precision", "f32"});
  EXPECT_EQ(changed.status, 2);
  EXPECT_NE(changed.err.find("--precision f32 is not the run's bf16"), std::string::npos) << changed.err;
  const Outcome answer = testing::headgate({"generate", verb.path("hybrid"), "--prompt", "a", "--max-tokens", "3"});
  EXPECT_EQ(answer.status, 0) << answer.err;
  const Outcome refused = verb.train("other", {"--layer-types", "delta"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_NE(refused.err.find("--layer-types 'delta' is neither N:M"), std::string::npos) << refused.err;
}

TEST_F(TrainVerbTest, Bos_OfARun_StaysOnResume) {
  ASSERT_EQ(verb.train("bos", {"--bos", "on"}).status, 0);
  ASSERT_EQ(verb.train("plain").status, 0);
  EXPECT_EQ(config("bos").at("vocab_size"), 264);
  EXPECT_EQ(config("plain").at("vocab_size"), 256);
  const Outcome both = verb.eval("bos", {verb.path("plain"), "--tokens", "64"});
  EXPECT_EQ(both.status, 0) << "the same bytes of a text, after a BOS or not: " << both.err;
  EXPECT_NE(both.out.find("bos"), std::string::npos);
  expect_refused(verb.resume("bos", {"--bos", "off"}), "train", "--bos off is not the run's on");
  expect_refused(verb.train("copies", {"--task", "bigram-backcopy", "--bos", "off"}), "train",
                 "--bos off: sequences of --task bigram-backcopy begin with that token");
}

TEST_F(TrainVerbTest, Arguments_Bad_AreRefused) {
  const auto refused = [this](const std::vector<std::string>& options, const std::string& reason) {
    expect_refused(verb.train("none", options), "train", reason);
  };
  refused({"--gate", "sideways"}, "unknown part 'sideways'");
  refused({"--gate", "g1-g2"}, "gate: 'g2' is a second word for what 'g1' says");
  refused({"--gate", "none", "--gate-site", "g1"}, "contradict each other");
  refused({"--gate", "headwise", "--gate-site", "none"}, "--gate-site none and --gate headwise contradict each other");
  refused({"--gate-fn", "silu"}, "--gate-fn needs --gate");
  refused({"--gate-bias", "0"}, "--gate-bias needs --gate");
  refused({"--match-params"}, "--match-params: the model has no parameters beyond those without a gate");
  refused({"--gate", "headwise", "--gate-fn", "tanh"}, "'tanh' is none of");
  refused({"--gate", "headwise", "--output-control", "silu"}, "without a gate");
  refused({"--task", "poetry"}, "'poetry' is none of text, bigram-backcopy");
  refused({"--schedule", "steps"}, "'steps' is none of cosine");
  refused({"--norm", "batch"}, "--norm: 'batch' is none of plain, zero_centred");
  refused({"--dim", "17"}, "--dim");
  refused({"--warmup", "21"}, "--warmup 21 is more than --steps 20");
  refused({"--lr", "nan"}, "lr is nan");
  refused({"--beta2", "1"}, "beta2 is 1");
  refused({"--vocab", "255"}, "vocab is 255");
  refused({"--data", verb.path("missing")}, "missing: No such file or directory");
  refused({"--data", ""}, "--data");
  refused({"--batch", "0"}, "--batch");
  refused({"--threads", "0"}, "--threads");
  expect_refused(testing::headgate({"train", "--out", verb.path("none")}), "train", "--data is required");
  expect_refused(testing::headgate({"train", "--data", verb.text()}), "train", "--out is required");
  EXPECT_FALSE(std::filesystem::exists(verb.path("none")));
}

TEST_F(TrainVerbTest, Run_Diverged_EndsWithItsLastGoodCheckpoint) {
  const Outcome outcome =
      verb.train("wild", {"--lr", "1e6", "--warmup", "0", "--schedule", "constant", "--save-every", "1"});
  EXPECT_EQ(outcome.status, 1) << outcome.out;
  EXPECT_TRUE(outcome.err.starts_with("headgate train: step ")) << outcome.err;
  EXPECT_EQ(outcome.err.find("-nan"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("The last good checkpoint is in " + verb.path("wild") + "/checkpoint"), std::string::npos)
      << outcome.err;
  EXPECT_GE(json::parse(verb.checkpoint_file("wild", "trainer_state.json")).at("step"), 0);
  EXPECT_NE(verb.checkpoint_file("wild", "model.safetensors"), "");
}

/// Starts `headgate` with its stdout in a pipe.
class Process {
 public:
  explicit Process(std::vector<std::string> arguments, const std::string& err) {
    arguments.insert(arguments.begin(), testing::headgate_path());
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    ::posix_spawn_file_actions_addopen(&actions, 2, err.c_str(), O_CREAT | O_WRONLY, 0600);
    std::vector<char*> argv;
    argv.reserve(arguments.size() + 1);
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const int failure = ::posix_spawn(&child_, argv[0], &actions, nullptr, argv.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    out_ = ends[0];
    if (failure != 0) throw std::runtime_error("cannot run " + arguments[0]);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() { stop_reading(); }

  /// Reads until `text` has been printed; returns false if the process ends first.
  bool wait_for(const std::string& text) {
    while (seen_.find(text) == std::string::npos) {
      std::array<char, 512> buffer{};
      const ssize_t got = ::read(out_, buffer.data(), buffer.size());
      if (got <= 0) return false;
      seen_.append(buffer.data(), static_cast<std::size_t>(got));
    }
    return true;
  }
  void stop_reading() {
    if (out_ >= 0) ::close(std::exchange(out_, -1));
  }
  /// Limits the size of files that the process writes, as on a full disk.
  void limit_files(std::uint64_t bytes) const {
    rlimit limit{};
    ::prlimit(child_, RLIMIT_FSIZE, nullptr, &limit);
    limit.rlim_cur = bytes;
    ::prlimit(child_, RLIMIT_FSIZE, &limit, nullptr);
  }
  void send(int signal_number) const { ::kill(child_, signal_number); }
  int wait() {
    if (out_ >= 0) wait_for("\x01");  // never printed: reads to the end of the output
    int status = 0;
    ::waitpid(child_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t child_ = 0;
  int out_ = -1;
  std::string seen_;
};

std::vector<std::string> endless(const TrainVerb& verb, const std::string& run) {
  std::vector<std::string> command = verb.command(run, {"--log-every", "1"});
  *std::find(command.begin(), command.end(), "20") = "1000000";
  return command;
}

std::int64_t saved_step(const TrainVerb& verb, const std::string& run, const std::string& place = "checkpoint") {
  const std::string state = testing::read_bytes(verb.path(run) + "/" + place + "/trainer_state.json");
  return json::parse(state).at("step").get<std::int64_t>();
}

/// Waits for `come` to return true; returns false if it never does.
bool eventually(const std::function<bool()>& come) {
  constexpr int kPatience = 1500;  // times 20 ms
  for (int i = 0; i < kPatience; ++i) {
    if (come()) return true;
    ::usleep(20000);
  }
  return false;
}

TEST_F(TrainVerbTest, Run_SecondTrainer_IsRefused) {
  Process first(endless(verb, "run"), verb.path("err"));
  ASSERT_TRUE(first.wait_for("step 1/"));
  expect_refused(verb.resume("run", {"--stop-at", "1"}), "train",
                 "--out " + verb.path("run") + " cannot be used: " + verb.path("run") + ": in use by");
  first.send(SIGTERM);
  EXPECT_EQ(first.wait(), 128 + SIGTERM);
  EXPECT_EQ(verb.resume("run", {"--stop-at", std::to_string(saved_step(verb, "run") + 1)}).status, 0)
      << "the lock ends with its process";
}

TEST_F(TrainVerbTest, Run_OutputClosed_SavesAndEndsAsUsual) {
  const std::string err = verb.path("err");
  Process process(endless(verb, "run"), err);
  ASSERT_TRUE(process.wait_for("step 3/"));
  process.stop_reading();
  const std::string log = verb.path("run") + "/metrics.jsonl";
  const auto read = testing::read_bytes(log).size();
  ASSERT_TRUE(eventually([&] { return testing::read_bytes(log).size() > read + 2000; })) << "training continues";
  process.send(SIGINT);
  EXPECT_EQ(process.wait(), 128 + SIGINT);
  EXPECT_GT(saved_step(verb, "run"), 5);
  EXPECT_NE(testing::read_bytes(err).find("everything is saved"), std::string::npos);
}

TEST_F(TrainVerbTest, Run_DiskFull_IsReportedAndSaysWhatIsKept) {
  const std::string err = verb.path("err");
  std::vector<std::string> command = endless(verb, "run");
  command.insert(command.end(), {"--save-every", "20"});
  Process process(command, err);
  ASSERT_TRUE(process.wait_for("step 20: saved"));
  process.limit_files(20000);  // less than the model takes, but more than what is printed
  ASSERT_TRUE(eventually([&] { return testing::read_bytes(err).find("is not saved: ") != std::string::npos; }));
  process.send(SIGINT);
  EXPECT_EQ(process.wait(), 2) << "not all is saved";
  const std::string told = testing::read_bytes(err);
  EXPECT_NE(told.find("and the next save tries again"), std::string::npos) << told;
  EXPECT_NE(told.find("are lost: "), std::string::npos) << told;
  const std::int64_t kept = saved_step(verb, "run");
  EXPECT_NE(told.find("has step " + std::to_string(kept)), std::string::npos) << told;
  const Outcome resumed = verb.resume("run", {"--stop-at", std::to_string(kept + 2)});
  EXPECT_EQ(resumed.status, 0) << resumed.err;
}

TEST_F(TrainVerbTest, Checkpoint_ForeignFile_IsRefusedAtTheStartAndSavedBesideLater) {
  ASSERT_EQ(verb.train("run", {"--stop-at", "5"}).status, 0);
  const std::string stray = verb.path("run") + "/checkpoint/.DS_Store";
  testing::write_bytes(stray, "x");
  expect_refused(verb.resume("run"), "train", "'.DS_Store' in it is not part of a checkpoint; move it away");
  std::filesystem::remove(stray);

  const std::string err = verb.path("err");
  Process process(endless(verb, "other"), err);
  ASSERT_TRUE(process.wait_for("step 3/"));
  testing::write_bytes(verb.path("other") + "/checkpoint/.DS_Store", "x");
  process.send(SIGINT);
  EXPECT_EQ(process.wait(), 128 + SIGINT);
  EXPECT_NE(testing::read_bytes(err).find("is saved in " + verb.path("other") + "/checkpoint.1"), std::string::npos);
  EXPECT_EQ(saved_step(verb, "other"), 0);
  const std::int64_t saved = saved_step(verb, "other", "checkpoint.1");
  EXPECT_GE(saved, 3);
  const Outcome resumed = verb.resume("other", {"--stop-at", std::to_string(saved + 1)});
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_NE(resumed.out.find("the newest is " + verb.path("other") + "/checkpoint.1, of step " + std::to_string(saved)),
            std::string::npos)
      << resumed.out;
  EXPECT_EQ(saved_step(verb, "other", "checkpoint.1"), saved + 1);
  // An evaluation also uses the newest checkpoint: it gives the same figures for the run as for that checkpoint.
  const Outcome by_run = verb.eval("other"), by_checkpoint = verb.eval("other/checkpoint.1");
  EXPECT_EQ(by_run.status, 0) << by_run.err;
  EXPECT_EQ(by_run.out, by_checkpoint.out);
  EXPECT_NE(by_run.out, verb.eval("other/checkpoint").out);
}

TEST_F(TrainVerbTest, Log_Foreign_IsNotChanged) {
  std::filesystem::create_directory(verb.path("run"));
  const std::string log = verb.path("run") + "/metrics.jsonl";
  testing::write_bytes(log, "epoch,loss\n");
  expect_refused(verb.train("run"), "train", log + ": exists already and would be overwritten");
  EXPECT_EQ(testing::read_bytes(log), "epoch,loss\n");
}

TEST_F(TrainVerbTest, Run_Signalled_SavesAndSaysHowToContinue) {
  for (const int signal_number : {SIGINT, SIGTERM}) {
    const std::string run = "run" + std::to_string(signal_number);
    Process process(endless(verb, run), verb.path(run + ".err"));
    ASSERT_TRUE(process.wait_for("step 3/"));
    process.send(signal_number);
    EXPECT_EQ(process.wait(), 128 + signal_number);
    const std::string err = testing::read_bytes(verb.path(run + ".err"));
    EXPECT_NE(err.find("everything is saved"), std::string::npos) << err;
    EXPECT_NE(err.find("headgate train --resume --out " + verb.path(run)), std::string::npos) << err;
    const auto step = json::parse(verb.checkpoint_file(run, "trainer_state.json")).at("step").get<std::int64_t>();
    EXPECT_GE(step, 3);
    const std::string log = testing::read_bytes(verb.path(run) + "/metrics.jsonl");
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), step);
    const Outcome resumed = verb.resume(run, {"--stop-at", std::to_string(step + 2)});
    EXPECT_EQ(resumed.status, 0) << resumed.err;
    EXPECT_NE(resumed.out.find("steps " + std::to_string(step + 1) + " to 1000000"), std::string::npos) << resumed.out;
  }
}

}  // namespace
}  // namespace headgate
