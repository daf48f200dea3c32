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

#include "models/families/model_file.hpp"
#include "models/generate/cached_decoder.hpp"
#include "models/generate/chat.hpp"
#include "models/generate/conversation.hpp"
#include "models/generate/files.hpp"
#include "models/generate/generate.hpp"
#include "models/io/input_file.hpp"
#include "models/io/npy.hpp"
#include "models/tokenize/open.hpp"
#include "models/train/evaluation_choices.hpp"
#include "tool/cli/chat_loop.hpp"
#include "tool/cli/dtype_option.hpp"
#include "tool/cli/gate_threshold.hpp"
#include "tool/cli/generate_report.hpp"
#include "tool/cli/json_option.hpp"
#include "tool/cli/output_files.hpp"
#include "tool/cli/precision_option.hpp"
#include "tool/cli/signals.hpp"
#include "tool/cli/threads.hpp"
#include "tool/cli/verbs.hpp"
#include "tool/console/console.hpp"
#include "tool/console/progress.hpp"

namespace headgate::cli {
namespace {

using generate::Generated;

constexpr std::int64_t kMaxTokens = 256;  // maximum number of new tokens if --max-tokens is not given
constexpr std::size_t kMaxPromptBytes = std::size_t{1} << 26;

struct GenerateOptions {
  std::string model;
  std::string prompt, prompt_file;
  std::string system;
  bool chat = false;
  bool special_tokens = false;
  generate::Sampling sampling;
  std::optional<std::uint64_t> seed;
  std::vector<std::string> stop_texts;
  std::optional<std::int64_t> max_tokens;
  std::optional<double> gate_threshold;
  std::optional<DType> dtype;
  DType cache_dtype = DType::f32;
  std::int64_t cache_first = 0;
  std::int64_t drafts = 0;
  models::ModelPrecision precision = models::ModelPrecision::f32;
  int threads = 0;
  bool json = false;
  bool verbose = false;
  std::string logits;

  bool has_prompt() const { return !prompt.empty() || !prompt_file.empty(); }
  bool converses() const { return chat && !has_prompt(); }
};

/// The chat template, the end tokens and the tokenizer of a model.
struct TextFiles {
  generate::GenerationFiles files;
  std::unique_ptr<tokenize::Tokenizer> tokenizer;
};

/// The prompt's tokens, and the token ids that end the generated text.
/// The prompt is tokenized before the weights are read, so that a bad prompt fails early.
struct Prompt {
  tokenize::Encoding encoding;
  std::vector<std::int32_t> end_ids;
};

/// Collects the log-probabilities of the whole vocabulary at each generated token, (tokens,V) in f32.
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

void check_options(const GenerateOptions& o) {
  if (!o.prompt.empty() && !o.prompt_file.empty()) {
    throw UsageError("--prompt and --prompt-file are two prompts; give one of them");
  }
  if (!o.has_prompt() && !o.chat && ::isatty(STDIN_FILENO) == 1) {
    throw UsageError("a prompt is required: --prompt, --prompt-file, a text on standard input, or --chat to converse");
  }
  if (o.converses() && !o.logits.empty()) throw UsageError("--logits is of one text: --chat needs a --prompt with it");
  if (!o.system.empty() && !o.chat) throw UsageError("--system needs --chat");
  const bool draws = o.sampling.top_k > 0 || o.sampling.top_p < 1.0 || o.seed;
  if (draws && o.sampling.temperature == 0.0) {
    throw UsageError("--top-k, --top-p and --seed need a --temperature above 0: at 0 the most likely token is taken");
  }
  generate::check_sampling(o.sampling);
}

/// Returns the prompt, from --prompt-file, --prompt or standard input.
/// Removes one trailing newline from standard input, because `echo` writes one. Keeps every byte of --prompt-file.
std::string prompt_text(const GenerateOptions& o) {
  if (!o.prompt_file.empty()) {
    return io::read_stream(o.prompt_file == "-" ? "/dev/stdin" : o.prompt_file, kMaxPromptBytes);
  }
  if (!o.prompt.empty() && o.prompt != "-") return o.prompt;
  std::string text = io::read_stream("/dev/stdin", kMaxPromptBytes);
  if (text.ends_with('\n')) text.pop_back();
  if (text.empty()) throw UsageError("a prompt is required: standard input is empty, and there is no --prompt");
  return text;
}

generate::Chat open_chat(const GenerateOptions& o, const TextFiles& model) {
  return {model.files, *model.tokenizer, {.special_as_text = !o.special_tokens}};
}

Prompt read_prompt(const GenerateOptions& o, const TextFiles& model) {
  Prompt out;
  out.end_ids = model.files.end_ids;
  const std::string text = prompt_text(o);
  if (o.chat) {
    const generate::Chat chat = open_chat(o, model);
    out.end_ids = chat.end_ids();
    out.encoding = chat.write(generate::question_messages(o.system, text)).tokens;
    require(!out.encoding.ids.empty(), "the chat template writes nothing for this prompt");
  } else {
    out.encoding = model.tokenizer->encode(text, {.add_special = true, .special_as_text = !o.special_tokens});
  }
  say_left_out(out.encoding.left_out);
  return out;
}

/// `capacity`: maximum number of tokens in the cache, the prompt included.
models::CachedDecoderOptions decoder_options(const GenerateOptions& o, std::int64_t capacity) {
  models::CachedDecoderOptions out;
  out.weights = o.dtype;
  out.precision = o.precision;
  out.cache = o.cache_dtype;
  require(o.cache_first == 0 || o.cache_dtype == DType::i8,
          "--cache-first is {} but --cache-dtype is {}: only i8 rounds keys and values", o.cache_first,
          dtype_name(o.cache_dtype));
  out.cache_first = o.cache_first;
  out.capacity = capacity;
  out.keep = std::min(o.drafts, capacity);
  out.gate_threshold = o.gate_threshold.value_or(0.0);
  out.context.threads = o.threads;
  return out;
}

/// Runs a conversation. Without --max-tokens, an answer may use all positions of the model.
int converse(const GenerateOptions& o, const models::ModelFile& file, const TextFiles& model) {
  const generate::Chat chat = open_chat(o, model);
  chat.write(generate::question_messages(o.system, "?"));  // throws if the chat template has no system role
  const std::int64_t positions = file.config().seq_len;
  models::CachedDecoder decoder(file, decoder_options(o, positions));
  generate::Conversation conversation(
      decoder, *model.tokenizer, chat, o.system,
      {o.sampling, o.max_tokens.value_or(positions), model.files.end_ids, o.stop_texts, o.drafts});
  return run_chat(
      conversation,
      {.model = o.model, .threads = decoder.options().context.threads, .json = o.json, .figures = o.verbose});
}

int generate_text(const GenerateOptions& o, const models::ModelFile& file, const TextFiles& model) {
  const Prompt prompt = read_prompt(o, model);
  const auto tokens = static_cast<std::int64_t>(prompt.encoding.ids.size());
  const std::int64_t positions = file.config().seq_len, most = o.max_tokens.value_or(kMaxTokens);
  require(tokens <= positions, "the prompt has {} tokens, more than the {} that the model has positions for", tokens,
          positions);
  models::CachedDecoder decoder(file, decoder_options(o, std::min(positions, tokens + most)));

  const SignalWatch watch;
  TextOutput output{.json = o.json};
  LogProbabilities log_probabilities;
  generate::GenerateHooks hooks;
  hooks.text = text_hook(output);
  if (!o.logits.empty()) hooks.logits = [&](std::span<const float> logits) { log_probabilities.add(logits); };
  const Generated result = generate::generate(decoder, *model.tokenizer, prompt.encoding.ids,
                                              {o.sampling, most, prompt.end_ids, o.stop_texts, o.drafts}, hooks);

  console::ProgressBar::clear_line();  // removes the progress bar of an interrupted prompt
  if (!o.logits.empty()) log_probabilities.write(o.logits, file.config().vocab);
  const bool shown = o.verbose || (::isatty(STDERR_FILENO) == 1 && !console::is_quiet());
  GenerateFigures figures = figures_of(result);
  const int signal_number = SignalWatch::received();
  if ((shown || o.json) && signal_number == 0 && !output.reader_left && result.steps > 0) {
    figures.machine_gbps = measure_machine_gbps(decoder.options().context.threads);
  }
  console::say(stdout,
               o.json ? json_text(generated_json(o.model, prompt.encoding.ids, result, figures, output.text)) : "\n");
  if (shown) console::say(stderr, figures_text(result, figures, *model.tokenizer));
  return signal_number != 0 ? kSignalStatus + signal_number : kSuccess;
}

int run_generate(GenerateOptions o) {
  survive_lost_output();
  check_options(o);
  o.sampling.seed = o.seed.value_or(o.sampling.seed);
  check_outputs({{"--logits", o.logits}}, [&o](InputFiles& inputs) {
    inputs.add_models("MODEL", {o.model});
    inputs.add_file("--prompt-file", o.prompt_file);
  });
  const std::string path = train::model_path(o.model);
  const models::ModelFile file(path);
  check_gate_threshold(o.gate_threshold, {{o.model, file.config()}});
  const TextFiles model{generate::read_generation_files(path, file), tokenize::open_tokenizer(path)};
  for (const std::string& setting : model.files.not_followed) {
    console::note(fmt::format("headgate generate: does not follow {} of generation_config.json\n", setting));
  }
  return o.converses() ? converse(o, file, model) : generate_text(o, file, model);
}

void declare_sampling(VerbOptions& verb, GenerateOptions& o) {
  generate::Sampling& sampling = o.sampling;
  verb.group("Choice of tokens");
  verb.value("--temperature", sampling.temperature, "T",
             "Logits are divided by it before tokens are drawn; 0 (default): the most likely token is taken");
  verb.value("--top-k", sampling.top_k, "K", "Draw from the K most likely tokens (default 0: from all)");
  verb.value("--top-p", sampling.top_p, "P",
             "Draw from the most likely tokens, as few as have the probability P together (default 1: from all); of "
             "those that --top-k leaves");
  verb.value("-s,--seed", o.seed, "N",
             "Seed of the random numbers (default 1); the same seed gives the same text. Each further answer of a "
             "conversation has the next seed");
}

void declare_computation(VerbOptions& verb, GenerateOptions& o) {
  verb.group("Computation");
  declare_dtype(
      verb, "--dtype", o.dtype, {DType::bf16, DType::f32},
      "Of the matrices in memory: f32, or bf16, rounded to nearest even (default: matrices of a GGUF file are "
      "read where they lie, in the file's format; otherwise bf16)");
  declare_dtype(verb, "--cache-dtype", o.cache_dtype, {DType::f32, DType::i8},
                "Of the keys and values in memory: f32 (default) or i8, with a scale for each token and head");
  verb.value("--cache-first", o.cache_first, "N",
             "Keys and values of the first N tokens stay in f32 beside --cache-dtype i8 (default 0)")
      .range(0, 1 << 20)
      .needs(verb.declared("--cache-dtype"));
  verb.value(
          "--draft", o.drafts, "N",
          "Guess up to N next tokens, those that followed the last three tokens, or the last two, earlier in the text, "
          "and check them with the next one in one pass (default 0): faster where a text repeats its prompt, as "
          "summaries and edits do. The same choices, up to the rounding of logits")
      .range(std::int64_t{0}, std::int64_t{64});
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
  auto o = std::make_shared<GenerateOptions>();
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
             "standard input is read if it is no terminal, or with --chat");
  verb.value("-f,--prompt-file", o->prompt_file, "FILE", "The same from a file, with every byte; - for standard input");
  verb.flag("--chat", o->chat,
            "The prompt is a question, and without a prompt each line of standard input is one, of a conversation: "
            "write it as the model's chat template does (docs/reference/generation.md)");
  verb.value("--system", o->system, "STRING",
             "What the model is told before the question, if its template takes it (default: the template's own text, "
             "if any)");
  verb.flag("--special-tokens", o->special_tokens,
            "Read special tokens spelled in the prompt or in --system, such as <|im_start|>, as these tokens "
            "(default: as text)");
  verb.values("--stop", o->stop_texts, "STRING",
              "End the text before STRING; may be repeated. What may be its beginning is printed once it is clear that "
              "it is not. $'\\n' is a newline in most shells");
  verb.value("-n,--max-tokens", o->max_tokens, "N",
             "Generate at most N tokens (default 256; in a conversation as many as the model has positions for)")
      .range(std::int64_t{1}, std::int64_t{1} << 30);
  declare_sampling(verb, *o);
  declare_computation(verb, *o);
  verb.group("Output");
  declare_json(verb, o->json, "one object, at the end, or in a conversation a line for each answer,");
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
      "A conversation ends at the end of standard input (Ctrl-D). Ctrl-C ends an answer.\n"
      "A backslash at its end continues a line. Lines that are commands:\n" +
      chat_commands_help() +
      "\n"
      "JSON output:\n"
      "  model              MODEL\n"
      "  text               without special tokens and what --stop names; bytes that are\n"
      "                     not UTF-8 as U+FFFD\n"
      "  ids                of the new tokens, with the one that ended the text\n"
      "  stop               end_token, stop_text, max_tokens, capacity (no positions\n"
      "                     left) or interrupted\n"
      "  prompt_ids         of the prompt's tokens, as the model reads them\n"
      "  prompt_tokens_per_second, tokens_per_second\n"
      "  bytes_per_token    weights and cache that a new token reads\n"
      "  read_gbps          the same in 1e9 bytes a second\n"
      "  guessed, guessed_right  tokens that --draft guessed, and those that were chosen\n"
      "  machine_read_gbps  measured on this machine; read_share is their quotient\n"
      "\n"
      "Examples:\n"
      "  headgate generate run --prompt 'It was' --temperature 0.8 --seed 3\n"
      "  headgate generate SmolLM2.gguf --chat\n"
      "  headgate generate SmolLM2.gguf --chat --prompt 'What is a gate?'\n"
      "  echo 'Q: What is a gate? A:' | headgate generate SmolLM2.gguf -n 64 --stop Q:");
  return {"generate", [o] { return run_generate(*o); }, /*runs_models=*/true};
}

}  // namespace headgate::cli
