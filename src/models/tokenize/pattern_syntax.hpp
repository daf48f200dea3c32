// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace headgate::tokenize {

/// Converts a regular expression from Oniguruma's Ruby syntax, which tokenizer.json uses, to PCRE2's syntax. Rewrites
/// \s (Unicode's White_Space), \d (Unicode's Nd), names of scripts, $ and escaped characters. Throws TokenizerError for
/// any other syntax that the two libraries interpret differently. The message names this syntax.
std::string pcre_syntax(std::string_view regex);

/// Returns a regular expression that matches `text` literally.
std::string quoted_pattern(std::string_view text);

}  // namespace headgate::tokenize
