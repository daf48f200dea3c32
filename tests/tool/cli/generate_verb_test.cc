// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "models/io/gguf_bytes.hpp"
#include "models/io/npy.hpp"
#include "models/io/scratch.hpp"
#include "tool/cli/small_verbs.hpp"
#include "tool/cli/terminal.hpp"

namespace headgate {
namespace {

using headgate::testing::expect_refused;
using headgate::testing::Outcome;
using headgate::testing::TrainVerb;
using Json = nlohmann::json;

/// Trains a model for a moment.
class GenerateVerb : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    g_verbs = new TrainVerb;
    ASSERT_EQ(g_verbs->train("run").status, 0);
    ASSERT_EQ(g_verbs->train("gated", {"--gate", "headwise"}).status, 0);
    ASSERT_EQ(g_verbs->train("long", {"--seq-len", "64"}).status, 0);
    ASSERT_EQ(g_verbs->train("with-bos", {"--bos", "on"}).status, 0);
  }
  static void TearDownTestSuite() { delete g_verbs; }

  static std::string path(const std::string& name) { return g_verbs->path(name); }
  static Outcome generate(const std::vector<std::string>& options, const std::string& model = "run") {
    std::vector<std::string> all = {"generate", path(model), "--threads", "2"};
    all.insert(all.end(), options.begin(), options.end());
    return testing::headgate(all);
  }
  static Json json(std::vector<std::string> options, const std::string& model = "run") {
    options.emplace_back("--json");
    const Outcome outcome = generate(options, model);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    return Json::parse(outcome.out);
  }
  static void expect_refusal(const std::vector<std::string>& options, const std::string& reason,
                             const std::string& model = "run") {
    expect_refused(generate(options, model), "generate", reason);
  }

 private:
  static inline TrainVerb* g_verbs = nullptr;
};

TEST_F(GenerateVerb, Text_Printed_IsThatOfTheJson) {
  const Outcome outcome = generate({"--prompt", "it is", "--max-tokens", "8"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");  // figures are only for terminals
  const Json out = json({"--prompt", "it is", "--max-tokens", "8"});
  EXPECT_EQ(outcome.out, out["text"].get<std::string>() + "\n");
  EXPECT_EQ(out["model"], path("run"));
  EXPECT_EQ(out["stop"], "max_tokens");
  EXPECT_EQ(out["prompt_ids"], Json({'i', 't', ' ', 'i', 's'}));
  EXPECT_EQ(out["ids"].size(), 8U);
  EXPECT_GT(out["tokens_per_second"].get<double>(), 0.0);
  EXPECT_GT(out["prompt_tokens_per_second"].get<double>(), 0.0);
  EXPECT_GT(out["bytes_per_token"].get<double>(), 0.0);
  EXPECT_GT(out["machine_read_gbps"].get<double>(), 0.0);
  EXPECT_GT(out["read_share"].get<double>(), 0.0);
}

TEST_F(GenerateVerb, Bos_ModelTrainedWithIt_StandsBeforeThePrompt) {
  const Json out = json({"--prompt", "it is", "--max-tokens", "8"}, "with-bos");
  EXPECT_EQ(out["prompt_ids"], Json({256, 'i', 't', ' ', 'i', 's'}));
  EXPECT_EQ(out["ids"].size(), 8U);
}

TEST_F(GenerateVerb, EndToken_OfConfigAlone_SurvivesConvert) {
  const std::vector<std::string> options = {"--prompt", "it is", "--max-tokens", "4"};
  ASSERT_EQ(testing::headgate({"convert", path("run"), path("ends")}).status, 0);
  Json config = Json::parse(testing::read_bytes(path("ends/config.json")));
  EXPECT_FALSE(config.contains("eos_token_id"));
  config["eos_token_id"] = json(options)["ids"][0];
  testing::write_bytes(path("ends/config.json"), config.dump());
  ASSERT_EQ(testing::headgate({"convert", path("ends"), path("converted")}).status, 0);
  for (const char* model : {"ends", "converted"}) EXPECT_EQ(json(options, model)["stop"], "end_token") << model;
}

TEST_F(GenerateVerb, Generation_PositionsUsedUp_Stops) {
  const Json out = json({"--prompt", "0123456789", "--max-tokens", "100"});
  EXPECT_EQ(out["stop"], "capacity");
  EXPECT_EQ(out["ids"].size(), 7U);  // the model has 16 positions; the last token needs none
  expect_refusal({"--prompt", "0123456789abcdefg"}, "the prompt has 17 tokens, more than the 16 that the model has");
}

TEST_F(GenerateVerb, Text_SameSeed_IsTheSame) {
  const auto text = [](const std::string& seed, const std::string& option = "--seed") {
    return generate({"--prompt", "it", "--temperature", "1.5", "--top-k", "200", "--top-p", "0.99", option, seed}).out;
  };
  EXPECT_EQ(text("3"), text("3"));
  EXPECT_EQ(text("3"), text("3", "-s"));
  EXPECT_NE(text("3"), text("4"));
}

TEST_F(GenerateVerb, Prompts_FromFiles_AreReadAndFiguresPrinted) {
  testing::write_bytes(path("prompt"), "it is");
  const Json expected = json({"--prompt", "it is"});
  EXPECT_EQ(json({"--prompt-file", path("prompt")})["ids"], expected["ids"]);
  const std::string command =
      "printf 'it is' | " + testing::headgate_path() + " generate " + path("run") + " --prompt-file - --verbose";
  const Outcome outcome = testing::run_program({"/bin/sh", "-c", command});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out, expected["text"].get<std::string>() + "\n");
  for (const char* part :
       {"prompt     5 tokens, ", "generated  12 tokens, ", "% of the ", "stopped    the model has no"}) {
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  }
}

TEST_F(GenerateVerb, Prompt_FromAPipe_IsLessItsLastNewline) {
  const Json expected = json({"-p", "it is", "-n", "4"});
  EXPECT_EQ(expected["ids"].size(), 4U);
  const auto piped = [](const std::string& printed, const std::string& options) {
    const std::string command = "printf '" + printed + "' | " + testing::headgate_path() + " generate " + path("run") +
                                " -n 4 -t 2 --json " + options;
    return testing::run_program({"/bin/sh", "-c", command});
  };
  for (const char* options : {"", "--prompt -", "-p -"}) {
    for (const char* text : {"it is", "it is\\n"}) {
      const Outcome outcome = piped(text, options);
      EXPECT_EQ(outcome.err, "");
      const Json out = Json::parse(outcome.out);
      EXPECT_EQ(out["prompt_ids"], expected["prompt_ids"]) << options;
      EXPECT_EQ(out["ids"], expected["ids"]);
    }
  }
  EXPECT_EQ(Json::parse(piped("it is\\n", "-f -").out)["prompt_ids"].size(), 6U);
  expect_refused(piped("\\n", ""), "generate", "a prompt is required: standard input is empty");
}

TEST_F(GenerateVerb, Prompt_NoneOnATerminal_IsRequired) {
  const testing::Screen screen =
      testing::run_on_terminal(80, {testing::headgate_path(), "generate", path("run"), "--threads", "2"});
  EXPECT_EQ(screen.status, 2);
  EXPECT_NE(screen.output.find("a prompt is required: --prompt, --prompt-file"), std::string::npos) << screen.output;
}

TEST_F(GenerateVerb, StopText_Reached_EndsTheText) {
  const std::string text = json({"--prompt", "it is"})["text"];
  const std::string stop = text.substr(2, 2);
  const Json out = json({"--prompt", "it is", "--stop", "never", "--stop", stop});
  EXPECT_EQ(out["stop"], "stop_text");
  EXPECT_EQ(out["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(generate({"--prompt", "it is", "--stop", stop}).out, text.substr(0, text.find(stop)) + "\n");
  EXPECT_EQ(json({"--prompt", "it is", "--stop", "never"})["text"], text);
  EXPECT_NE(generate({"--prompt", "it is", "--stop", stop, "--verbose"}).err.find("stopped    --stop\n"),
            std::string::npos);
}

TEST_F(GenerateVerb, LogProbabilities_AskedFor_AreWritten) {
  const std::string file = path("log_probs.npy");
  const Json out = json({"--prompt", "it", "--max-tokens", "5", "--logits", file, "--dtype", "f32"});
  const io::Array array = io::read_npy(file);
  ASSERT_EQ(array.shape, (std::vector<std::int64_t>{5, 256}));
  ASSERT_EQ(array.dtype, DType::f32);
  const auto* row = reinterpret_cast<const float*>(array.data.get());
  for (const std::int64_t id : out["ids"]) {
    double sum = 0.0;
    for (int v = 0; v < 256; ++v) sum += std::exp(static_cast<double>(row[v]));
    EXPECT_NEAR(sum, 1.0, 1e-4);
    EXPECT_EQ(std::max_element(row, row + 256) - row, id);
    row += 256;
  }
}

TEST_F(GenerateVerb, TypesAndThresholds_Given_AreUsed) {
  for (const char* dtype : {"f32", "bf16"}) {
    for (const char* cache : {"f32", "i8"}) {
      EXPECT_EQ(json({"--prompt", "it", "--dtype", dtype, "--cache-dtype", cache})["ids"].size(), 15U);
    }
  }
  EXPECT_EQ(json({"--prompt", "it", "--cache-dtype", "i8", "--cache-first", "4"})["ids"].size(), 15U);
  const Json plain = json({"--prompt", "it"}, "gated");
  EXPECT_EQ(json({"--prompt", "it", "--gate-threshold", "0"}, "gated")["ids"], plain["ids"]);
  EXPECT_EQ(json({"--prompt", "it", "--gate-threshold", "0.999"}, "gated")["ids"].size(), 15U);
}

TEST_F(GenerateVerb, Draft_OfAnyLength_ChangesNoToken) {
  const Json plain = json({"--prompt", "it it it", "--dtype", "f32"});
  EXPECT_EQ(plain["guessed"], 0);
  for (const char* drafts : {"1", "64"}) {
    const Json out = json({"--prompt", "it it it", "--dtype", "f32", "--draft", drafts});
    EXPECT_EQ(out["ids"], plain["ids"]);
    EXPECT_GE(out["guessed"], out["guessed_right"]);
  }
  expect_refusal({"--prompt", "a", "--draft", "65"}, "--draft");
}

TEST_F(GenerateVerb, Precision_Bf16_ReadsLongPromptsInBf16) {
  const auto first_choice = [](const std::string& prompt, const std::string& precision) {
    const std::string file = path("first.npy");
    json({"--prompt", prompt, "--max-tokens", "1", "--logits", file, "--precision", precision}, "long");
    const io::Array array = io::read_npy(file);
    const auto* row = reinterpret_cast<const float*>(array.data.get());
    return std::vector<float>(row, row + 256);
  };
  const std::string few(20, 'a'), many(40, 'a');
  EXPECT_EQ(first_choice(few, "bf16"), first_choice(few, "f32"));
  const std::vector<float> rounded = first_choice(many, "bf16"), exact = first_choice(many, "f32");
  EXPECT_NE(rounded, exact);
  for (std::size_t v = 0; v < exact.size(); ++v) EXPECT_NEAR(rounded[v], exact[v], 0x1p-6 * std::abs(exact[v])) << v;
  expect_refusal({"--prompt", few, "--precision", "f16"}, "--precision");
}

TEST_F(GenerateVerb, Reader_Leaves_IsNoError) {
  const std::string command =
      "( " + testing::headgate_path() + " generate " + path("run") + " --prompt it; echo status $? >&2 ) | true";
  const Outcome outcome = testing::run_program({"/bin/sh", "-c", command});
  EXPECT_EQ(outcome.err, "status 0\n");
}

TEST_F(GenerateVerb, Arguments_Bad_AreRefusedOnOneLine) {
  expect_refusal({}, "a prompt is required: standard input is empty");
  expect_refusal({"--prompt", "a", "--prompt-file", "b"}, "--prompt and --prompt-file are two prompts");
  expect_refusal({"--prompt", "a", "--stop", ""}, "--stop");
  expect_refusal({"--prompt-file", path("none")}, "cannot open");
  testing::write_bytes(path("empty"), "");
  expect_refusal({"--prompt-file", path("empty")}, "the prompt has no tokens");
  expect_refusal({"--prompt", "a", "--chat"}, "the model has no chat template");
  expect_refusal({"--prompt", "a", "--system", "b"}, "--system needs --chat");
  expect_refusal({"--prompt", "a", "--top-k", "5"}, "need a --temperature above 0");
  expect_refusal({"--prompt", "a", "--top-p", "0.5"}, "need a --temperature above 0");
  expect_refusal({"--prompt", "a", "--seed", "1"}, "need a --temperature above 0");
  expect_refusal({"--prompt", "a", "--temperature", "-1"}, "temperature is -1 but must be at least 0");
  expect_refusal({"--prompt", "a", "--temperature", "1", "--top-k", "-1"}, "top_k is -1 but must be at least 0");
  expect_refusal({"--prompt", "a", "--temperature", "1", "--top-p", "0"}, "top_p is 0 but must be above 0");
  expect_refusal({"--prompt", "a", "--max-tokens", "0"}, "--max-tokens");
  expect_refusal({"--prompt", "a", "--dtype", "f16"}, "--dtype: 'f16' is none of bf16, f32");
  expect_refusal({"--prompt", "a", "--cache-dtype", "i4"}, "--cache-dtype: 'i4' is none of f32, i8");
  expect_refusal({"--prompt", "a", "--cache-first", "4"}, "--cache-first");
  expect_refusal({"--prompt", "a", "--cache-dtype", "f32", "--cache-first", "4"},
                 "--cache-first is 4 but --cache-dtype is f32: only i8 rounds keys and values");
  expect_refusal({"--prompt", "a", "--gate-threshold", "0.1"}, "which does not multiply the attention output");
  expect_refusal({"--prompt", "a", "--gate-threshold", "-1"}, "--gate-threshold is -1 but must be", "gated");
  expect_refusal({"--prompt", "a", "--logits", path("no/such/file.npy")}, "no/such");
  expect_refusal({"--prompt", "a"}, "none: does not exist", "none");
}

/// Writes a GGUF file whose matrices take a while to read: a llama of one layer whose numbers are 0.
std::string large_gguf() {
  constexpr std::int64_t kDim = 1024, kVocab = 8192;
  constexpr std::uint32_t kF16 = 1;
  testing::GgufBytes file;
  file.string("general.architecture", "llama");
  for (const auto& [key, value] : {std::pair{"block_count", 1},
                                   {"context_length", 8192},
                                   {"embedding_length", 1024},
                                   {"feed_forward_length", 1024},
                                   {"attention.head_count", 16}}) {
    file.u32(std::string("llama.") + key, static_cast<std::uint32_t>(value));
  }
  file.f32("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  std::vector<std::string> tokens{"a", "b"};
  while (std::ssize(tokens) < kVocab) tokens.push_back("t" + std::to_string(tokens.size()));
  file.string("tokenizer.ggml.model", "gpt2").string("tokenizer.ggml.pre", "gpt2");
  file.strings("tokenizer.ggml.tokens", tokens).strings("tokenizer.ggml.merges", {});
  const auto matrix = [&](const char* name, std::int64_t rows) {
    file.tensor(name, {rows, kDim}, kF16, std::string(static_cast<std::size_t>(rows * kDim * 2), '\0'));
  };
  matrix("token_embd.weight", kVocab);
  for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"}) {
    matrix(("blk.0." + std::string(name) + ".weight").c_str(), kDim);
  }
  for (const char* name : {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"}) {
    file.f32_tensor(name, {kDim}, std::vector<float>(kDim, 1.0F));
  }
  return file.bytes();
}

TEST(GenerateFromGguf, FileShortenedWhileItIsRead_IsAnErrorThatNamesIt) {
  const testing::Scratch scratch;
  const std::string model = scratch / "large.gguf", bytes = large_gguf();
  for (const int milliseconds : {20, 100, 200, 300, 400, 500}) {
    testing::write_bytes(model, bytes);
    std::thread shortens([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      EXPECT_EQ(::truncate(model.c_str(), static_cast<off_t>(bytes.size() / 3)), 0);
    });
    const Outcome outcome = testing::headgate({"generate", model, "--prompt", "ab", "--max-tokens", "8000", "--quiet"});
    shortens.join();
    EXPECT_EQ(outcome.status, 2) << outcome.err;
    EXPECT_TRUE(outcome.err.starts_with("headgate generate: " + model + ": ")) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
}

}  // namespace
}  // namespace headgate
