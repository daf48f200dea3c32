// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/page/page.hpp"

#include <gtest/gtest.h>

#include <clocale>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "support/german_locale.hpp"

namespace headgate::page {
namespace {

using nlohmann::ordered_json;

TEST(Page, Page_EachPart_IsInItsPlace) {
  const std::string page = page_of({.body = "<main>", .css = "p {}", .js = "go();"}, {{"a", "b"}});
  const std::size_t css = page.find("p {}"), body = page.find("<main>"), report = page.find("{\"a\":\"b\"}"),
                    script = page.find("go();");
  for (const std::size_t at : {css, body, report, script}) ASSERT_NE(at, std::string::npos);
  EXPECT_LT(css, page.find("</style>"));
  EXPECT_LT(page.find("<body>"), body);
  EXPECT_LT(body, report);
  EXPECT_LT(report, script);
  EXPECT_EQ(page.find("@PAGE"), std::string::npos);
}

TEST(Page, Page_MarkupInTheReport_IsEscaped) {
  const ordered_json report = {{"a", "</script><b>@PAGE_JS@ @REPORT_JSON@"}};
  const std::string page = page_of({.body = "", .css = "", .js = "go();"}, report);
  EXPECT_NE(page.find("{\"a\":\"\\u003c/script>\\u003cb>@PAGE_JS@ @REPORT_JSON@\"}"), std::string::npos);
}

TEST(FigureJson, Figure_Each_HasANameForReaders) {
  EXPECT_EQ(figure_json({.key = "a_b_c", .meaning = "It is."}),
            (ordered_json{{"key", "a_b_c"}, {"name", "a b c"}, {"sentence", "It is."}, {"share", false}}));
}

TEST(FigureJson, Figure_IsAShare_SaysSo) { EXPECT_EQ(figure_json({.key = "a", .is_share = true}).at("share"), true); }

TEST(Rounded, Rounded_AnyNumber_HasFiveDigitsAndNoInfinity) {
  EXPECT_EQ(rounded(1.23456789), 1.2346);
  EXPECT_EQ(rounded(-0.000123456789), -0.00012346);
  EXPECT_TRUE(rounded(std::numeric_limits<double>::infinity()).is_null());
  EXPECT_TRUE(rounded(std::numeric_limits<double>::quiet_NaN()).is_null());
  EXPECT_EQ(rounded(std::numeric_limits<double>::max()), std::numeric_limits<double>::max());
  EXPECT_EQ(rounded(-std::numeric_limits<double>::denorm_min()), -std::numeric_limits<double>::denorm_min());
}

TEST(Rounded, Rounded_DecimalComma_ReadsThePoint) {
  const support::GermanLocale german("UTF-8");
  EXPECT_STREQ(std::localeconv()->decimal_point, ",");
  EXPECT_EQ(rounded(1.23456789), 1.2346);
}

}  // namespace
}  // namespace headgate::page
