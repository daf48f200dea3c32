// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace headgate::tokenize {

/// The regular expression in PCRE2's syntax that matches what `regex` matches in Oniguruma's (Ruby syntax), in which
/// tokenizer.json has them. Throws TokenizerError for what the two understand differently, by name, unless it is
/// rewritten here: \s and \d, which are Unicode's White_Space and Nd, scripts, $ and escapes of characters.
std::string pcre_syntax(std::string_view regex);

/// A regular expression for the text itself.
std::string quoted_pattern(std::string_view text);

}  // namespace headgate::tokenize
