// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "library/core/check.hpp"
#include "models/data/corpus.hpp"
#include "models/io/input_file.hpp"
#include "models/io/work.hpp"
#include "models/tokenize/bpe_trainer.hpp"
#include "models/tokenize/error.hpp"
#include "models/tokenize/open.hpp"
#include "tool/cli/json_option.hpp"
#include "tool/cli/output_files.hpp"
#include "tool/cli/verbs.hpp"
#include "tool/console/console.hpp"
#include "tool/console/progress.hpp"

namespace headgate::cli {
namespace {

struct TokenizeOptions {
  std::string model;
  std::vector<std::string> text;
  std::optional<std::int64_t> train;  ///< vocabulary size, to train a tokenizer; empty: tokenizes a text
  std::vector<std::string> special;
  std::string out;
  bool bos = false;
  bool json = false;
  bool no_special = false;
  bool special_as_text = false;
};

void print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void append(std::string& text, std::int32_t id) {
  const fmt::format_int digits(id);
  text.append(digits.data(), digits.size());
}

/// Prints token ids, one per line.
class IdLines {
 public:
  void add(const tokenize::Encoding& tokens) {
    std::string out;
    for (const std::int32_t id : tokens.ids) {
      append(out, id);
      out += '\n';
    }
    print(out);
  }
  void finish() {}
};

/// Prints tokens as one JSON object with the lists "ids", "tokens" and "offsets". Prints "ids" as tokens arrive.
/// Keeps "tokens" and "offsets" in a temporary file until the end.
class JsonObject {
 public:
  explicit JsonObject(const tokenize::Tokenizer& tokenizer) : tokenizer_(tokenizer) { print(R"({"ids":[)"); }

  void add(const tokenize::Encoding& tokens) {
    std::string out;
    for (std::size_t i = 0; i < tokens.ids.size(); ++i) {
      const Record record{tokens.ids[i], tokens.spans[i]};
      if (count_++ > 0) out += ',';
      append(out, record.id);
      if (std::fwrite(&record, sizeof(record), 1, file_.get()) != 1) fail();
    }
    print(out);
  }
  void finish() {
    print(R"(],"tokens":[)");
    print_list([this](const Record& record) { return nlohmann::json(tokenizer_.spelling(record.id)).dump(); });
    print(R"(],"offsets":[)");
    print_list([](const Record& record) { return fmt::format("[{},{}]", record.span.begin, record.span.end); });
    print("]}\n");
  }

 private:
  struct Record {
    std::int32_t id;
    tokenize::Span span;
  };

  [[noreturn]] static void fail() {
    throw io::FileError(fmt::format("cannot keep tokens in a temporary file: {}", std::strerror(errno)));
  }

  template <class Text>
  void print_list(const Text& text_of) {
    if (std::fseek(file_.get(), 0, SEEK_SET) != 0) fail();
    Record record{};
    for (std::size_t i = 0; i < count_; ++i) {
      if (std::fread(&record, sizeof(record), 1, file_.get()) != 1) fail();
      if (i > 0) print(",");
      print(text_of(record));
    }
  }

  static std::FILE* temporary_file() {
    std::FILE* file = std::tmpfile();
    if (file == nullptr) fail();
    return file;
  }

  const tokenize::Tokenizer& tokenizer_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{temporary_file(), &std::fclose};
  std::size_t count_ = 0;
};

/// Tokenizes a file piece by piece while reading it. Returns the number of bytes for which there is no token.
/// An error of the tokenizer is rethrown with the path of the file.
template <class Output>
std::size_t tokenize_text(const std::string& path, tokenize::StreamEncoder& encoder, Output output) {
  io::InputStream text(path == "-" ? "/dev/stdin" : path);
  std::error_code unknown;  // set if the size is unknown, as for a pipe
  const auto size = static_cast<double>(std::filesystem::file_size(path, unknown));
  // Shows no progress if stdout is a terminal, because the user sees the tokens appear there.
  const bool shown = !unknown && ::isatty(STDOUT_FILENO) == 0;
  double done = 0.0;
  std::size_t left_out = 0;
  const auto take = [&](auto encode) {
    try {
      const tokenize::Encoding tokens = encode();
      left_out += tokens.left_out;
      output.add(tokens);
    } catch (const io::FileError& error) {
      throw io::FileError(fmt::format("{}: {}", path, error.what()));
    }
  };
  for (std::string_view part = text.next(); !part.empty(); part = text.next()) {
    take([&] { return encoder.next(part); });
    done += static_cast<double>(part.size());
    if (shown) io::report_work("tokenizing ", path, done / size);
  }
  take([&] { return encoder.finish(); });
  output.finish();
  return left_out;
}

/// Passes a text file to the tokenizer's trainer, piece by piece. Error messages name the file.
void add_text(tokenize::BpeTrainer& trainer, const std::string& path) {
  io::InputStream text(path == "-" ? "/dev/stdin" : path);
  try {
    for (std::string_view part = text.next(); !part.empty(); part = text.next()) {
      trainer.add(part, tokenize::More::may_follow);
    }
    trainer.add({}, tokenize::More::none);
  } catch (const tokenize::TokenizerError& error) {
    io::fail(path, "{}", error.what());
  }
}

int run_train(const TokenizeOptions& o) {
  require(!o.out.empty(), "--train needs --out, the tokenizer.json to write");
  require(o.model.empty(), "--train takes no MODEL: {}", o.model);
  check_outputs({{"--out", o.out}}, [&o](InputFiles& inputs) { inputs.add_text("--text", o.text); });
  const std::vector<std::string> files = train::text_files(o.text);
  tokenize::BpeTrainer trainer;
  console::ProgressBar bar;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const double done = static_cast<double>(i) / static_cast<double>(files.size());
    bar.show(done, {.text = "counting words of ", .path = files[i]});
    add_text(trainer, files[i]);
  }
  bar.clear();
  tokenize::TrainedBpe trained;
  try {
    trained = trainer.train({static_cast<std::int32_t>(*o.train), o.special, o.bos});
  } catch (const tokenize::TokenizerError& error) {
    throw Error(fmt::format("--train {}: {}", *o.train, error.what()));
  }
  write_output("tokenize", o.out, trained.json);
  if (o.json) {
    fmt::print("{}", json_text({{"out", o.out},
                                {"ids", trained.ids},
                                {"distinct_words", trainer.distinct_words()},
                                {"left_out_bytes", trainer.left_out()}}));
  }
  const std::string fewer = trained.ids == *o.train
                                ? ""
                                : fmt::format(", not {}: no other pair of tokens occurs twice in the text", *o.train);
  const std::string left_out =
      trainer.left_out() == 0 ? "" : fmt::format("; left out {} bytes that are not UTF-8", trainer.left_out());
  console::note(fmt::format("headgate tokenize: {} ids from {} distinct words{}{}\n", trained.ids,
                            trainer.distinct_words(), fewer, left_out));
  return kSuccess;
}

int run_tokenize(const TokenizeOptions& given) {
  if (given.train) return run_train(given);
  TokenizeOptions o = given;
  // --text takes several paths, so the parser adds a MODEL after them to the same list. Moves the last path to o.model.
  if (o.model.empty() && o.text.size() > 1) {
    o.model = o.text.back();
    o.text.pop_back();
  }
  require(!o.model.empty(), "MODEL is required");
  require(o.text.size() == 1, "--text takes one file without --train, not {}", o.text.size());
  const std::string& text = o.text.back();
  const auto tokenizer = tokenize::open_tokenizer(o.model);
  const auto encoder =
      tokenizer->stream({.add_special = !o.no_special, .special_as_text = o.special_as_text, .spans = o.json});
  const std::size_t left_out =
      o.json ? tokenize_text(text, *encoder, JsonObject(*tokenizer)) : tokenize_text(text, *encoder, IdLines());
  say_left_out(left_out);
  return kSuccess;
}

void declare_training(VerbOptions& verb, TokenizeOptions& o) {
  verb.group("Training");
  const Option train = verb.value("--train", o.train, "N",
                                  "Learn a tokenizer of N ids: the 256 bytes, merges, and <|endoftext|>, which ends a "
                                  "text. Each merge joins the pair of tokens that occurs most often");
  Option(train).range(std::int64_t{257}, std::int64_t{tokenize::kMostTokens});
  verb.value("--out", o.out, "FILE.json", "The tokenizer.json to write").needs(train);
  verb.values("--special", o.special, "TOKEN", "A special token besides <|endoftext|>; may be repeated").needs(train);
  verb.flag("--bos", o.bos, "Put <|endoftext|> before every text too").needs(train);
  for (const char* other : {"--no-special", "--special-as-text"}) {
    Option(train).excludes(verb.declared(other));
  }
}

}  // namespace

Verb add_tokenize(CommandLine& line) {
  VerbOptions verb = line.add_verb(
      "tokenize",
      "Print the tokens of a text, as a model reads it, or learn a tokenizer\n\n"
      "MODEL is a tokenizer.json with BPE or Unigram, a directory that holds one, a GGUF file, or a directory made by "
      "`headgate train`, whose models read bytes unless it was given a --tokenizer. Prints the ids, one a line: the "
      "same as those of Hugging Face's "
      "`tokenizers`. "
      "Bytes that are not UTF-8 are tokens as well. The text is read in parts: memory does not grow with its length. "
      "With --train and without MODEL, writes the tokenizer.json of a byte-level BPE learned from UTF-8 text, which "
      "`headgate train --tokenizer` takes.");
  auto options = std::make_shared<TokenizeOptions>();
  verb.argument("MODEL", options->model, std::string(kModelHelp) + "; or a tokenizer.json. None with --train")
      .optional();
  verb.lists("--text", options->text, "PATH...",
             "The text, of any encoding; - for standard input. With --train UTF-8 files, or directories with all UTF-8 "
             "files below them")
      .required();
  declare_json(verb, options->json, "one object");
  verb.flag("--no-special", options->no_special,
            "Leave out the tokens that the tokenizer puts around a text, such as BOS before it");
  verb.flag("--special-as-text", options->special_as_text,
            "Read special tokens spelled in the text, such as <|im_end|>, as plain text");
  declare_training(verb, *options);
  verb.footer(
      "JSON output:\n"
      "  ids      a list of numbers\n"
      "  tokens   their spellings in the vocabulary, in which Ġ is a space\n"
      "  offsets  [begin, end) of each in the text, in bytes\n"
      "With --train: out, ids, distinct_words and left_out_bytes, those that are not\n"
      "UTF-8.\n"
      "\n"
      "Examples:\n"
      "  headgate tokenize SmolLM2-135M --text book.txt\n"
      "  echo -n 'Hello world' | headgate tokenize tokenizer.json --text - --json\n"
      "  headgate tokenize --train 8192 --text book.txt --out tokenizer.json");
  return {"tokenize", [options] { return run_tokenize(*options); }};
}

}  // namespace headgate::cli
