// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace headgate::jinja {

enum class TokenKind {
  text,          ///< between tags, white space removed as the tags say
  begin_output,  ///< {{
  end_output,
  begin_statement,  ///< {%
  end_statement,
  name,
  string,  ///< unescaped
  integer,
  real,
  symbol,  ///< an operator or a bracket
  end,
};

struct Token {
  TokenKind kind;
  std::string text;
  int line;
};

/// Splits a template into tokens as Jinja does with trim_blocks and lstrip_blocks, which transformers sets; the last
/// one is `end`. Comments are left out. `line`: where the token in hand begins, also if Refusal is thrown.
std::vector<Token> tokens_of(std::string_view text, int& line);

}  // namespace headgate::jinja
