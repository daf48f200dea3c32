// SPDX-License-Identifier: Apache-2.0
#include "models/data/encoded_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "library/core/check.hpp"
#include "models/data/random.hpp"
#include "models/data/text.hpp"
#include "models/io/json.hpp"

namespace headgate::train {

namespace {

Corpus corpus_of(const DataOptions& options) {
  Corpus corpus(options.paths, options.files);
  require(corpus.size() > 0, "{}: no text, only empty files", options.paths.front());
  return corpus;
}

TokenFileKey key_of(const DataOptions& options, const Corpus& corpus) {
  return {options.tokenizer->hash, corpus.fingerprint()};
}

}  // namespace

std::string prepare_token_file(const DataOptions& options) {
  const Corpus corpus = corpus_of(options);
  std::string reason;
  std::error_code ignored;
  if (std::filesystem::exists(options.token_file, ignored)) {
    try {
      if (TokenFile(options.token_file).key() == key_of(options, corpus)) return "";
      reason = options.token_file + ": holds the ids of another text or tokenizer";
    } catch (const io::FileError& error) {
      reason = error.what();
    }
  }
  write_token_file(options.token_file, corpus, *options.tokenizer);
  return reason;
}

EncodedTextSource::EncodedTextSource(const DataOptions& options)
    : file_(options.token_file),
      tokenizer_(options.tokenizer),
      T_(options.seq_len),
      seed_(options.seed),
      front_(tokenize::leading_special_ids(*options.tokenizer->tokenizer)) {
  const Corpus corpus = corpus_of(options);
  name_ = corpus.name();
  left_out_ = corpus.left_out();
  left_out_.bytes += file_.left_out();
  files_ = corpus.files();
  text_bytes_ = corpus.size();
  if (file_.key() != key_of(options, corpus) || file_.vocab() != tokenizer_->tokenizer->vocab()) {
    io::fail(options.token_file, "does not hold the ids of {} by the run's tokenizer", name_);
  }
  require(front() <= 1, "the tokenizer puts {} tokens before a text, but training takes at most one", front());
  const std::int64_t window = T_ + 1;
  require(file_.size() >= 2 * window, "{}: the text has {} tokens but two sequences, one of them held out, take {}",
          name_, file_.size(), 2 * window);
  const std::int64_t tail = file_.begin_of_tail(corpus.size() - held_out_begin(name_, corpus.size(), T_));
  training_ = std::clamp(tail, window, file_.size() - window);
}

void EncodedTextSource::training_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const {
  copy_window(tokens, targets, training_window(training_, T_, seed_, index));
}

void EncodedTextSource::held_out_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const {
  copy_window(tokens, targets, training_ + index * T_);
}

void EncodedTextSource::copy_window(std::int32_t* tokens, std::int32_t* targets, std::int64_t begin) const {
  tokens = std::copy(front_.begin(), front_.end(), tokens);
  file_.copy(tokens, begin, T_ - front());
  file_.copy(targets, begin + 1 - front(), T_);
}

std::int64_t EncodedTextSource::window_bytes(std::int64_t begin) const {
  return file_.text_bytes(begin + 1 - front(), T_);
}

std::optional<TargetText> EncodedTextSource::target_text(std::int64_t index) const {
  return TargetText{T_, window_bytes(training_ + index * T_)};
}

std::optional<std::int64_t> EncodedTextSource::training_bytes(std::int64_t index) const {
  return window_bytes(training_window(training_, T_, seed_, index));
}

std::uint64_t EncodedTextSource::fingerprint() const {
  std::uint64_t hash = mix64(file_.key().text);
  for (const char c : file_.key().tokenizer) hash = mix64(hash ^ static_cast<std::uint8_t>(c));
  return hash;
}

std::string EncodedTextSource::description() const {
  return fmt::format("{} bytes in {} file{}, {} ids of {}, {} of them held out", text_bytes_, files_,
                     files_ == 1 ? "" : "s", file_.size(), file_.vocab(), file_.size() - training_);
}

std::vector<NamedText> EncodedTextSource::model_files() const {
  const tokenize::Tokenizer& tokenizer = *tokenizer_->tokenizer;
  const std::int32_t end = tokenize::end_of_text(tokenizer);
  nlohmann::ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                   {"model_max_length", T_},
                                   {"clean_up_tokenization_spaces", false}};
  nlohmann::ordered_json generation = nlohmann::ordered_json::object();
  if (!front_.empty()) {
    config["bos_token"] = tokenizer.spelling(front_.front());
    generation["bos_token_id"] = front_.front();
  }
  if (end != tokenize::kNoToken) {
    config["eos_token"] = tokenizer.spelling(end);
    generation["eos_token_id"] = end;
  }
  return {{"tokenizer.json", tokenizer_->json},
          {"tokenizer_config.json", io::json_text(config)},
          {"generation_config.json", io::json_text(generation)}};
}

}  // namespace headgate::train
