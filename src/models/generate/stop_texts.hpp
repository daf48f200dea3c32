// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headgate::generate {

/// Finds the first of several stop texts in a stream of bytes, and withholds bytes that may begin a stop text. The
/// first stop text is the one that ends first; if two end at the same byte, the longer one. The result does not depend
/// on how the stream is cut into pieces.
class StopTexts {
 public:
  /// `texts` must not contain an empty text.
  explicit StopTexts(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  /// Adds the next bytes. Returns those bytes, including withheld ones, that are certain to lie before any stop text.
  /// Must not be called after found() is true.
  std::string pass(std::string_view bytes);
  /// Returns whether the stream contains a stop text.
  bool found() const { return found_; }
  /// Returns and clears the withheld bytes. Call it at the end of the stream: the bytes then belong to the text.
  std::string rest();

 private:
  std::vector<std::string> texts_;
  std::string withheld_;  ///< a proper prefix of a stop text; empty after found()
  bool found_ = false;
};

}  // namespace headgate::generate
