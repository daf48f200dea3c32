// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstddef>
#include <cstdio>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/verbs.hpp"
#include "console/console.hpp"
#include "io/input_file.hpp"
#include "tokenize/open.hpp"

namespace headgate::cli {
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;

struct Options {
  std::string model;
  std::string text;
  bool json = false;
  bool no_special = false;
  bool special_as_text = false;
};

std::string ids_text(const tokenize::Encoding& encoding) {
  std::string out;
  for (const std::int32_t id : encoding.ids) fmt::format_to(std::back_inserter(out), "{}\n", id);
  return out;
}

std::string json_text(const tokenize::Tokenizer& tokenizer, const tokenize::Encoding& encoding) {
  nlohmann::ordered_json out;
  out["ids"] = encoding.ids;
  auto& tokens = out["tokens"] = nlohmann::ordered_json::array();
  for (const std::int32_t id : encoding.ids) tokens.push_back(tokenizer.spelling(id));
  auto& offsets = out["offsets"] = nlohmann::ordered_json::array();
  for (const tokenize::Span& span : encoding.spans) offsets.push_back({span.begin, span.end});
  return out.dump() + "\n";
}

int run_tokenize(const Options& o) {
  const auto tokenizer = tokenize::open_tokenizer(o.model);
  const std::string text = io::read_stream(o.text == "-" ? "/dev/stdin" : o.text, kMaxTextBytes);
  const tokenize::Encoding encoding =
      tokenizer->encode(text, {.add_special = !o.no_special, .special_as_text = o.special_as_text, .spans = o.json});
  if (encoding.left_out > 0) {
    console::say(stderr, fmt::format("left out: {} bytes that the vocabulary has no token for\n", encoding.left_out));
  }
  const std::string out = o.json ? json_text(*tokenizer, encoding) : ids_text(encoding);
  std::fwrite(out.data(), 1, out.size(), stdout);
  return kSuccess;
}

}  // namespace

Verb add_tokenize(CommandLine& line) {
  VerbOptions verb = line.add_verb(
      "tokenize",
      "The tokens of a text, as a model reads it\n\n"
      "MODEL is a tokenizer.json with byte-level BPE, a directory that holds one, a GGUF file, or a directory made by "
      "`headgate train`, whose models read bytes. Prints the ids, one a line: the same as those of Hugging Face's "
      "`tokenizers`. "
      "Bytes that are not UTF-8 are tokens as well.");
  auto options = std::make_shared<Options>();
  verb.argument("MODEL", options->model, "tokenizer.json, a model's directory, or a GGUF file");
  verb.value("--text", options->text, "FILE", "The text, of any encoding; - for standard input").required();
  verb.flag("--json", options->json, "Print one JSON object instead");
  verb.flag("--no-special", options->no_special,
            "Without the tokens that the tokenizer puts around a text, as BOS in front");
  verb.flag("--special-as-text", options->special_as_text,
            "Special tokens that the text spells out, as <|im_end|>, are text as any other");
  verb.footer(
      "JSON output:\n"
      "  ids      a list of numbers\n"
      "  tokens   their spellings in the vocabulary, in which Ġ is a space\n"
      "  offsets  [begin, end) of each in the text, in bytes\n"
      "\n"
      "Examples:\n"
      "  headgate tokenize SmolLM2-135M --text book.txt\n"
      "  echo -n 'Hello world' | headgate tokenize tokenizer.json --text - --json");
  return {"tokenize", [options] { return run_tokenize(*options); }};
}

}  // namespace headgate::cli
