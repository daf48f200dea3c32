// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace headgate::page {

// Contents of page.html, page.css, draw.js and report.js in this folder.
extern const char* const kPageHtml;
extern const char* const kPageCss;
extern const char* const kDrawJs;
extern const char* const kReportJs;

}  // namespace headgate::page
