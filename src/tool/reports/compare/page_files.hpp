// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace headgate::compare {

// Contents of compare.html, compare.css and compare.js in this folder.
extern const char* const kPageHtml;
extern const char* const kPageCss;
extern const char* const kPageJs;

}  // namespace headgate::compare
