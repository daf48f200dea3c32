// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace headgate::compare {

// compare.html, compare.css and compare.js as they stand in this folder.
extern const char* const kPageHtml;
extern const char* const kPageCss;
extern const char* const kPageJs;

}  // namespace headgate::compare
