// SPDX-License-Identifier: Apache-2.0
#include "models/data/token_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "library/core/check.hpp"
#include "models/data/corpus_tokens.hpp"
#include "models/data/random.hpp"
#include "models/io/npy.hpp"
#include "models/layers/cross_entropy.hpp"
#include "models/tokenize/tokenizer_file.hpp"

namespace headgate::train {

namespace {

std::uint8_t byte_at(const Corpus& corpus, std::int64_t at) {
  std::uint8_t byte = 0;
  corpus.for_pieces(at, at + 1, [&byte](const std::uint8_t* data, std::int64_t /*count*/) { byte = *data; });
  return byte;
}

}  // namespace

std::int64_t TokenText::longest() const {
  return static_cast<std::int64_t>(front.empty() ? ids.size() : ids.size() + front.size()) - 1;
}

TokenText token_text(const Corpus& corpus, std::int64_t begin, std::int64_t end, const tokenize::Tokenizer& tokenizer) {
  const auto continues = [&corpus](std::int64_t at) { return (byte_at(corpus, at) & 0xC0U) == 0x80U; };
  const bool cut = end < corpus.size();
  end = std::min(end, corpus.size());
  // Skips a character whose first byte lies before the range.
  if (begin > 0) {
    while (begin < end && continues(begin)) ++begin;
  }
  // Drops the last character, because some of its bytes may lie after the range.
  if (cut) {
    while (begin < end && continues(end - 1)) --end;
    if (begin < end) --end;
  }
  TokenText out{corpus.name(), {}, {}, tokenize::leading_special_ids(tokenizer), corpus.left_out()};
  out.left_out.bytes +=
      for_tokens(corpus, {begin, end}, {begin, end}, tokenizer, [&out](std::int32_t id, std::size_t bytes) {
        out.ids.push_back(id);
        out.bytes.push_back(static_cast<std::int32_t>(bytes));
      });
  return out;
}

TokenSource::TokenSource(TokenText text, std::int64_t seq_len)
    : text_(std::move(text)),
      T_(seq_len),
      counted_(text_.front.empty() ? T_ : T_ - static_cast<std::int64_t>(text_.front.size()) + 1) {
  require(counted_ >= 1, "a sequence of {} tokens has no room for the {} in front of it", T_, text_.front.size());
  require(held_out_count() >= 1, "{}: {} token ids but a sequence of {} takes {}", text_.name, text_.ids.size(), T_,
          first_target(0) + counted_);
  for (const auto* ids : {&text_.front, &text_.ids}) {
    if (ids->empty()) continue;
    const auto [least, most] = std::minmax_element(ids->begin(), ids->end());
    require(*least >= 0, "{}: a token id is {}", text_.name, *least);
    vocab_ = std::max(vocab_, std::int64_t{*most} + 1);
  }
}

void TokenSource::training_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const {
  held_out_sequence(tokens, targets, index % held_out_count());
}

std::int64_t TokenSource::first_target(std::int64_t index) const {
  return index * counted_ + (text_.front.empty() ? 1 : 0);
}

std::int64_t TokenSource::held_out_count() const {
  return std::max<std::int64_t>(0, static_cast<std::int64_t>(text_.ids.size()) - first_target(0)) / counted_;
}

void TokenSource::held_out_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const {
  const auto next = text_.ids.begin() + first_target(index);
  const std::int64_t ignored = T_ - counted_;
  const bool has_front = !text_.front.empty();
  tokens = std::copy(text_.front.begin(), text_.front.end(), tokens);
  std::copy_n(has_front ? next : next - 1, has_front ? counted_ - 1 : T_, tokens);
  targets = std::fill_n(targets, ignored, layers::kIgnoredTarget);
  std::copy_n(next, counted_, targets);
}

std::optional<TargetText> TokenSource::target_text(std::int64_t index) const {
  if (text_.bytes.empty()) return std::nullopt;
  const auto first = text_.bytes.begin() + first_target(index);
  return TargetText{counted_, std::accumulate(first, first + counted_, std::int64_t{0})};
}

std::uint64_t TokenSource::fingerprint() const {
  std::uint64_t hash = mix64(static_cast<std::uint64_t>(T_));
  for (const auto* list : {&text_.front, &text_.ids, &text_.bytes}) {
    hash = mix64(hash ^ list->size());
    for (const std::int32_t number : *list) hash = mix64(hash ^ static_cast<std::uint64_t>(number));
  }
  return hash;
}

std::string TokenSource::description() const { return fmt::format("{} token ids", text_.ids.size()); }

std::vector<std::int32_t> read_token_ids(const std::string& path) {
  const io::Array array = io::read_npy(path);
  const bool wide = array.dtype == DType::i64;
  if (array.shape.size() != 1 || (!wide && array.dtype != DType::i32)) {
    io::fail(path, "{} of {}, not a list of token ids in i32 or i64", io::shape_text(array.shape),
             dtype_name(array.dtype));
  }
  std::vector<std::int32_t> out;
  for (std::int64_t i = 0; i < array.numel(); ++i) {
    std::int64_t id = 0;
    if (wide) {
      std::memcpy(&id, array.data.get() + i * sizeof(id), sizeof(id));
    } else {
      std::int32_t narrow = 0;
      std::memcpy(&narrow, array.data.get() + i * sizeof(narrow), sizeof(narrow));
      id = narrow;
    }
    if (id < 0 || id > std::numeric_limits<std::int32_t>::max()) {
      io::fail(path, "element {} is {}, not a token id", i, id);
    }
    out.push_back(static_cast<std::int32_t>(id));
  }
  return out;
}

}  // namespace headgate::train
