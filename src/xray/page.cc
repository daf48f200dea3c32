// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/check.hpp"
#include "xray/page_files.hpp"
#include "xray/report.hpp"

namespace headgate::xray {

namespace {

/// `text` in the place of `mark`, which the template has once.
void put(std::string& page, std::string_view mark, std::string_view text) {
  const std::size_t at = page.find(mark);
  require(at != std::string::npos, "xray: the page's template lacks {}", mark);
  page.replace(at, mark.size(), text);
}

/// JSON within an HTML script: no "<" of a text may end it.
std::string script_json(const nlohmann::ordered_json& json) {
  std::string out;
  for (const char c : json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::string report_page(const nlohmann::ordered_json& report) {
  std::string page = kPageHtml;
  put(page, "@PAGE_CSS@", kPageCss);
  put(page, "@PAGE_JS@", std::string(kDrawJs) + kPageJs);
  put(page, "@REPORT_JSON@", script_json(report));
  return page;
}

}  // namespace headgate::xray
