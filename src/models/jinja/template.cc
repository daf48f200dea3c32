// SPDX-License-Identifier: Apache-2.0
#include "models/jinja/template.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "headgate/error.hpp"
#include "models/io/input_file.hpp"
#include "models/jinja/builtins.hpp"
#include "models/jinja/syntax.hpp"

namespace headgate::jinja {
namespace {

constexpr std::size_t kMostMessageBytes = 400;
/// Maximum nesting of statements and expressions, which limits the depth of the call stack.
constexpr int kMostNested = 512;
constexpr int kMostCalls = 64;  ///< maximum nesting of macro calls
/// Number of variable names that a lookup compares per unit of Budget.
constexpr std::size_t kNamesPerUnit = 8;

/// Calls work(line), which keeps `line` up to date. Converts a TemplateError to an Error that names the line.
template <class Work>
auto with_line(const Work& work) {
  int line = 1;
  try {
    return work(line);
  } catch (const TemplateError& error) {
    throw Error(formatted("chat template, line {}: {}", line, io::printable(error.message, kMostMessageBytes)));
  }
}

/// Holds the variables of one scope, such as a macro call or one pass of a loop. Points to the enclosing scope.
struct Scope {
  Dict variables{};
  Scope* outer = nullptr;
};

/// Opens a scope in its constructor and closes the scope in its destructor. `current` points to the innermost scope.
class Inner {
 public:
  explicit Inner(Scope*& current) : Inner(current, current) {}
  /// Opens a scope inside the scope `outer`, which may differ from `current`.
  Inner(Scope*& current, Scope* outer) : current_(current), before_(current), scope_{.outer = outer} {
    current = &scope_;
  }
  ~Inner() { current_ = before_; }
  Inner(const Inner&) = delete;
  Inner& operator=(const Inner&) = delete;

  Dict& variables() { return scope_.variables; }

 private:
  Scope*& current_;
  Scope* before_;
  Scope scope_;
};

/// Increments a nesting depth during the object's lifetime. Throws TemplateError if the depth exceeds kMostNested.
class Nested {
 public:
  explicit Nested(int& depth) : depth_(depth) {
    if (++depth_ > kMostNested) raise_error("the computation nests more than {} deep", kMostNested);
  }
  ~Nested() { --depth_; }
  Nested(const Nested&) = delete;
  Nested& operator=(const Nested&) = delete;

 private:
  int& depth_;
};

/// Tells how rendering continues after a statement.
enum class Flow { next, break_loop, continue_loop };

std::int64_t floored_quotient(std::int64_t a, std::int64_t b) {
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

/// Returns the result of an integer operator: + - * // or %. Throws TemplateError on overflow and division by zero.
Value whole_result(std::int64_t a, std::string_view op, std::int64_t b) {
  std::int64_t out = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &out);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &out);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &out);
  } else {
    if (b == 0) raise_error("a division by zero");
    overflow = b == -1 && a == INT64_MIN;
    if (!overflow) out = op == "%" ? a - floored_quotient(a, b) * b : floored_quotient(a, b);
  }
  if (overflow) raise_error("an integer beyond 64 bits is not supported");
  return Value(out);
}

Value real_result(double a, std::string_view op, double b) {
  if (op == "+") return Value(a + b);
  if (op == "-") return Value(a - b);
  if (op == "*") return Value(a * b);
  if (op != "/") raise_error("the operator '{}' of numbers with a fraction is not supported", op);
  if (b == 0.0) raise_error("a division by zero");
  return Value(a / b);
}

class Renderer {
 public:
  Renderer(const Dict& variables, const RenderOptions& options, int& line)
      : variables_(variables), now_(options.now), budget_(options.budget), line_(line) {}

  std::string run(const Node& root) {
    std::string out;
    statement(root, out);
    return out;
  }

 private:
  // --- statements

  Flow statement(const Node& node, std::string& out) {
    const Nested nested(depth_);
    line_ = node.line;
    budget_.take(Budget::kStep);
    switch (node.kind) {
      case NodeKind::block: return all(node, out);
      case NodeKind::text: write(out, node.name); break;
      case NodeKind::output: output(node.children[0], out); break;
      case NodeKind::if_else: return statement(node.children[value(node.children[0]).truth() ? 1 : 2], out);
      case NodeKind::for_in: return loop(node, out);
      case NodeKind::set: assign_to(node, value(node.children[0])); break;
      case NodeKind::set_block: {
        std::string text;
        {
          const Inner inner(scope_);
          statement(node.children[1], text);
        }
        const Value before = std::exchange(captured_, Value(std::move(text)));
        Value set = value(node.children[0]);
        captured_ = before;
        assign_to(node, std::move(set));
        break;
      }
      case NodeKind::macro: assign(scope_->variables, node.name, Value(&node)); break;
      case NodeKind::scope: {
        const Inner inner(scope_);
        return statement(node.children[0], out);
      }
      case NodeKind::break_loop: return Flow::break_loop;
      case NodeKind::continue_loop: return Flow::continue_loop;
      default: raise_error("an expression stands in place of a statement");
    }
    return Flow::next;
  }

  Flow all(const Node& block, std::string& out) {
    for (const Node& each : block.children) {
      const Flow flow = statement(each, out);
      if (flow != Flow::next) return flow;
    }
    return Flow::next;
  }

  void write(std::string& out, std::string_view text) {
    budget_.take(text.size());
    out += text;
  }

  void output(const Node& node, std::string& out) {
    // Skips a final filter `safe`, which marks a text as safe HTML. Only operators on the text read this mark, and no
    // operator follows here.
    const bool safe = node.kind == NodeKind::filter && node.name == "safe";
    write(out, text_of(value(safe ? node.children[0] : node)));
  }

  void assign_to(const Node& node, Value set) {
    if (!node.name.empty()) {
      Namespace* space = lookup(node.names.front()).space();
      if (space == nullptr) raise_error("'{}' is no namespace", io::printable(node.names.front()));
      return assign(space->attributes, node.name, std::move(set));
    }
    bind(node.names, std::move(set), scope_->variables);
  }

  /// Assigns a value to one name, or the value's elements to several names.
  void bind(const std::vector<std::string>& names, Value value, Dict& variables) {
    if (names.size() == 1) return assign(variables, names.front(), std::move(value));
    const List parts = elements_of(value, budget_);
    if (parts.size() != names.size()) raise_error("{} names stand for {} values", names.size(), parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) assign(variables, names[i], parts[i]);
  }

  Flow loop(const Node& node, std::string& out) {
    const Node &filter = node.children[1], &body = node.children[2], &other = node.children[3];
    List items = elements_of(value(node.children[0]), budget_);
    if (filter.kind != NodeKind::nothing) {
      std::erase_if(items, [&](const Value& item) {
        Inner inner(scope_);
        bind(node.names, item, inner.variables());
        return !value(filter).truth();
      });
    }
    bool completed = false;  // true once an iteration reaches the end of the body; Jinja then skips `else`
    for (std::size_t i = 0; i < items.size(); ++i) {
      Inner inner(scope_);
      assign(inner.variables(), "loop", loop_value(items, i));
      bind(node.names, items[i], inner.variables());
      const Flow flow = statement(body, out);
      if (flow == Flow::break_loop) break;
      completed = completed || flow == Flow::next;
    }
    if (completed) return Flow::next;
    const Inner inner(scope_);
    return statement(other, out);
  }

  static Value loop_value(const List& items, std::size_t i) {
    const auto at = static_cast<std::int64_t>(i), count = static_cast<std::int64_t>(items.size());
    const bool first = i == 0, last = at + 1 == count;
    Dict out{{"index", Value(at + 1)},          {"index0", Value(at)},
             {"revindex", Value(count - at)},   {"revindex0", Value(count - at - 1)},
             {"first", Value(first)},           {"last", Value(last)},
             {"length", Value(count)},          {"depth", Value(std::int64_t{1})},
             {"depth0", Value(std::int64_t{0})}};
    // Value's constructor cannot throw here: an item is nested no deeper in this dictionary than in the list `items`.
    if (!first) out.emplace_back("previtem", items[i - 1]);
    if (!last) out.emplace_back("nextitem", items[i + 1]);
    return Value(std::move(out));
  }

  // --- expressions

  Value value(const Node& node) {
    const Nested nested(depth_);
    line_ = node.line;
    budget_.take(Budget::kStep);
    const std::vector<Node>& parts = node.children;
    switch (node.kind) {
      case NodeKind::nothing: return Value(None{});
      case NodeKind::constant: return node.value;
      case NodeKind::captured: return captured_;
      case NodeKind::name: return lookup(node.name);
      case NodeKind::list: return list(node);
      case NodeKind::dict: return dictionary(node);
      case NodeKind::attribute: return attribute_of(value(parts[0]), node.name, budget_);
      case NodeKind::item: {
        const Value object = value(parts[0]);
        return item_of(object, value(parts[1]), budget_);
      }
      case NodeKind::slice: {
        const Value object = value(parts[0]), begin = value(parts[1]), end = value(parts[2]);
        return slice_of(object, begin, end, value(parts[3]), budget_);
      }
      case NodeKind::call: return call(node);
      case NodeKind::filter: {
        const Value filtered = value(parts[0]);
        return apply_filter(node.name, filtered, arguments(node), budget_);
      }
      case NodeKind::test: {
        const Value tested = value(parts[0]);
        return Value(apply_test(node.name, tested, arguments(node), budget_));
      }
      case NodeKind::unary: return unary(node.name, value(parts[0]));
      case NodeKind::binary: return binary(node);
      case NodeKind::join: {
        std::string out;
        for (const Node& part : parts) write(out, text_of(value(part)));
        return Value(std::move(out));
      }
      case NodeKind::compare: return comparison(node);
      case NodeKind::if_value:
        if (value(parts[1]).truth()) return value(parts[0]);
        return parts[2].kind == NodeKind::nothing ? Value(Undefined{"the value of 'if' without 'else'"})
                                                  : value(parts[2]);
      default: raise_error("a statement stands in place of an expression");
    }
  }

  Value lookup(std::string_view name) {
    for (const Scope* scope = scope_; scope != nullptr; scope = scope->outer) {
      budget_.take(scope->variables.size() / kNamesPerUnit);
      if (const Value* found = find(scope->variables, name)) return *found;
    }
    if (const Value* found = find(variables_, name)) return *found;
    // Meets the condition of Value::function(): `name` belongs to a Node, so it outlives the value.
    return has_function(name) ? Value::function(name) : Value(Undefined{std::string(name)});
  }

  Value list(const Node& node) {
    List out;
    for (const Node& each : node.children) out.push_back(value(each));
    return Value(std::move(out));
  }

  Value dictionary(const Node& node) {
    Dict out;
    for (std::size_t i = 0; i < node.children.size(); i += 2) {
      const Value key = value(node.children[i]);
      if (key.string() == nullptr) raise_error("a key that is {} is not supported", key.kind());
      budget_.take(Budget::kStep * out.size());
      assign(out, *key.string(), value(node.children[i + 1]));
    }
    return Value(std::move(out));
  }

  /// Evaluates the arguments of a node, which are all children except the first.
  Arguments arguments(const Node& node) {
    Arguments out;
    const std::size_t unnamed = node.children.size() - node.names.size();
    for (std::size_t i = 1; i < node.children.size(); ++i) {
      if (i < unnamed) {
        out.unnamed.push_back(value(node.children[i]));
      } else {
        assign(out.named, node.names[i - unnamed], value(node.children[i]));
      }
    }
    return out;
  }

  Value call(const Node& node) {
    const Node& callee = node.children[0];
    if (callee.kind == NodeKind::attribute) {
      const Value object = value(callee.children[0]);
      if (has_method(object, callee.name)) return call_method(object, callee.name, arguments(node), budget_);
    }
    const Value function = value(callee);
    if (const Undefined* missing = function.undefined()) {
      raise_error("'{}' is undefined", io::printable(missing->name, 80));
    }
    if (const Node* macro = function.macro()) return run_macro(*macro, arguments(node));
    if (function.function() == nullptr) raise_error("{} cannot be called", function.kind());
    if (*function.function() == "namespace") return make_namespace(arguments(node));
    return call_function(*function.function(), arguments(node), now_, budget_);
  }

  Value make_namespace(const Arguments& given) {
    if (!given.unnamed.empty()) raise_error("the function 'namespace' of another value is not supported");
    return Value(&namespaces_.emplace_back(Namespace{given.named}));
  }

  Value run_macro(const Node& macro, const Arguments& given) {
    if (++calls_ > kMostCalls) raise_error("macros call each other more than {} deep", kMostCalls);
    if (given.unnamed.size() > macro.names.size()) {
      raise_error("the macro '{}' has too many arguments", io::printable(macro.name));
    }
    Dict given_names;
    for (std::size_t i = 0; i < given.unnamed.size(); ++i) assign(given_names, macro.names[i], given.unnamed[i]);
    for (const auto& [key, each] : given.named) {
      const bool known = std::find(macro.names.begin(), macro.names.end(), key) != macro.names.end();
      if (!known || find(given_names, key) != nullptr) {
        raise_error("the macro '{}' has no argument '{}', or has it twice", io::printable(macro.name),
                    io::printable(key));
      }
      assign(given_names, key, each);
    }
    Inner inner(scope_, &root_);
    inner.variables() = std::move(given_names);
    const std::size_t defaults = macro.children.size() - 1, first = macro.names.size() - defaults;
    for (std::size_t i = 0; i < macro.names.size(); ++i) {
      if (find(inner.variables(), macro.names[i]) != nullptr) continue;
      Value missing = i < first ? Value(Undefined{macro.names[i]}) : value(macro.children[1 + i - first]);
      assign(inner.variables(), macro.names[i], std::move(missing));
    }
    std::string out;
    statement(macro.children[0], out);
    --calls_;
    return Value(std::move(out));
  }

  static Value unary(std::string_view op, const Value& operand) {
    if (op == "not") return Value(!operand.truth());
    std::int64_t storage = 0;
    if (const std::int64_t* integer = operand.integer(storage)) return whole_result(0, op, *integer);
    const double* real = operand.real();
    if (real == nullptr) raise_error("'{}' of {}", op, operand.kind());
    return Value(op == "-" ? -*real : *real);
  }

  Value binary(const Node& node) {
    const std::string& op = node.name;
    Value left = value(node.children[0]);
    if (op == "and") return left.truth() ? value(node.children[1]) : left;
    if (op == "or") return left.truth() ? left : value(node.children[1]);
    const Value right = value(node.children[1]);
    line_ = node.line;
    std::int64_t whole_left = 0, whole_right = 0;
    const std::int64_t *a = left.integer(whole_left), *b = right.integer(whole_right);
    if (a != nullptr && b != nullptr && op != "/") return whole_result(*a, op, *b);
    if (double x = 0.0, y = 0.0; left.number(x) && right.number(y)) return real_result(x, op, y);
    if (op == "+" && left.string() != nullptr && right.string() != nullptr) {
      budget_.take(left.string()->size() + right.string()->size());
      return Value(*left.string() + *right.string());
    }
    if (op == "+" && left.list() != nullptr && right.list() != nullptr) {
      List out = elements_of(left, budget_);
      for (const Value& each : elements_of(right, budget_)) out.push_back(each);
      return Value(std::move(out));
    }
    if (op == "*" && left.string() != nullptr && b != nullptr) return repeated(*left.string(), *b);
    for (const Undefined* each : {left.undefined(), right.undefined()}) {
      if (each != nullptr) raise_error("'{}' is undefined", io::printable(each->name, 80));
    }
    raise_error("'{}' of {} and {} is not supported", op, left.kind(), right.kind());
  }

  Value repeated(const std::string& text, std::int64_t times) {
    std::string out;
    for (; times > 0 && !text.empty(); --times) write(out, text);
    return Value(std::move(out));
  }

  Value comparison(const Node& node) {
    Value left = value(node.children[0]);
    for (std::size_t i = 0; i < node.names.size(); ++i) {
      Value right = value(node.children[i + 1]);
      line_ = node.line;
      if (!compares(left, node.names[i], right)) return Value(false);
      left = std::move(right);
    }
    return Value(true);
  }

  bool compares(const Value& left, std::string_view op, const Value& right) {
    if (op == "==" || op == "!=") return equal(left, right, budget_) == (op == "==");
    if (op == "in" || op == "not in") return contains(right, left, budget_) == (op == "in");
    const int order = compare(left, right, budget_);
    const bool with_equal = op.size() == 2;
    return op.front() == '<' ? order < (with_equal ? 1 : 0) : order > (with_equal ? -1 : 0);
  }

  const Dict& variables_;
  std::time_t now_;
  Budget budget_;
  int& line_;
  Scope root_;
  Scope* scope_ = &root_;
  Value captured_;
  std::deque<Namespace> namespaces_;
  int calls_ = 0, depth_ = 0;
};

}  // namespace

Template::Template(std::string_view text)
    : root_(with_line([text](int& line) { return std::make_unique<const Node>(parse(text, line)); })) {}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

std::string Template::render(const Dict& variables, const RenderOptions& options) const {
  return with_line([&](int& line) { return Renderer(variables, options, line).run(*root_); });
}

}  // namespace headgate::jinja
