// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace headgate::tokenize {

/// Converts a regular expression from Oniguruma's Ruby syntax, which tokenizer.json uses, to PCRE2's syntax. Rewrites
/// \s and \d (Unicode's White_Space and Nd), names of scripts, $ and escaped characters. Throws TokenizerError, which
/// names the syntax, for anything else that the two libraries interpret differently.
std::string pcre_syntax(std::string_view regex);

/// Returns a regular expression that matches `text` literally.
std::string quoted_pattern(std::string_view text);

}  // namespace headgate::tokenize
