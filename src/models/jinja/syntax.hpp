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
  text,     ///< literal text, in `name`
  output,   ///< {{ … }}: the only child is the expression to output
  if_else,  ///< `children` holds the condition, the block of `then` and the block of `else`
  /// Loop. `names` holds the loop variables. `children` holds the items, the filter, the body and the block of `else`.
  /// A loop without a filter has the node `nothing` there.
  for_in,
  /// Assignment of the only child's value. `names` holds the target variables. If `name` is not empty, the target is
  /// the attribute `name` of the namespace names[0].
  set,
  /// Assignment of a block's output. `name` and `names` hold the target, as in `set`. `children` holds the filters,
  /// applied to the node `captured`, and the block.
  set_block,
  /// Definition of a macro. `name` holds its name, and `names` its parameters. `children` holds the body, then the
  /// default values of the last parameters.
  macro,
  scope,  ///< the only child is a block with its own variables
  break_loop,
  continue_loop,
  nothing,  ///< takes the place of a child that the template omits
  // Expressions
  constant,   ///< literal value, in `value`
  name,       ///< variable whose name is in `name`
  list,       ///< list: `children` holds the elements
  dict,       ///< dictionary: `children` holds key, value, key, value, …
  attribute,  ///< object.attribute: the only child is the object, and `name` holds the attribute
  item,       ///< object[index]: `children` holds the object and the index
  slice,      ///< object[begin:end:step]: `children` holds these four
  /// Call. `children` holds the callee and the arguments. `names` holds the keywords of the last arguments.
  call,
  filter,    ///< Filter whose name is in `name`. `children` holds the filtered value, then the arguments.
  test,      ///< Test whose name is in `name`. `children` holds the tested value, then the arguments.
  unary,     ///< operator with one operand: `name` holds the operator, and the only child is the operand
  binary,    ///< operator with two operands: `name` holds the operator, and `children` the operands
  join,      ///< concatenation of text by ~: `children` holds the operands
  compare,   ///< chain such as a < b < c: `names` holds the operators, and `children` the operands
  if_value,  ///< a if test else b: `children` holds `a`, the test, and `b` or the node `nothing`
  captured,  ///< stands for the output of a set_block's block, to which its filters are applied
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
