// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/page/page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "library/core/check.hpp"
#include "models/io/json.hpp"
#include "tool/reports/page/page_files.hpp"

namespace headgate::page {

namespace {

using nlohmann::ordered_json;

/// Replaces `mark` in the page's template by `text`. Throws Error if the template lacks `mark`.
void put(std::string& page, std::string_view mark, std::string_view text) {
  const std::size_t at = page.find(mark);
  require(at != std::string::npos, "the page's template lacks {}", mark);
  page.replace(at, mark.size(), text);
}

/// Formats JSON to stand inside an HTML script element.
/// Escapes "<", so that "</script>" in a text cannot end the element.
std::string script_json(const ordered_json& json) {
  std::string text = io::json_line(json), out;
  text.pop_back();  // removes the newline that json_line() appends
  for (const char c : text) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::string page_of(const PageParts& parts, const ordered_json& report) {
  std::string page = kPageHtml;
  put(page, "@PAGE_CSS@", std::string(kPageCss) + parts.css);
  put(page, "@PAGE_BODY@", parts.body);
  put(page, "@PAGE_JS@", std::string(kDrawJs) + kReportJs + parts.js);
  put(page, "@REPORT_JSON@", script_json(report));
  return page;
}

ordered_json figure_json(const metrics::Figure& figure) {
  std::string name(figure.heading());
  std::replace(name.begin(), name.end(), '_', ' ');
  return {{"key", figure.key}, {"name", name}, {"sentence", figure.meaning}, {"share", figure.is_share}};
}

ordered_json rounded(double value) {
  if (!std::isfinite(value)) return nullptr;
  const std::string text = fmt::format("{:.5g}", value);
  double read = value;
  std::from_chars(text.data(), text.data() + text.size(), read);  // strtod() would depend on the locale
  return std::isfinite(read) ? read : value;
}

}  // namespace headgate::page
