// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/jinja/value.hpp"

namespace headgate::jinja {

/// Kinds of nodes. The comment on each kind tells what the members of Node contain.
enum class NodeKind {
  // Statements
  block,    ///< children
  text,     ///< name: the text
  output,   ///< expression
  if_else,  ///< children: test, then block, else block
  for_in,   ///< names: targets; children: items, filter or `nothing`, body, else block
  /// names: targets; child: expression. If `name` is not empty, the target is the attribute `name` of the namespace
  /// names[0].
  set,
  set_block,  ///< name, names: as for `set`; children: filters applied to `captured`, then the block
  macro,      ///< name: the macro's name; names: parameters; children: body, then default values of the last parameters
  scope,      ///< child: a block that has its own variables
  break_loop,
  continue_loop,
  nothing,  ///< takes the place of an omitted child
  // Expressions
  constant,   ///< value
  name,       ///< name
  list,       ///< children
  dict,       ///< children: key, value, key, value, …
  attribute,  ///< name: the attribute; child: the object
  item,       ///< children: object, index
  slice,      ///< children: object, begin, end, step
  call,       ///< children: callee, then arguments; names: the keywords that belong to the last arguments
  filter,     ///< name: the filter's name; children: value, then arguments
  test,       ///< name: the test's name; children: value, then arguments
  unary,      ///< name: the operator; child: the operand
  binary,     ///< name: the operator; children: left and right operand
  join,       ///< children: operands of ~, which concatenates text
  compare,    ///< names: the operators; children: the operands
  if_value,   ///< children: value, test, and else value or `nothing`
  captured,   ///< the output of the block in a set_block, to which its filters apply
};

/// A statement or an expression. Limits nesting to kMostNested levels, so that recursive functions are safe.
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

/// Parses a whole template and returns its block. Sets `line` to the current line, even if Refusal is thrown.
Node parse(std::string_view text, int& line);

}  // namespace headgate::jinja
