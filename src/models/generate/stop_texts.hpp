// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headgate::generate {

/// Finds the first of several texts in a stream of bytes, and withholds bytes with which one of them may begin. The
/// text that ends first counts; of two that end together, the longer one. The result does not depend on how the stream
/// is cut.
class StopTexts {
 public:
  /// None of `texts` is empty.
  explicit StopTexts(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  /// Takes the next bytes; returns those that are before any stop text. Must not be called after found() is true.
  std::string pass(std::string_view bytes);
  /// Returns whether the stream reached a stop text.
  bool found() const { return found_; }
  /// Returns the bytes withheld so far, which the end of the stream makes text.
  std::string rest();

 private:
  std::vector<std::string> texts_;
  std::string withheld_;  ///< a proper prefix of a stop text; empty after found()
  bool found_ = false;
};

}  // namespace headgate::generate
