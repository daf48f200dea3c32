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

#include "models/tokenize/tokenizer.hpp"

namespace headgate::testing {

/// Bytes, followed by special tokens.
class Spelled : public tokenize::Tokenizer {
 public:
  explicit Spelled(std::vector<std::string> special) : special_(std::move(special)) {}

  std::int32_t vocab() const override { return 256 + static_cast<std::int32_t>(special_.size()); }
  std::unique_ptr<tokenize::StreamEncoder> stream(const tokenize::EncodeOptions& options) const override {
    return std::make_unique<Encoder>(*this, options);
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
  /// Takes a whole text. The last special token stands in front of texts with options.add_special.
  class Encoder : public tokenize::StreamEncoder {
   public:
    Encoder(const Spelled& tokenizer, const tokenize::EncodeOptions& options)
        : tokenizer_(tokenizer), options_(options) {}

   protected:
    tokenize::Encoding take(std::string_view text, tokenize::More /*more*/) override {
      tokenize::Encoding out;
      if (options_.add_special) add(out, 255 + static_cast<std::int32_t>(tokenizer_.special_.size()), 0, 0);
      for (std::size_t at = 0; at < text.size();) {
        std::size_t bytes = 1;
        std::int32_t id = static_cast<unsigned char>(text[at]);
        for (std::size_t i = 0; i < tokenizer_.special_.size() && !options_.special_as_text; ++i) {
          const std::string& special = tokenizer_.special_[i];
          if (special.size() <= bytes || !text.substr(at).starts_with(special)) continue;
          bytes = special.size();
          id = 256 + static_cast<std::int32_t>(i);
        }
        add(out, id, at, at + bytes);
        at += bytes;
      }
      return out;
    }

   private:
    void add(tokenize::Encoding& out, std::int32_t id, std::size_t begin, std::size_t end) const {
      out.ids.push_back(id);
      if (options_.spans) out.spans.push_back({begin, end});
    }

    const Spelled& tokenizer_;
    tokenize::EncodeOptions options_;
  };

  std::unique_ptr<tokenize::Tokenizer> bytes_ = tokenize::byte_tokenizer();
  std::vector<std::string> special_;
};

}  // namespace headgate::testing
