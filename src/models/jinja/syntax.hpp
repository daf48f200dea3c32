// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/jinja/value.hpp"

namespace headgate::jinja {

/// Kinds of nodes. The comment on each kind tells which members of Node hold what.
enum class NodeKind {
  // Statements
  block,    ///< statements in sequence: `children` holds them
  text,     ///< literal text: `name` holds it
  output,   ///< {{ … }}: the only child is the expression to output
  if_else,  ///< if statement: `children` holds the condition, the block of `then` and the block of `else`
  /// Loop. `names` holds the loop variables. `children` holds four nodes: items, filter, body, and the block of `else`.
  /// If the loop has no filter, the second node is `nothing`.
  for_in,
  /// Assignment of the only child's value. `names` holds the target variables. If `name` is not empty, the target is
  /// the attribute `name` of the namespace names[0].
  set,
  /// Assignment of a block's output. `name` and `names` hold the target, as in `set`. `children` holds the filters and
  /// the block. The filters are applied to a node `captured`, which stands for the block's output.
  set_block,
  /// Definition of a macro. `name` holds its name, and `names` its parameters. `children` holds the body, then the
  /// default values of the last parameters.
  macro,
  scope,  ///< block with its own variables: the only child is the block
  break_loop,
  continue_loop,
  nothing,  ///< placeholder for a child that the template omits
  // Expressions
  constant,   ///< literal: `value` holds its value
  name,       ///< variable whose name is in `name`
  list,       ///< list: `children` holds the elements
  dict,       ///< dictionary: `children` holds key, value, key, value, …
  attribute,  ///< object.attribute: the only child is the object, and `name` holds the attribute
  item,       ///< object[index]: `children` holds the object and the index
  slice,      ///< object[begin:end:step]: `children` holds the object, begin, end and step
  /// Call. `children` holds the called value, then the arguments. `names` holds the keywords, which belong to the last
  /// arguments.
  call,
  filter,    ///< Filter whose name is in `name`. `children` holds the filtered value, then the arguments.
  test,      ///< Test whose name is in `name`. `children` holds the tested value, then the arguments.
  unary,     ///< operator with one operand: `name` holds the operator, and the only child is the operand
  binary,    ///< operator with two operands: `name` holds the operator, and `children` the operands
  join,      ///< concatenation of text by ~: `children` holds the operands
  compare,   ///< comparisons such as a < b < c: `names` holds the operators, and `children` the operands
  if_value,  ///< a if test else b: `children` holds `a`, the test, and `b`; without `else`, `nothing` for `b`
  captured,  ///< output of the block of a set_block, as the operand of its filters
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
