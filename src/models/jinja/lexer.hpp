// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace headgate::jinja {

enum class TokenKind {
  text,          ///< text between tags, without white space that the tags remove
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

/// Splits a template into tokens and drops comments. Follows Jinja with trim_blocks and lstrip_blocks, which
/// transformers sets. The last token is `end`. Sets `line` to the line of the current token, even if TemplateError is
/// thrown.
std::vector<Token> tokens_of(std::string_view text, int& line);

}  // namespace headgate::jinja
