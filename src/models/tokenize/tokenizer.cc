// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/tokenizer.hpp"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <utility>

#include "library/core/check.hpp"
#include "models/tokenize/byte_alphabet.hpp"
#include "models/tokenize/utf8.hpp"

namespace headgate::tokenize {
namespace {

constexpr std::int32_t kBytes = 256;
static_assert(kByteBos == kBytes);
constexpr std::string_view kBosSpelling = "<bos>";

class ByteStream final : public StreamEncoder {
 public:
  ByteStream(std::optional<std::int32_t> front, bool spans) : front_(front), spans_(spans) {}

 protected:
  Encoding take(std::string_view part, More /*more*/) override {
    Encoding out;
    out.ids.reserve(part.size() + 1);
    if (front_) out.ids.push_back(*front_);
    if (front_ && spans_) out.spans.push_back({0, 0});
    front_.reset();
    for (const char c : part) out.ids.push_back(static_cast<std::uint8_t>(c));
    for (std::size_t i = 0; spans_ && i < part.size(); ++i) out.spans.push_back({done_ + i, done_ + i + 1});
    done_ += part.size();
    return out;
  }

 private:
  std::optional<std::int32_t> front_;  ///< token to return in front of the text; empty once returned
  bool spans_;
  std::size_t done_ = 0;
};

class ByteTokenizer final : public Tokenizer {
 public:
  explicit ByteTokenizer(bool has_bos) : has_bos_(has_bos) {
    for (std::size_t b = 0; b < kBytes; ++b) bytes_[b] = static_cast<char>(b);
  }

  std::int32_t vocab() const override { return has_bos_ ? kByteBos + 1 : kBytes; }

  std::unique_ptr<StreamEncoder> stream(const EncodeOptions& options) const override {
    const bool bos = has_bos_ && options.add_special;
    return std::make_unique<ByteStream>(bos ? std::optional(kByteBos) : std::nullopt, options.spans);
  }

  std::string_view bytes(std::int32_t id) const override {
    if (special(id)) return {};
    require(id >= 0 && id < kBytes, "no token has id {}: they are bytes, 0 to {}{}", id, kBytes - 1,
            has_bos_ ? fmt::format(", and {}, {}", kBosSpelling, kByteBos) : "");
    return {&bytes_[static_cast<std::size_t>(id)], 1};
  }
  std::string spelling(std::int32_t id) const override {
    return special(id) ? std::string(kBosSpelling) : spelling_of(bytes(id));
  }
  bool special(std::int32_t id) const override { return has_bos_ && id == kByteBos; }

  std::int32_t find(std::string_view spelling) const override {
    if (has_bos_ && spelling == kBosSpelling) return kByteBos;
    const auto bytes = bytes_of(spelling);
    return bytes && bytes->size() == 1 ? static_cast<std::uint8_t>(bytes->front()) : kNoToken;
  }

 private:
  bool has_bos_;
  std::array<char, kBytes> bytes_{};
};

}  // namespace

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string out;
  bool is_first = true;
  for (const std::int32_t id : ids) {
    if (skip_special && special(id)) continue;
    out += is_first ? first_bytes(id) : bytes(id);
    is_first = false;
  }
  if (drops_leading_space() && out.starts_with(' ')) out.erase(0, 1);
  return out;
}

std::unique_ptr<Tokenizer> byte_tokenizer() { return std::make_unique<ByteTokenizer>(false); }

std::unique_ptr<Tokenizer> byte_tokenizer_with_bos() { return std::make_unique<ByteTokenizer>(true); }

std::string StreamDecoder::next(std::int32_t id) {
  if (!skip_special_ || !tokenizer_.special(id)) pending_ += tokenizer_.bytes(id);
  std::string out = pending_.substr(0, pending_.size() - incomplete_suffix_size(pending_));
  pending_.erase(0, out.size());
  return out;
}

std::string StreamDecoder::finish() { return std::exchange(pending_, {}); }

}  // namespace headgate::tokenize
