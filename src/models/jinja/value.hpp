// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "library/core/format.hpp"

// Defines the values of templates, which behave as in Python.

namespace headgate::jinja {

/// Exception that ends the parsing or rendering of a template. The reason is an operation that this interpreter does
/// not support, or one for which Python would raise an exception. Template converts it to an Error that names the line.
struct TemplateError {
  std::string message;
};

template <typename... Args>
[[noreturn]] void raise_error(fmt::format_string<Args...> format, Args&&... args) {
  throw TemplateError{formatted(format, std::forward<Args>(args)...)};
}

class Value;
struct Node;
using List = std::vector<Value>;
using Dict = std::vector<std::pair<std::string, Value>>;  ///< entries in the order of insertion, with distinct keys

/// Value of a variable, key or attribute that does not exist, as in Jinja.
struct Undefined {
  std::string name;
};
struct None {};
/// Result of the function namespace().
struct Namespace {
  Dict attributes;
};
/// Result of filters such as `select` and `reverse`. Behaves like a generator in Python: it counts as true, has no
/// length, cannot be indexed, and gives each element once.
struct Generator {
  List left;
};

/// A value of a Jinja expression. Copies share their content. Only namespaces and generators can change. Lists,
/// dictionaries and generators nest at most kMostNested levels deep, so that recursion over them cannot overflow the
/// call stack.
class Value {
 public:
  static constexpr int kMostNested = 64;

  Value() : data_(Undefined{}) {}
  /// Makes an undefined value. Shortens a long name, so that values are cheap to copy.
  explicit Value(Undefined value);
  explicit Value(None value) : data_(value) {}
  explicit Value(bool value) : data_(value) {}
  explicit Value(std::int64_t value) : data_(value) {}
  explicit Value(double value) : data_(value) {}
  explicit Value(std::string value) : data_(std::make_shared<const std::string>(std::move(value))) {}
  explicit Value(Namespace* value) : data_(value) {}
  explicit Value(const Node* macro) : data_(macro) {}
  /// The next three constructors throw TemplateError if the values nest more than kMostNested levels deep.
  explicit Value(List values);
  explicit Value(Dict values);
  explicit Value(Generator values);
  /// Returns a value that stands for the built-in function `name`. `name` must outlive the value.
  static Value function(std::string_view name);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  const bool* boolean() const { return std::get_if<bool>(&data_); }
  const double* real() const { return std::get_if<double>(&data_); }
  const std::string* string() const { return shared<std::string>(); }
  const List* list() const { return shared<List>(); }
  const Dict* dict() const { return shared<Dict>(); }
  Generator* generator() const { return pointer<std::shared_ptr<Generator>>().get(); }
  Namespace* space() const { return pointer<Namespace*>(); }
  const Node* macro() const { return pointer<const Node*>(); }
  const Undefined* undefined() const { return std::get_if<Undefined>(&data_); }
  const std::string_view* function() const { return std::get_if<std::string_view>(&data_); }

  /// Returns a pointer to the integer, or null if the value is not an integer. For a boolean, writes 0 or 1 to
  /// `storage` and returns its address.
  const std::int64_t* integer(std::int64_t& storage) const;
  /// Returns whether the value is a number. If so, sets `out` to the number. Booleans count as 0 and 1.
  bool number(double& out) const;
  /// Returns whether the value counts as true in `if`.
  bool truth() const;
  /// Returns the name of the value's type, for messages.
  std::string_view kind() const;
  int depth() const { return depth_; }

 private:
  template <typename T>
  const T* shared() const {
    const auto* held = std::get_if<std::shared_ptr<const T>>(&data_);
    return held == nullptr ? nullptr : held->get();
  }
  template <typename P>
  P pointer() const {
    const auto* held = std::get_if<P>(&data_);
    return held == nullptr ? nullptr : *held;
  }

  std::variant<Undefined, None, bool, std::int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, Namespace*, const Node*, std::string_view,
               std::shared_ptr<Generator>>
      data_;
  int depth_ = 0;
};

/// Limits the work and memory of rendering a template, counted in units. An operation takes units before it allocates
/// memory for its result.
class Budget {
 public:
  explicit Budget(std::size_t units) : left_(units) {}
  /// Takes `units` from the budget: 1 for each byte of a string, kStep for each step. Throws TemplateError if fewer are
  /// left.
  void take(std::size_t units) {
    if (units > left_) raise_error("computes too long, or too long a text");
    left_ -= units;
  }
  /// Uses up a · b units. The product may exceed 64 bits.
  void take_product(std::size_t a, std::size_t b) {
    std::size_t units = 0;
    take(__builtin_mul_overflow(a, b, &units) ? SIZE_MAX : units);
  }
  static constexpr std::size_t kStep = 16;

 private:
  std::size_t left_;
};

/// Returns the value of a key, or null if the dictionary does not have the key.
const Value* find(const Dict& dict, std::string_view key);
/// Adds a key, or replaces the value of an existing key.
void assign(Dict& dict, std::string_view key, Value value);

/// Returns whether a == b, as in Python.
bool equal(const Value& a, const Value& b, Budget& budget);
/// Returns a negative number if a < b, 0 if a == b, and a positive number if a > b. Throws TemplateError for values
/// that have no order.
int compare(const Value& a, const Value& b, Budget& budget);
/// Returns whether `in` contains `item`: as a substring of a string, an element of a list, or a key of a dictionary.
bool contains(const Value& in, const Value& item, Budget& budget);
/// Returns the text that a template outputs for a value. Throws TemplateError for values for which this interpreter
/// outputs no text, such as lists and dictionaries.
std::string text_of(const Value& value);
/// Returns the same JSON as json.dumps(value, ensure_ascii=False, indent=indent). A negative `indent` gives one line.
std::string json_of(const Value& value, int indent, Budget& budget);
/// Returns the values that a loop over `value` visits: elements of a list, keys of a dictionary, or characters of a
/// string. A generator is empty afterwards, as in Python.
List elements_of(const Value& value, Budget& budget);

}  // namespace headgate::jinja
