// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <optional>
#include <sstream>
#include <string>

#include "models/io/units.hpp"
#include "tool/console/shell_word.hpp"
#include "tool/console/table.hpp"
#include "tool/console/terminal_text.hpp"

namespace headgate::console {
namespace {

TEST(TextTable, Table_Printed_AlignsItsColumns) {
  EXPECT_EQ(text_table({{"", "loss", "g"}, {"no gate", "1.25", "-"}, {"a", "10.125", "0.5"}}),
            "                loss    g\n"
            "     no gate    1.25    -\n"
            "     a        10.125  0.5\n");
}

TEST(HeadingLines, Headings_OfSeveralWords_EndInTheLastLine) {
  EXPECT_EQ(heading_lines({"layer", "first_token", "gate_below_0.1", ""}),
            (TableLines{{"", "", "gate", ""}, {"", "first", "below", ""}, {"layer", "token", "0.1", ""}}));
}

TEST(Paragraph, Paragraph_Printed_FitsItsColumns) {
  std::string words;
  for (int i = 0; i < 60; ++i) words += "attention ";
  std::istringstream lines(paragraph(words));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_LE(line.size(), kTextColumns);
    EXPECT_TRUE(line.starts_with("     attention")) << line;
  }
  EXPECT_EQ(count, 7) << "nine words to a line";
  EXPECT_EQ(paragraph("one  two\nthree"), "     one two three\n");
  EXPECT_EQ(paragraph("one two three", 2, 9), "  one two\n  three\n");
}

TEST(Units, Bytes_Printed_HaveDecimalUnits) {
  EXPECT_EQ(bytes_text(1000), "1 kB");
  EXPECT_EQ(bytes_text(999'400), "999 kB");
  EXPECT_EQ(bytes_text(1.25e6), "1.2 MB");
  EXPECT_EQ(bytes_text(22.06e9), "22.06 GB");
  EXPECT_EQ(bytes_text(3.2e12), "3.20 TB");
}

TEST(Units, Duration_Printed_HasHoursMinutesAndSeconds) {
  EXPECT_EQ(duration_text(0.0), "0:00");
  EXPECT_EQ(duration_text(0.1), "0:01");
  EXPECT_EQ(duration_text(200.0), "3:20");
  EXPECT_EQ(duration_text(3599.5), "1:00:00");
  EXPECT_EQ(duration_text(7400.0), "2:03:20");
}

TEST(Units, Figure_Printed_HasFourDigitsOrADash) {
  EXPECT_EQ(figure_text(0.123456), "0.1235");
  EXPECT_EQ(figure_text(0.0), "0");
  EXPECT_EQ(figure_text(std::nullopt), "-");
}

TEST(Units, Percent_Printed_IsWholeUnlessTooCoarse) {
  EXPECT_EQ(percent_text(0.512), "51%");
  EXPECT_EQ(percent_text(0.0042), "0.4%");
}

TEST(ShellWord, Word_ShellWouldSplitOrExpand_IsQuoted) {
  EXPECT_EQ(shell_word("dir/file-1.txt"), "dir/file-1.txt");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("two words"), "'two words'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word("$HOME"), "'$HOME'");
  EXPECT_EQ(shell_word("a\x1b[31m'\\\xff"), "$'a\\x1b[31m\\'\\\\\\xff'") << "a terminal shows it and does not obey";
  EXPECT_EQ(shell_word("é"), "'é'");
}

TEST(TerminalText, Text_ControlCharactersAndOtherBytes_AreReplaced) {
  EXPECT_EQ(terminal_text("a\x1b[31m\n\x7f-é"), "a [31m  -é");
  EXPECT_EQ(terminal_text("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(terminal_text("\u009b2J"), " 2J") << "another way to write ESC [";
}

}  // namespace
}  // namespace headgate::console
