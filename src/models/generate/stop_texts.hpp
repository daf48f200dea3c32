// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headgate::generate {

/// Finds the first of several stop texts in a stream of bytes. Withholds bytes that may begin a stop text. The first
/// stop text is the one that ends first. If several end at the same byte, it is the longest of them. The result does
/// not depend on how the stream is divided into pieces.
class StopTexts {
 public:
  /// `texts` must not contain an empty text.
  explicit StopTexts(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  /// Adds the next bytes of the stream. Returns all bytes, new or withheld before, that certainly precede any stop
  /// text. Must not be called once found() is true.
  std::string pass(std::string_view bytes);
  /// Returns whether the stream contains a stop text.
  bool found() const { return found_; }
  /// Returns the withheld bytes and clears them. Call it at the end of the stream, where the withheld bytes belong to
  /// the text.
  std::string rest();

 private:
  std::vector<std::string> texts_;
  std::string withheld_;  ///< a proper prefix of a stop text; empty once found() is true
  bool found_ = false;
};

}  // namespace headgate::generate
