// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/jinja/value.hpp"

namespace headgate::jinja {

enum class NodeKind {
  // Statements
  block,      ///< children
  text,       ///< name: the text
  output,     ///< expression
  if_else,    ///< test, then, else
  for_in,     ///< names: targets; items, filter or nothing, body, else
  set,        ///< names: targets; expression. name: attribute of the namespace names[0], or empty
  set_block,  ///< as set, with a block in the expression's place, then the filters of `name` in a filter node
  macro,      ///< name; names: parameters; body, then the defaults of the last parameters
  scope,      ///< block with variables of its own
  break_loop,
  continue_loop,
  nothing,  ///< a child that is left out
  // Expressions
  constant,   ///< value
  name,       ///< name
  list,       ///< children
  dict,       ///< key, value, key, value, …
  attribute,  ///< name; object
  item,       ///< object, index
  slice,      ///< object, begin, end, step
  call,       ///< callee, then arguments, the last names.size() of which have names
  filter,     ///< name; value, then arguments
  test,       ///< name; value, then arguments
  unary,      ///< name: operator
  binary,     ///< name: operator; left, right
  join,       ///< children, by ~
  compare,    ///< names: operators; operands
  if_value,   ///< value, test, else or nothing
  captured,   ///< what set_block passes to its filters
};

/// A statement or an expression. Nodes nest at most kMostNested deep, so that recursion over them ends.
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

/// Returns the block of a whole template. `line`: the line in hand, also if Refusal is thrown.
Node parse(std::string_view text, int& line);

}  // namespace headgate::jinja
