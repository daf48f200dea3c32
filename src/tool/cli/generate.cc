// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "headgate/runtime.hpp"
#include "models/families/model_file.hpp"
#include "models/generate/cached_decoder.hpp"
#include "models/generate/chat.hpp"
#include "models/generate/files.hpp"
#include "models/generate/generate.hpp"
#include "models/io/input_file.hpp"
#include "models/io/npy.hpp"
#include "models/io/units.hpp"
#include "models/tokenize/open.hpp"
#include "models/train/evaluation_choices.hpp"
#include "tool/cli/dtype_option.hpp"
#include "tool/cli/gate_threshold.hpp"
#include "tool/cli/json_option.hpp"
#include "tool/cli/output_files.hpp"
#include "tool/cli/precision_option.hpp"
#include "tool/cli/signals.hpp"
#include "tool/cli/threads.hpp"
#include "tool/cli/verbs.hpp"
#include "tool/console/console.hpp"
#include "tool/machine/machine.hpp"

namespace headgate::cli {
namespace {

using generate::Generated;
using generate::StopReason;

constexpr std::size_t kMaxPromptBytes = std::size_t{1} << 26;

struct Options {
  std::string model;
  std::string prompt, prompt_file;
  std::string system;
  bool chat = false;
  bool special_tokens = false;
  generate::Sampling sampling;
  std::vector<std::string> stop_texts;
  std::int64_t max_tokens = 256;
  std::optional<double> gate_threshold;
  std::optional<DType> dtype;
  DType cache_dtype = DType::f32;
  models::ModelPrecision precision = models::ModelPrecision::f32;
  int threads = 0;
  bool json = false;
  bool verbose = false;
  std::string logits;
};

/// Holds everything that can be refused, which is read before the weights.
struct Prompt {
  std::unique_ptr<tokenize::Tokenizer> tokenizer;
  tokenize::Encoding encoding;
  std::vector<std::int32_t> end_ids;
};

/// Collects the log-probabilities from which tokens were chosen, (tokens,V) in f32.
class LogProbabilities {
 public:
  void add(std::span<const float> logits) {
    const double largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0.0;
    for (const float x : logits) sum += std::exp(static_cast<double>(x) - largest);
    const double lse = largest + std::log(sum);
    for (const float x : logits) values_.push_back(static_cast<float>(static_cast<double>(x) - lse));
  }
  void write(const std::string& path, std::int64_t vocab) const {
    io::Array out = io::make_array(DType::f32, {static_cast<std::int64_t>(values_.size()) / vocab, vocab});
    std::copy(values_.begin(), values_.end(), reinterpret_cast<float*>(out.data.get()));
    io::NpyWriter writer;
    writer.add(path, out);
    writer.commit();
  }

 private:
  std::vector<float> values_;
};

/// Holds the figures of a run. Rates are in tokens and in 1e9 bytes a second; 0 if nothing was timed.
struct Figures {
  double prompt_rate = 0.0, rate = 0.0;
  double step_bytes = 0.0;  ///< bytes read for a generated token
  double read_gbps = 0.0;
  double machine_gbps = 0.0;  ///< what this machine reads from memory; 0: not measured
};

Figures figures_of(const Generated& result) {
  const auto per_second = [](double count, double seconds) { return seconds > 0.0 ? count / seconds : 0.0; };
  Figures out;
  out.prompt_rate = per_second(static_cast<double>(result.prompt_tokens), result.prompt_seconds);
  out.rate = per_second(static_cast<double>(result.steps), result.step_seconds);
  if (result.steps > 0) out.step_bytes = result.step_bytes / static_cast<double>(result.steps);
  out.read_gbps = per_second(result.step_bytes * 1e-9, result.step_seconds);
  return out;
}

/// Returns the best of a few passes, which take a tenth of a second or two.
double machine_gbps(int threads) {
  constexpr int kPasses = 6;
  bench::ReadMeter meter(active_target(), threads);
  double best = 0.0;
  for (int pass = 0; pass < kPasses; ++pass) best = std::max(best, meter.pass());
  return best;
}

std::string stop_text(const Generated& result, const tokenize::Tokenizer& tokenizer) {
  switch (result.stop) {
    case StopReason::end_token:
      return fmt::format("the model ended the text with {}", tokenizer.spelling(result.ids.back()));
    case StopReason::stop_text: return "--stop";
    case StopReason::max_tokens: return "--max-tokens";
    case StopReason::capacity: return "the model has no positions for more tokens";
    case StopReason::interrupted: return "interrupted";
  }
  return "";
}

std::string figures_text(const Generated& result, const Figures& figures, const tokenize::Tokenizer& tokenizer) {
  std::string out = fmt::format("prompt     {} tokens, {:.1f} tokens/s\n", result.prompt_tokens, figures.prompt_rate);
  out += fmt::format("generated  {} tokens", result.ids.size());
  if (result.steps > 0) {
    out += fmt::format(", {:.1f} tokens/s, each reads {} of weights and cache", figures.rate,
                       console::bytes_text(figures.step_bytes));
  }
  out += '\n';
  if (result.steps > 0 && figures.machine_gbps > 0.0) {
    out += fmt::format("memory     {:.1f} GB/s read, {:.0f}% of the {:.1f} GB/s of this machine\n", figures.read_gbps,
                       100.0 * figures.read_gbps / figures.machine_gbps, figures.machine_gbps);
  }
  return out + fmt::format("stopped    {}\n", stop_text(result, tokenizer));
}

std::string json_text(const Options& o, const Prompt& prompt, const Generated& result, const Figures& figures,
                      const std::string& text) {
  using Json = nlohmann::ordered_json;
  const auto number = [](double x) { return x > 0.0 ? Json(x) : Json(nullptr); };
  const double share = figures.machine_gbps > 0.0 ? figures.read_gbps / figures.machine_gbps : 0.0;
  const Json out = {{"model", o.model},
                    {"text", text},
                    {"ids", result.ids},
                    {"stop", word_of(result.stop)},
                    {"prompt_ids", prompt.encoding.ids},
                    {"prompt_tokens_per_second", number(figures.prompt_rate)},
                    {"tokens_per_second", number(figures.rate)},
                    {"bytes_per_token", number(figures.step_bytes)},
                    {"read_gbps", number(figures.read_gbps)},
                    {"machine_read_gbps", number(figures.machine_gbps)},
                    {"read_share", number(share)}};
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

void check_options(const Options& o) {
  if (!o.prompt.empty() && !o.prompt_file.empty()) {
    throw UsageError("--prompt and --prompt-file are two prompts; give one of them");
  }
  if (o.prompt.empty() && o.prompt_file.empty() && ::isatty(STDIN_FILENO) == 1) {
    throw UsageError("a prompt is required: --prompt, --prompt-file, or a text on standard input");
  }
  if (!o.system.empty() && !o.chat) throw UsageError("--system needs --chat");
  if (o.special_tokens && o.chat) throw UsageError("--special-tokens is not for --chat, which writes them itself");
  const bool draws = o.sampling.top_k > 0 || o.sampling.top_p < 1.0;
  if (draws && o.sampling.temperature == 0.0) {
    throw UsageError("--top-k and --top-p need a --temperature above 0: at 0 the most likely token is taken");
  }
  generate::check_sampling(o.sampling);
}

/// Returns the prompt. Without an option for it, standard input is a pipe or a file that holds it. A prompt from there
/// is less one newline at its end, which `echo` writes; --prompt-file gives all bytes.
std::string prompt_text(const Options& o) {
  if (!o.prompt_file.empty()) {
    return io::read_stream(o.prompt_file == "-" ? "/dev/stdin" : o.prompt_file, kMaxPromptBytes);
  }
  if (!o.prompt.empty() && o.prompt != "-") return o.prompt;
  std::string text = io::read_stream("/dev/stdin", kMaxPromptBytes);
  if (text.ends_with('\n')) text.pop_back();
  if (text.empty()) throw UsageError("a prompt is required: standard input is empty, and there is no --prompt");
  return text;
}

Prompt read_prompt(const Options& o, const std::string& path, const models::ModelFile& file) {
  Prompt out;
  const generate::GenerationFiles files = generate::read_generation_files(path, file);
  out.end_ids = files.end_ids;
  out.tokenizer = tokenize::open_tokenizer(path);
  const std::string text = prompt_text(o);
  if (o.chat) {
    const generate::Chat chat = generate::recognise_chat(files.chat_template);
    out.end_ids.push_back(generate::end_of_turn(chat, *out.tokenizer));
    out.encoding = generate::encode_chat(chat, {o.system, text}, *out.tokenizer);
  } else {
    out.encoding = out.tokenizer->encode(text, {.add_special = true, .special_as_text = !o.special_tokens});
  }
  if (out.encoding.left_out > 0) {
    console::say(stderr,
                 fmt::format("left out: {} bytes that the vocabulary has no token for\n", out.encoding.left_out));
  }
  return out;
}

models::CachedDecoderOptions decoder_options(const Options& o, const models::DecoderConfig& config,
                                             std::size_t prompt_tokens) {
  const auto tokens = static_cast<std::int64_t>(prompt_tokens);
  require(tokens <= config.seq_len, "the prompt has {} tokens, more than the {} that the model has positions for",
          tokens, config.seq_len);
  models::CachedDecoderOptions out;
  out.weights = o.dtype;
  out.precision = o.precision;
  out.cache = o.cache_dtype;
  out.capacity = std::min(config.seq_len, tokens + o.max_tokens);
  out.gate_threshold = o.gate_threshold.value_or(0.0);
  out.context.threads = o.threads;
  return out;
}

int run_generate(const Options& o) {
  survive_lost_output();
  check_options(o);
  check_outputs({{"--logits", o.logits}}, [&o](InputFiles& inputs) {
    inputs.add_models("MODEL", {o.model});
    inputs.add_file("--prompt-file", o.prompt_file);
  });
  const std::string path = train::model_path(o.model);
  const models::ModelFile file(path);
  check_gate_threshold(o.gate_threshold, {{o.model, file.config()}});
  const Prompt prompt = read_prompt(o, path, file);
  models::CachedDecoder decoder(file, decoder_options(o, file.config(), prompt.encoding.ids.size()));

  const SignalWatch watch;
  bool reader_left = false;
  std::string text;
  LogProbabilities log_probabilities;
  generate::GenerateHooks hooks;
  hooks.text = [&](std::string_view bytes) {
    if (o.json) {
      text += bytes;
    } else if (!bytes.empty()) {
      reader_left = !console::say(stdout, std::string(bytes));
    }
    return !reader_left && SignalWatch::received() == 0;
  };
  if (!o.logits.empty()) hooks.logits = [&](std::span<const float> logits) { log_probabilities.add(logits); };
  const Generated result = generate::generate(decoder, *prompt.tokenizer, prompt.encoding.ids,
                                              {o.sampling, o.max_tokens, prompt.end_ids, o.stop_texts}, hooks);

  if (!o.logits.empty()) log_probabilities.write(o.logits, file.config().vocab);
  const bool shown = o.verbose || ::isatty(STDERR_FILENO) == 1;
  Figures figures = figures_of(result);
  const int signal_number = SignalWatch::received();
  if ((shown || o.json) && signal_number == 0 && !reader_left && result.steps > 0) {
    figures.machine_gbps = machine_gbps(decoder.options().context.threads);
  }
  console::say(stdout, o.json ? json_text(o, prompt, result, figures, text) : "\n");
  if (shown) console::say(stderr, figures_text(result, figures, *prompt.tokenizer));
  return signal_number != 0 ? kSignalStatus + signal_number : kSuccess;
}

void declare_sampling(VerbOptions& verb, generate::Sampling& sampling) {
  verb.group("Choice of tokens");
  verb.value("--temperature", sampling.temperature, "T",
             "Logits are divided by it before tokens are drawn; 0 (default): the most likely token is taken");
  verb.value("--top-k", sampling.top_k, "K", "Draw from the K most likely tokens (default 0: from all)");
  verb.value("--top-p", sampling.top_p, "P",
             "Draw from the most likely tokens, as few as have the probability P together (default 1: from all); of "
             "those that --top-k leaves");
  verb.value("-s,--seed", sampling.seed, "N",
             "Seed of the random numbers (default 1); the same seed gives the same text");
}

void declare_computation(VerbOptions& verb, Options& o) {
  verb.group("Computation");
  declare_dtype(
      verb, "--dtype", o.dtype, {DType::bf16, DType::f32},
      "Of the matrices in memory: f32, or bf16, rounded to nearest even (default: matrices of a GGUF file are "
      "read where they lie, in the file's format; otherwise bf16)");
  declare_dtype(verb, "--cache-dtype", o.cache_dtype, {DType::f32, DType::i8},
                "Of the keys and values in memory: f32 (default) or i8, with a scale for each token and head");
  declare_precision(verb, o.precision,
                    "in parts of the prompt of 33 tokens and more, products of matrices and attention",
                    "Norms, softmax, the residual stream, the logits, experts, keys and values in memory, and every "
                    "generated token stay f32: memory bounds those (docs/reference/numerics.md)");
  verb.value("--gate-threshold", o.gate_threshold, "T",
             "Attention leaves out heads of a token whose gate is at most T in every feature; of gates that multiply "
             "the attention output");
  declare_threads(verb, o.threads, "Threads (default: all cores)");
}

}  // namespace

Verb add_generate(CommandLine& line) {
  auto o = std::make_shared<Options>();
  VerbOptions verb = line.add_verb(
      "generate",
      "Generate text with a model: continue a prompt or answer it\n\n"
      "MODEL is a directory made by `headgate train`, a directory of Hugging Face's with config.json and its "
      "tokenizer, or a GGUF file. Text is printed as it comes. It ends with a token that ends texts by the model's "
      "files, with --stop, with --max-tokens, when the model has no positions left, or with Ctrl-C.");
  verb.argument("MODEL", o->model, kModelHelp);
  verb.group("Text");
  verb.value("-p,--prompt", o->prompt, "STRING",
             "The text to continue; - for standard input, less one newline at its end. Without it and --prompt-file, "
             "standard input is read if it is no terminal");
  verb.value("-f,--prompt-file", o->prompt_file, "FILE", "The same from a file, with every byte; - for standard input");
  verb.flag("--chat", o->chat,
            "The prompt is a question: write it as the model's chat template does, which has to be one of ChatML "
            "(SmolLM2, Qwen), Llama 2, 3 and 3.1, and Mistral");
  verb.value("--system", o->system, "STRING",
             "What the model is told before the question (default: the template's own text, if any)");
  verb.flag("--special-tokens", o->special_tokens,
            "Read special tokens spelled in the prompt, such as <|im_start|>, as these tokens (default: as text)");
  verb.values("--stop", o->stop_texts, "STRING",
              "End the text before STRING; may be repeated. What may be its beginning is printed once it is clear that "
              "it is not. $'\\n' is a newline in most shells");
  verb.value("-n,--max-tokens", o->max_tokens, "N", "Generate at most N tokens (default 256)")
      .range(std::int64_t{1}, std::int64_t{1} << 30);
  declare_sampling(verb, o->sampling);
  declare_computation(verb, *o);
  verb.group("Output");
  declare_json(verb, o->json, "one object, at the end,");
  verb.flag("--verbose", o->verbose, "Print the figures on stderr even if it is not a terminal");
  verb.value(
      "--logits", o->logits, "OUT.npy",
      "Write the log-probabilities, at temperature 1, of all tokens at each choice, (tokens,vocab) in f32 and nats");
  verb.footer(
      "Figures, on stderr where it is a terminal: tokens a second of the prompt and of\n"
      "generation, and the bytes of weights and cache that generation reads a second,\n"
      "beside what this machine reads from memory at most. After a signal, which ends\n"
      "the text, the exit status is 128 plus its number.\n"
      "\n"
      "JSON output:\n"
      "  text               without special tokens and what --stop names; bytes that are\n"
      "                     not UTF-8 as U+FFFD\n"
      "  ids                of the new tokens, with the one that ended the text\n"
      "  stop               end_token, stop_text, max_tokens, capacity (no positions\n"
      "                     left) or interrupted\n"
      "  prompt_ids         of the prompt's tokens, as the model reads them\n"
      "  prompt_tokens_per_second, tokens_per_second\n"
      "  bytes_per_token    weights and cache that a new token reads\n"
      "  read_gbps          the same in 1e9 bytes a second\n"
      "  machine_read_gbps  measured on this machine; read_share is their quotient\n"
      "\n"
      "Examples:\n"
      "  headgate generate run --prompt 'It was' --temperature 0.8 --seed 3\n"
      "  headgate generate SmolLM2.gguf --chat --prompt 'What is a gate?'\n"
      "  echo 'Q: What is a gate? A:' | headgate generate SmolLM2.gguf -n 64 --stop Q:");
  return {"generate", [o] { return run_generate(*o); }};
}

}  // namespace headgate::cli
