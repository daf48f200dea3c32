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

// Values of templates. They behave as in Python.

namespace headgate::jinja {

/// Exception for an operation of a template that this interpreter or Python does not support. Template converts it to
/// Error, with the line.
struct Refusal {
  std::string message;
};

template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Refusal{formatted(format, std::forward<Args>(args)...)};
}

class Value;
struct Node;
using List = std::vector<Value>;
using Dict = std::vector<std::pair<std::string, Value>>;  ///< entries in the order of insertion; each key occurs once

/// The value of a name, key or attribute that does not exist.
struct Undefined {
  std::string name;
};
struct None {};
/// The result of namespace().
struct Namespace {
  Dict attributes;
};
/// The result of filters such as `select` and `reverse`. As a generator in Python, it is always true, has no length and
/// no index, and gives its elements once.
struct Generator {
  List left;
};

/// A value that a Jinja expression can have. Values are shared; only namespaces and generators change. Lists,
/// dictionaries and generators nest at most kMostNested deep, which bounds recursion over them.
class Value {
 public:
  static constexpr int kMostNested = 64;

  Value() : data_(Undefined{}) {}
  /// Keeps only the beginning of a long name, so that values are cheap to copy.
  explicit Value(Undefined value);
  explicit Value(None value) : data_(value) {}
  explicit Value(bool value) : data_(value) {}
  explicit Value(std::int64_t value) : data_(value) {}
  explicit Value(double value) : data_(value) {}
  explicit Value(std::string value) : data_(std::make_shared<const std::string>(std::move(value))) {}
  explicit Value(Namespace* value) : data_(value) {}
  explicit Value(const Node* macro) : data_(macro) {}
  /// These three constructors throw Refusal if the values nest too deep.
  explicit Value(List values);
  explicit Value(Dict values);
  explicit Value(Generator values);
  /// Returns a value that represents the built-in function `name`. `name` must outlive the value.
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

  /// Returns the integer, or null if the value is not an integer. A boolean is written to `storage` as 0 or 1.
  const std::int64_t* integer(std::int64_t& storage) const;
  /// Returns whether the value is a number, and sets `out` to it. Booleans count as 0 and 1.
  bool number(double& out) const;
  /// Returns whether `if` treats the value as true.
  bool truth() const;
  /// Returns the name of the value's type for messages.
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

/// Limits the work and the memory of rendering a template. An operation takes its units before it allocates its
/// result.
class Budget {
 public:
  explicit Budget(std::size_t units) : left_(units) {}
  /// Uses up `units`: 1 for a byte of a string, kStep for a step. Throws Refusal if fewer are left.
  void take(std::size_t units) {
    if (units > left_) refuse("computes too long, or too long a text");
    left_ -= units;
  }
  /// Uses up `a` · `b` units, a product that may exceed 64 bits.
  void take_product(std::size_t a, std::size_t b) {
    std::size_t units = 0;
    take(__builtin_mul_overflow(a, b, &units) ? SIZE_MAX : units);
  }
  static constexpr std::size_t kStep = 16;

 private:
  std::size_t left_;
};

/// Returns the value of a key, or null if the dictionary does not have it.
const Value* find(const Dict& dict, std::string_view key);
/// Adds a key, or replaces its value.
void assign(Dict& dict, std::string_view key, Value value);

/// Returns whether a == b as in Python.
bool equal(const Value& a, const Value& b, Budget& budget);
/// Returns a negative number if a < b, 0 if they are equal, else a positive number. Throws Refusal for values without
/// an order.
int compare(const Value& a, const Value& b, Budget& budget);
/// Returns whether `in` contains the item: as a substring of a string, an element of a list or a key of a dictionary.
bool contains(const Value& in, const Value& item, Budget& budget);
/// Returns the text that a template outputs for a value. Throws Refusal for lists and dictionaries.
std::string text_of(const Value& value);
/// Returns the same JSON as json.dumps(value, ensure_ascii=False, indent=indent). Writes one line if `indent` is
/// negative.
std::string json_of(const Value& value, int indent, Budget& budget);
/// Returns the values that a loop visits: elements of a list, keys of a dictionary or characters of a string. Those
/// of a generator are removed from it.
List elements_of(const Value& value, Budget& budget);

}  // namespace headgate::jinja
