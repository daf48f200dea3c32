// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace headgate::tokenize {

/// Returns a regular expression for PCRE2 that matches what `regex` matches in Oniguruma (Ruby syntax), which
/// tokenizer.json uses. Rewrites \s and \d, which are Unicode's White_Space and Nd, scripts, $ and escapes of
/// characters. Throws TokenizerError, which names it, for any other syntax that the two interpret differently.
std::string pcre_syntax(std::string_view regex);

/// Returns a regular expression that matches `text` literally.
std::string quoted_pattern(std::string_view text);

}  // namespace headgate::tokenize
