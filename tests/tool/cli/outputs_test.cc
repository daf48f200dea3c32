// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tool/cli/small_verbs.hpp"

// Tests the outputs of every verb: what they must not overwrite, and what remains of those that cannot be written.

namespace headgate {
namespace {

namespace fs = std::filesystem;
using testing::expect_refused;
using testing::Outcome;
using testing::read_bytes;
using testing::TrainVerb;
using testing::write_bytes;
using Arguments = std::vector<std::string>;

/// Returns the bytes of each file below a directory, by its path.
std::map<std::string, std::string> contents(const std::string& directory) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) out[entry.path().string()] = read_bytes(entry.path().string());
  }
  return out;
}

Arguments operator+(Arguments words, const Arguments& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

class OutputsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    g_verbs = new TrainVerb;
    ASSERT_EQ(g_verbs->train("run").status, 0);
    fs::create_directory(path("data"));
    fs::copy_file(text(), path("data/book.txt"));
  }
  static void TearDownTestSuite() { delete g_verbs; }

  static std::string path(const std::string& name) { return g_verbs->path(name); }
  static std::string text() { return g_verbs->text(); }

  /// Returns each verb that reads `model` and writes a file, without that file's path.
  static std::vector<Arguments> verbs_on(const std::string& model) {
    return {{"eval", model, "--text", path("data"), "--tokens", "32", "--logits"},
            {"generate", model, "--prompt-file", path("data/book.txt"), "--max-tokens", "2", "--logits"},
            {"xray", model, "--text", path("data"), "--out"}};
  }

  /// Expects `command` to be refused for overwriting a file of `option`, and no file to have changed.
  static void expect_kept(const Arguments& command, const std::string& option) {
    const auto before = contents(path(""));
    const Outcome outcome = testing::headgate(command);
    expect_refused(outcome, command.front(), " would overwrite ");
    EXPECT_NE(outcome.err.find("a file of " + option + ": give another path"), std::string::npos) << outcome.err;
    EXPECT_TRUE(contents(path("")) == before) << command.back();
  }

  static inline TrainVerb* g_verbs = nullptr;
};

TEST_F(OutputsTest, Output_IsAFileOfTheRun_IsRefused) {
  for (const Arguments& verb : verbs_on(path("run"))) {
    for (const char* file : {"checkpoint/config.json", "checkpoint/model.safetensors", "checkpoint/trainer_state.json",
                             "checkpoint/tokenizer.json", "checkpoint/../metrics.jsonl"}) {
      expect_kept(verb + Arguments{path("run/") + file}, "MODEL");
    }
  }
  for (const char* file : {"metrics.jsonl", "checkpoint/optimizer.safetensors"}) {
    expect_kept({"compare", path("run"), "--out", path("run/") + file}, "RUN");
    expect_kept({"xray", path("run/checkpoint"), "--text", text(), "--out", path("run/") + file}, "MODEL");
  }
}

TEST_F(OutputsTest, Output_IsAFileOfTheModel_IsRefusedByEveryPathOfIt) {
  fs::create_directory(path("model"));
  for (const char* file : {"config.json", "model.safetensors"}) {
    fs::copy_file(path("run/checkpoint/") + file, path("model/") + file);
  }
  write_bytes(path("model/model-00001-of-00002.safetensors"), "a shard");
  fs::create_directory_symlink(path("model"), path("link"));
  fs::create_hard_link(path("model/config.json"), path("hard.npy"));
  for (const Arguments& verb : verbs_on(path("model"))) {
    for (const char* file :
         {"model/config.json", "model/generation_config.json", "model/chat_template.jinja",
          "model/model-00001-of-00002.safetensors", "link/model.safetensors", "run/../model/config.json", "hard.npy"}) {
      expect_kept(verb + Arguments{path(file)}, "MODEL");
    }
  }
  write_bytes(path("m.gguf"), "GGUF");
  for (const Arguments& verb : verbs_on(path("m.gguf"))) expect_kept(verb + Arguments{path("m.gguf")}, "MODEL");
  expect_kept({"eval", path("run"), "--text", path("data"), "--against", path("m.gguf"), "--logits", path("m.gguf")},
              "--against");
}

TEST_F(OutputsTest, Output_IsTheText_IsRefused) {
  const std::string book = path("data/book.txt");
  expect_kept({"eval", path("run"), "--text", path("data"), "--logits", book}, "--text");
  expect_kept({"xray", path("run"), "--text", book, "--out", path("run/../data/book.txt")}, "--text");
  expect_kept({"generate", path("run"), "--prompt-file", book, "--logits", book}, "--prompt-file");
  write_bytes(path("ids.npy"), "ids");
  expect_kept({"eval", path("run"), "--token-ids", path("ids.npy"), "--logits", path("ids.npy")}, "--token-ids");
  const std::string tool = testing::headgate_path();
  const Outcome from_stdin =
      testing::run_program({"/bin/sh", "-c", "exec \"$0\" generate \"$1\" --prompt-file - --logits \"$2\" < \"$2\"",
                            tool, path("run"), book});
  expect_refused(from_stdin, "generate", "a file of --prompt-file");
  EXPECT_EQ(read_bytes(book), read_bytes(text()));
}

TEST_F(OutputsTest, Output_BesideWhatIsRead_IsReplacedRepeatedly) {
  for (int time = 0; time < 2; ++time) {
    // The file is not UTF-8, so it is not part of the text.
    const Outcome eval = testing::headgate(
        {"eval", path("run"), "--text", path("data"), "--tokens", "32", "--logits", path("data/out.npy")});
    EXPECT_EQ(eval.status, 0) << eval.err;
    const Outcome xray = testing::headgate({"xray", path("run"), "--text", text(), "--out", path("run/xray.html")});
    EXPECT_EQ(xray.status, 0) << xray.err;
    const Outcome compare = testing::headgate({"compare", path("run"), "--out", path("run/compare.html")});
    EXPECT_EQ(compare.status, 0) << compare.err;
  }
  fs::remove(path("data/out.npy"));
}

TEST_F(OutputsTest, Convert_InPlace_IsRefused) {
  ASSERT_EQ(testing::headgate({"convert", path("run/checkpoint"), path("f32")}).status, 0);
  fs::create_directory_symlink(path("f32"), path("same"));
  for (const char* out : {"f32", "f32/", "f32/../f32", "same"}) {
    expect_kept({"convert", path("f32"), path(out), "--dtype", "bf16"}, "MODEL");
  }
  expect_kept({"convert", path("run/checkpoint"), path("run/checkpoint")}, "MODEL");
  ASSERT_EQ(g_verbs->train("other").status, 0);
  for (const char* out : {"other", "other/checkpoint"}) {
    const auto before = contents(path("other"));
    expect_refused(testing::headgate({"convert", path("f32"), path(out)}), "convert",
                   "OUT " + path(out) + " is a run or its checkpoint: give another path");
    EXPECT_TRUE(contents(path("other")) == before);
  }
  fs::remove(path("f32/modeling_headgate.py"));
  fs::create_hard_link(path("f32/config.json"), path("f32/modeling_headgate.py"));
  EXPECT_EQ(testing::headgate({"convert", path("run/checkpoint"), path("f32"), "--dtype", "bf16"}).status, 0)
      << "another model is replaced, even if two of its files are one";
}

TEST_F(OutputsTest, Run_WouldOverwriteItsData_IsRefused) {
  fs::create_directories(path("new/checkpoint"));
  const std::string data = path("new/checkpoint/trainer_state.json");
  fs::copy_file(text(), data);
  Arguments command = g_verbs->command("new");
  command[2] = data;
  expect_kept(command, "--data");
}

TEST_F(OutputsTest, Demo_WouldOverwriteItsData_IsRefused) {
  fs::create_directory(path("book"));
  fs::copy_file(text(), path("book/trained-models.html"));
  expect_kept({"demo", "--only", "backcopy", "--data", path("book"), "--out", path("book")}, "--data");
}

/// Runs the tool with a limit of 2 or 4 KiB for files, in the units of any shell. LLVM's OpenMP needs a file of 1 KiB.
Outcome with_small_files(const Arguments& command) {
  return testing::run_program(Arguments{"/bin/sh", "-c", "ulimit -f 4 && exec \"$@\"", "sh", testing::headgate_path()} +
                              command);
}

TEST_F(OutputsTest, File_TooLarge_IsReportedAndLeavesNothing) {
  const std::string run = path("run"), out = path("large");
  const std::vector<Arguments> commands = {
      {"eval", run, "--text", text(), "--tokens", "64", "--logits", out},
      {"generate", run, "--prompt", "it", "--max-tokens", "8", "--logits", out},
      {"xray", run, "--text", text(), "--out", out},
      {"compare", run, "--out", out},
      {"convert", path("run/checkpoint"), out},
      {"bench", "--quick", "--filter", "^small/forward", "--threads", "1", "--json-out", out}};
  const auto before = contents(path(""));
  for (const Arguments& command : commands) {
    const Outcome outcome = with_small_files(command);
    EXPECT_EQ(outcome.status, 2) << command.front() << ' ' << outcome.err;
    EXPECT_NE(outcome.err.find("headgate " + command.front() + ": "), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("cannot write: File too large\n"), std::string::npos) << outcome.err;
    EXPECT_TRUE(contents(path("")) == before) << command.front();
    for (const auto& entry : fs::directory_iterator(path(""))) {
      const std::string name = entry.path().filename().string();
      EXPECT_TRUE(name != "large" && !name.starts_with('.')) << command.front() << " leaves " << name;
    }
  }
  const Outcome train = with_small_files(g_verbs->command("small"));
  EXPECT_EQ(train.status, 2);
  EXPECT_TRUE(train.err.ends_with(": cannot write: File too large\n")) << train.err;
  EXPECT_FALSE(fs::exists(path("small/checkpoint")));
  const Outcome demo = with_small_files({"demo", "--only", "model", "--model", run, "--data", text(), "--out", out});
  EXPECT_EQ(demo.status, 2);
  EXPECT_NE(demo.err.find("headgate demo: "), std::string::npos) << demo.err;
  EXPECT_NE(demo.err.find("real-model.html: cannot write: File too large\n"), std::string::npos) << demo.err;
  EXPECT_TRUE(fs::is_empty(out));
  fs::remove(out);
}

TEST_F(OutputsTest, StandardOutput_TooLarge_IsReportedInOneLine) {
  const Outcome outcome =
      testing::run_program({"/bin/sh", "-c", "ulimit -f 4; \"$0\" tokenize \"$1\" --text \"$2\" > \"$3\"",
                            testing::headgate_path(), path("run"), text(), path("ids")});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.err, "headgate: cannot write to standard output\n");
  fs::remove(path("ids"));
}

TEST_F(OutputsTest, Output_ReaderHasGone_PrintsNoMessage) {
  write_bytes(path("long"), std::string(1 << 20, 'x'));
  for (const char* verb : {"tokenize \"$1\" --text \"$2\"", "tokenize \"$1\" --json --text \"$2\""}) {
    const Outcome outcome = testing::run_program({"/bin/sh", "-c", std::string("\"$0\" ") + verb + " | head -c 4",
                                                  testing::headgate_path(), path("run"), path("long")});
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(outcome.err, "");
    EXPECT_EQ(outcome.out.size(), 4U);
  }
  fs::remove(path("long"));
}

}  // namespace
}  // namespace headgate
