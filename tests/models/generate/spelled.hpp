// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "library/core/check.hpp"
#include "models/tokenize/tokenizer.hpp"

namespace headgate::testing {

/// Bytes, followed by special tokens.
class Spelled : public tokenize::Tokenizer {
 public:
  explicit Spelled(std::vector<std::string> special) : special_(std::move(special)) {}

  std::int32_t vocab() const override { return 256 + static_cast<std::int32_t>(special_.size()); }
  std::unique_ptr<tokenize::StreamEncoder> stream(const tokenize::EncodeOptions& options) const override {
    if (options.add_special) return std::make_unique<Bos>(static_cast<std::int32_t>(255 + special_.size()));
    require(options.special_as_text, "a chat is encoded as text between its markers");
    return bytes_->stream(options);
  }
  std::string_view bytes(std::int32_t id) const override {
    return special(id) ? special_[static_cast<std::size_t>(id - 256)] : bytes_->bytes(id);
  }
  std::string spelling(std::int32_t id) const override { return std::string(bytes(id)); }
  bool special(std::int32_t id) const override { return id >= 256; }
  std::int32_t find(std::string_view spelling) const override {
    const auto found = std::find(special_.begin(), special_.end(), spelling);
    if (found == special_.end()) return bytes_->find(spelling);
    return 256 + static_cast<std::int32_t>(found - special_.begin());
  }

 private:
  /// The last special token, which stands in front of a text.
  class Bos : public tokenize::StreamEncoder {
   public:
    explicit Bos(std::int32_t id) : id_(id) {}

   protected:
    tokenize::Encoding take(std::string_view part, tokenize::Tail /*tail*/) override {
      require(part.empty(), "only the tokens around a text are asked for");
      return {.ids = {id_}, .spans = {}};
    }

   private:
    std::int32_t id_;
  };

  std::unique_ptr<tokenize::Tokenizer> bytes_ = tokenize::byte_tokenizer();
  std::vector<std::string> special_;
};

}  // namespace headgate::testing
