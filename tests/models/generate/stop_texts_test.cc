// SPDX-License-Identifier: Apache-2.0
#include "models/generate/stop_texts.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace headgate::generate {
namespace {

struct Shown {
  std::string text;
  bool found = false;
  bool operator==(const Shown&) const = default;
};

/// Returns what is shown of a stream that comes in parts of `bytes` bytes.
Shown shown(const std::vector<std::string>& stops, std::string_view stream, std::size_t bytes) {
  StopTexts texts(stops);
  std::string out;
  for (; !stream.empty() && !texts.found(); stream.remove_prefix(std::min(bytes, stream.size()))) {
    out += texts.pass(stream.substr(0, bytes));
  }
  out += texts.rest();
  return {out, texts.found()};
}

TEST(StopTexts, Stream_CutAnywhere_EndsBeforeTheFirstStop) {
  struct Case {
    std::vector<std::string> stops;
    std::string stream, text;
    bool found;
  };
  const std::vector<Case> cases{
      {{"\n\n"}, "one\ntwo\n\nthree", "one\ntwo", true},
      {{"END"}, "the ENEND", "the EN", true},
      {{"END"}, "the EN", "the EN", false},
      {{"abcd", "bc"}, "xabcd", "xa", true},  // "bc" ends first
      {{"bc", "abc"}, "xabcd", "x", true},    // both end together
      {{"a"}, "a", "", true},
      {{}, "as it is", "as it is", false},
      {{"aab"}, "aaaab", "aa", true},
      {{"é"}, "caf\xC3\xA9!", "caf", true},
  };
  for (const Case& each : cases) {
    for (const std::size_t bytes : {1, 2, 3, 5, 100}) {
      const Shown expected{each.text, each.found};
      EXPECT_EQ(shown(each.stops, each.stream, bytes), expected) << each.stream << " in parts of " << bytes;
    }
  }
}

TEST(StopTexts, Bytes_ThatBeginNoStop_AreShownAtOnce) {
  StopTexts texts({"User:"});
  EXPECT_EQ(texts.pass("a U"), "a ");
  EXPECT_EQ(texts.pass("s"), "");
  EXPECT_EQ(texts.pass("U"), "Us");
  EXPECT_EQ(texts.rest(), "U");
  EXPECT_EQ(texts.rest(), "");
}

}  // namespace
}  // namespace headgate::generate
