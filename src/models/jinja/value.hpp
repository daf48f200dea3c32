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

// Values of templates. They act as Python's do.

namespace headgate::jinja {

/// Says what a template does that this interpreter or Python refuses. Template turns it into Error, with the line.
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
using Dict = std::vector<std::pair<std::string, Value>>;  ///< in the order of insertion, each key once

/// The value of a name, key or attribute that does not exist.
struct Undefined {
  std::string name;
};
struct None {};
/// Comes from namespace() and is the only value that changes.
struct Namespace {
  Dict attributes;
};

/// Lists and dictionaries do not change and are shared. They nest at most kMostNested deep, so that recursion over them
/// ends.
class Value {
 public:
  static constexpr int kMostNested = 64;

  Value() : data_(Undefined{}) {}
  explicit Value(Undefined value) : data_(std::move(value)) {}
  explicit Value(None value) : data_(value) {}
  explicit Value(bool value) : data_(value) {}
  explicit Value(std::int64_t value) : data_(value) {}
  explicit Value(double value) : data_(value) {}
  explicit Value(std::string value) : data_(std::make_shared<const std::string>(std::move(value))) {}
  explicit Value(Namespace* value) : data_(value) {}
  explicit Value(const Node* macro) : data_(macro) {}
  /// Throws Refusal if they nest too deep.
  explicit Value(List values);
  explicit Value(Dict values);
  /// A function that templates have without defining it. `name` outlives the value.
  static Value function(std::string_view name);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  const bool* boolean() const { return std::get_if<bool>(&data_); }
  const double* real() const { return std::get_if<double>(&data_); }
  const std::string* string() const { return shared<std::string>(); }
  const List* list() const { return shared<List>(); }
  const Dict* dict() const { return shared<Dict>(); }
  Namespace* space() const { return pointer<Namespace*>(); }
  const Node* macro() const { return pointer<const Node*>(); }
  const Undefined* undefined() const { return std::get_if<Undefined>(&data_); }
  const std::string_view* function() const { return std::get_if<std::string_view>(&data_); }

  /// Returns the integer; Python's True is 1. Null if the value is none.
  const std::int64_t* integer(std::int64_t& storage) const;
  /// Returns whether the value is a number, and which; booleans are 0 and 1.
  bool number(double& out) const;
  /// Returns what `if` takes the value for.
  bool truth() const;
  /// Returns what a message calls the value's type.
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
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, Namespace*, const Node*, std::string_view>
      data_;
  int depth_ = 0;
};

/// Bounds what a template may compute. Throws Refusal where it is used up.
class Budget {
 public:
  explicit Budget(std::size_t units) : left_(units) {}
  /// Takes `units`: a byte of a string is one, a step kStep.
  void take(std::size_t units) {
    if (units > left_) refuse("computes too long, or too long a text");
    left_ -= units;
  }
  static constexpr std::size_t kStep = 16;

 private:
  std::size_t left_;
};

/// Returns the value of a key; null if the dictionary has none.
const Value* find(const Dict& dict, std::string_view key);
/// Adds a key, or replaces its value.
void assign(Dict& dict, std::string_view key, Value value);

/// Compares as == does.
bool equal(const Value& a, const Value& b, Budget& budget);
/// Compares as <: returns less than 0, 0 or more than 0. Throws Refusal for values that have no order.
int compare(const Value& a, const Value& b);
/// Returns whether `in` finds the item.
bool contains(const Value& in, const Value& item, Budget& budget);
/// Returns what a template writes for a value. Throws Refusal for lists and dictionaries.
std::string text_of(const Value& value);
/// Returns JSON as json.dumps(value, ensure_ascii=False, indent=indent) does. `indent` below 0: on one line.
std::string json_of(const Value& value, int indent, Budget& budget);
/// Returns what a loop passes through: elements, keys or characters.
List elements_of(const Value& value, Budget& budget);

}  // namespace headgate::jinja
