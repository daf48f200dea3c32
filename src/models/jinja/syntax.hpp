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
  block,    ///< `children` are the statements
  text,     ///< `name` is the text
  output,   ///< the child is the expression
  if_else,  ///< `children` are the test, the block of `then` and the block of `else`
  /// `names` are the targets; `children` are the items, the filter or `nothing`, the body and the block of `else`.
  for_in,
  /// `names` are the targets, and the child is the value. If `name` is not empty, the target is the attribute `name` of
  /// the namespace names[0].
  set,
  set_block,  ///< `name` and `names` are as in `set`; `children` are the filters, applied to `captured`, and the block
  /// `name` is the macro, and `names` its parameters; `children` are the body and the defaults of the last parameters.
  macro,
  scope,  ///< the child is a block with its own variables
  break_loop,
  continue_loop,
  nothing,  ///< takes the place of an omitted child
  // Expressions
  constant,   ///< `value` is the value
  name,       ///< `name` is the variable
  list,       ///< `children` are the elements
  dict,       ///< `children` are key, value, key, value, …
  attribute,  ///< `name` is the attribute, and the child is the object
  item,       ///< `children` are the object and the index
  slice,      ///< `children` are the object, begin, end and step
  call,       ///< `children` are the callee and the arguments; `names` are the keywords of the last arguments
  filter,     ///< `name` is the filter; `children` are the value and the arguments
  test,       ///< `name` is the test; `children` are the value and the arguments
  unary,      ///< `name` is the operator, and the child is the operand
  binary,     ///< `name` is the operator; `children` are the left and the right operand
  join,       ///< `children` are the operands of ~, which concatenates text
  compare,    ///< `names` are the operators; `children` are the operands
  if_value,   ///< `children` are the value, the test, and the value of `else` or `nothing`
  captured,   ///< output of the block in a set_block, to which its filters apply
};

/// A statement or an expression. Nodes nest at most kMostNested levels deep, so that recursion over them cannot
/// overflow the call stack.
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

/// Parses a whole template and returns its block. Sets `line` to the current line, even if TemplateError is thrown.
Node parse(std::string_view text, int& line);

}  // namespace headgate::jinja
