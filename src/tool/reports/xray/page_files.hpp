// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace headgate::xray {

// Contents of page.html, xray.css and page.js in this folder.
extern const char* const kPageHtml;
extern const char* const kPageCss;
extern const char* const kPageJs;

}  // namespace headgate::xray
