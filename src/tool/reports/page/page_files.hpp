// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace headgate::page {

// page.html, page.css, draw.js and report.js as they stand in this folder.
extern const char* const kPageHtml;
extern const char* const kPageCss;
extern const char* const kDrawJs;
extern const char* const kReportJs;

}  // namespace headgate::page
