// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/jinja/value.hpp"

namespace headgate::jinja {

/// Kinds of nodes. The comment on each kind lists the members of Node that it uses.
enum class NodeKind {
  // Statements
  block,      ///< children
  text,       ///< name: the text itself
  output,     ///< expression
  if_else,    ///< children: test, then, else
  for_in,     ///< names: targets; children: items, filter or `nothing`, body, else
  set,        ///< names: targets; child: expression; name: attribute of namespace names[0], or empty
  set_block,  ///< name, names: as for `set`; children: expression that filters `captured`, then the block
  macro,      ///< name: of the macro; names: parameters; children: body, then defaults of the last parameters
  scope,      ///< child: a block with its own variables
  break_loop,
  continue_loop,
  nothing,  ///< stands for a child that is omitted
  // Expressions
  constant,   ///< value
  name,       ///< name
  list,       ///< children
  dict,       ///< children: key, value, key, value, …
  attribute,  ///< name: the attribute; child: object
  item,       ///< children: object, index
  slice,      ///< children: object, begin, end, step
  call,       ///< children: callee, then arguments; names: keywords of the last arguments
  filter,     ///< name: of the filter; children: value, then arguments
  test,       ///< name: of the test; children: value, then arguments
  unary,      ///< name: operator; child: operand
  binary,     ///< name: operator; children: left, right
  join,       ///< children: operands of ~, which concatenates their texts
  compare,    ///< names: operators; children: operands
  if_value,   ///< children: value, test, else or `nothing`
  captured,   ///< output of the block in a set_block, the input of its filters
};

/// A statement or an expression. Nodes nest at most kMostNested deep, which bounds recursion over them.
struct Node {
  static constexpr int kMostNested = 256;

  NodeKind kind;
  int line;
  std::string name{};
  std::vector<Node> children{};
  std::vector<std::string> names{};
  Value value{};
  int depth = 0;
};

/// Parses a whole template and returns its block. Sets `line` to the current line, also if Refusal is thrown.
Node parse(std::string_view text, int& line);

}  // namespace headgate::jinja
