// SPDX-License-Identifier: Apache-2.0
#include "tool/console/status_line.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>

namespace headgate::console {
namespace {

const std::string kPath = "/home/someone/models/of/several/kinds/run-gated-elementwise";

StatusLine training() {
  return {.fraction = 0.344,
          .seconds_left = 3723.0,
          .parts = {{.text = "12345 tok/s", .essential = true},
                    {.text = "6880/20000"},
                    {.text = "loss 1.2345"},
                    {.text = "MFU 43%"},
                    {.text = "lr 3.00e-04"},
                    {.text = "|g| 0.53"}}};
}

StatusLine evaluation() {
  return {.fraction = 0.5, .seconds_left = 12.0, .parts = {{.text = "evaluating ", .path = kPath}}};
}

TEST(StatusText, StatusText_WideTerminal_HoldsEveryPart) {
  EXPECT_EQ(status_text(training(), 120),
            "[######..............]  34%  1:02:03 left  12345 tok/s  6880/20000  loss 1.2345  MFU 43%  lr 3.00e-04  "
            "|g| 0.53");
  EXPECT_EQ(status_text(evaluation(), 120), "[##########..........]  50%  0:12 left  evaluating " + kPath);
}

TEST(StatusText, StatusText_UsualTerminal_LeavesOutTheLastParts) {
  EXPECT_EQ(status_text(training(), 80), "[####.........]  34%  1:02:03 left  12345 tok/s  6880/20000  loss 1.2345");
  EXPECT_EQ(status_text(evaluation(), 80),
            "[######.......]  50%  0:12 left  evaluating /home/someone/mod…gated-elementwise");
}

TEST(StatusText, StatusText_NarrowTerminal_KeepsTimeLeftRateAndTheEndOfAPath) {
  EXPECT_EQ(status_text(training(), 40), "[#....]  34%  1:02:03 left  12345 tok/s");
  EXPECT_EQ(status_text(evaluation(), 40), "[###...]  50%  0:12 left  /home/…ntwise");
  EXPECT_EQ(status_text(training(), 32), " 34%  1:02:03 left  12345 tok/s") << "no room for a bar";
}

TEST(StatusText, StatusText_EveryWidth_EndsBeforeTheLastColumn) {
  StatusLine wide = evaluation();
  wide.parts.front().path = "/模型/注意力/门控-逐元素-模型/é/\x80\xff/最后一个";
  for (std::size_t columns = 0; columns <= 130; ++columns) {
    for (const StatusLine& line : {training(), evaluation(), wide}) {
      const std::string text = status_text(line, columns);
      if (columns > 4) {
        EXPECT_LT(columns_of(text), columns) << text;
      }
      if (columns > 20) {
        EXPECT_NE(text.find(" left"), std::string::npos) << columns << ": " << text;
      }
    }
  }
}

TEST(StatusText, Fraction_OutOfRange_IsClamped) {
  EXPECT_EQ(status_text({.fraction = 1.5}, 40), "[######] 100%");
  EXPECT_EQ(status_text({.fraction = -1.0}, 40), "[......]   0%");
}

TEST(Shortened, Text_Long_KeepsBothEnds) {
  EXPECT_EQ(shortened("abcdefghij", 10), "abcdefghij");
  EXPECT_EQ(shortened("abcdefghij", 6), "ab…hij");
  EXPECT_EQ(shortened("abcdefghij", 1), "…");
  EXPECT_EQ(shortened("abcdefghij", 0), "");
  EXPECT_EQ(shortened("a\x1b[31mb\n", 20), "a?[31mb?") << "a name does not control the terminal";
}

TEST(ColumnsOf, Characters_AnyWidth_CountByIt) {
  EXPECT_EQ(columns_of("abc"), 3U);
  EXPECT_EQ(columns_of("é…"), 2U);
  EXPECT_EQ(columns_of("门"), 2U);
  EXPECT_EQ(columns_of("\x80\xff"), 2U) << "not UTF-8: one column each";
  EXPECT_EQ(columns_of("\xf0xyz\xc3z\xe9"), 7U) << "characters without their last bytes: one column each";
}

}  // namespace
}  // namespace headgate::console
