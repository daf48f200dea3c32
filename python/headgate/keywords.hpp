// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "python/headgate/tensors.hpp"

// Parses the arguments of the package's functions. A wrong argument raises TypeError with a one-line message that names
// the argument and what it accepts.

namespace headgate::python {

namespace nb = nanobind;

/// Describes an argument in signatures and docstrings.
struct ArgumentText {
  std::string name, type, default_text, help;
};

/// Describes the arguments of a function. Arguments without a default are required. The first `positional` arguments
/// may also be positional arguments of a call.
struct CallSpec {
  std::string function;
  std::vector<ArgumentText> arguments;
  std::size_t positional = 0;
};

/// Returns the words for a value of type T in error messages, such as "a whole number".
template <typename T>
constexpr const char* wanted() {
  if constexpr (std::is_same_v<T, bool>) return "True or False";
  if constexpr (std::is_integral_v<T>) return "a whole number";
  if constexpr (std::is_floating_point_v<T>) return "a number";
  if constexpr (std::is_same_v<T, std::string>) return "a str";
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return "a sequence of str";
  if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) return "a sequence of whole numbers";
  return nullptr;
}

template <typename T>
inline constexpr bool kIsNumber = std::is_same_v<T, std::optional<double>> ||
                                  (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);

/// Returns true for True and False, of Python or NumPy.
bool is_bool(nb::handle object);

/// Makes Python raise ValueError for headgate::Error. Writes control characters of the message as \xNN, so that a
/// message that quotes an argument stays one line.
void raise_errors_in_one_line();

/// Returns a suggestion for an unknown argument `name`, such as "; did you mean …?". If `name` is an argument of
/// another library or an older release, suggests the argument in `known` with the same meaning. Otherwise suggests an
/// argument in `known` with a similar spelling. Returns an empty string if `known` has neither.
std::string meant_instead_of(std::string_view name, const std::vector<std::string_view>& known);

/// Returns the type annotation of an argument that must be one of `words`. "a, b" gives "Literal['a', 'b']".
std::string literal_of(std::string_view words);

/// Holds the arguments of one call.
class Keywords {
 public:
  /// Throws TypeError if an argument is missing, unknown or given twice, or if there are too many positional arguments.
  Keywords(const CallSpec& spec, const nb::args& positional, const nb::kwargs& given);

  const char* function() const { return spec_.function.c_str(); }
  const nb::kwargs& given_by_name() const { return given_; }

  /// Returns the argument `name`, or None if it is absent.
  nb::object take(const char* name) const;

  /// Returns the argument `name` as a T. Returns `fallback` if the argument is absent or None. Throws TypeError if the
  /// argument does not convert to T, and Error if it requires a gradient.
  template <typename T>
  T take(const char* name, const char* what, T fallback) const {
    const nb::object object = take(name);
    return object.is_none() ? fallback : as<T>(name, object, what);
  }
  template <typename T>
  T take(const char* name, T fallback) const {
    return take<T>(name, wanted<T>(), std::move(fallback));
  }

  /// Returns the argument `name` as a T. Unlike take(), rejects None.
  template <typename T>
  T require(const char* name) const {
    return as<T>(name, take(name), wanted<T>());
  }

  [[noreturn]] void refuse(const char* name, nb::handle object, const char* what) const;

  /// Records that the call writes to `array`, an argument of the call.
  void note_written(nb::handle array) const {
    if (is_tensor(array)) written_.push_back(nb::borrow(array));
  }
  /// Increments autograd's version counters of the tensors that note_written() recorded, then forgets these tensors.
  /// Runs when a call returns, and when a signal interrupts a call.
  void count_written() const { count_versions(std::exchange(written_, {})); }

 private:
  template <typename T>
  T as(const char* name, const nb::object& object, const char* what) const {
    refuse_recorded(function(), name, object);
    T value{};
    // True would otherwise become the number 1.
    const bool is_wrong_bool = kIsNumber<T> && is_bool(object);
    if (is_wrong_bool || !nb::try_cast(object, value, true)) refuse(name, object, what);
    return value;
  }

  struct Argument {
    std::string_view name;
    nb::handle value;
  };

  /// Returns the argument `name`, or null if it is absent.
  const Argument* find(std::string_view name) const;

  const CallSpec& spec_;
  nb::args positional_;
  nb::kwargs given_;
  std::vector<Argument> found_;  ///< arguments that the call passes
  mutable std::vector<nb::object> written_;
};

/// Runs call(keywords), then tells autograd which tensors the call has written. Returns the result of the call.
template <class Call>
auto counting_written(const Keywords& keywords, const Call& call) {
  if constexpr (std::is_void_v<decltype(call(keywords))>) {
    call(keywords);
    keywords.count_written();
  } else {
    auto result = call(keywords);
    keywords.count_written();
    return result;
  }
}

/// Returns the argument `threads`, or 0 if it is None. Throws Error, a ValueError in Python, if the number is not 1 to
/// max_threads().
int take_threads(const Keywords& keywords);
ArgumentText threads_text();

/// Returns the signature "def NAME(q: Array, k: Array, …, *, bias: Array | None = None, …) -> RESULT". If `self` is not
/// empty, it is the first parameter.
std::string signature_of(const CallSpec& spec, const char* result, const char* self = "");

/// Returns a line "    name: help" for each argument that has a help text.
std::string arguments_help(const std::vector<ArgumentText>& arguments);

std::vector<ArgumentText> joined(std::vector<ArgumentText> texts, const std::vector<ArgumentText>& more);

/// Returns the docstring of a function: `text` and then the help texts of the arguments.
std::string docstring_of(const char* text, const std::vector<ArgumentText>& arguments);

/// Adds function(keywords) to a module under `name`.
template <class Function>
void define(nb::module_& module, const char* name, Function function, std::vector<ArgumentText> arguments,
            std::size_t positional, const char* result, const char* text) {
  const auto spec = std::make_shared<const CallSpec>(CallSpec{name, std::move(arguments), positional});
  const std::string signature = signature_of(*spec, result), help = docstring_of(text, spec->arguments);
  module.def(
      name,
      [function, spec](const nb::args& given, const nb::kwargs& named) {
        return counting_written(Keywords(*spec, given, named), function);
      },
      nb::sig(signature.c_str()), help.c_str());
}

/// Adds function(self, keywords) to a class as the method `name`. Error messages call the method `title`. For
/// "__init__", `self` points to uninitialized memory, in which the function constructs the object.
template <class Self, class Class, class Function>
void define_method(Class& bound, const char* name, const char* title, Function function,
                   std::vector<ArgumentText> arguments, std::size_t positional, const char* result, const char* text) {
  const auto spec = std::make_shared<const CallSpec>(CallSpec{title, std::move(arguments), positional});
  std::string signature = signature_of(*spec, result, "self");
  signature.replace(signature.find(title), std::string(title).size(), name);
  const std::string help = docstring_of(text, spec->arguments);
  bound.def(
      name,
      [function, spec](Self self, const nb::args& given, const nb::kwargs& named) {
        return counting_written(Keywords(*spec, given, named),
                                [&](const Keywords& keywords) { return function(self, keywords); });
      },
      nb::sig(signature.c_str()), help.c_str());
}

/// Wraps a C++ function as a function of Keywords. Calls must pass every argument, by position or by name.
template <class Result, class... Arguments>
auto as_keyword_function(Result (*function)(Arguments...), std::vector<const char*> names) {
  return [function, names = std::move(names)](const Keywords& keywords) -> Result {
    [[maybe_unused]] std::size_t next = 0;
    // A braced list evaluates its elements from left to right, so the names match the arguments.
    const std::tuple<std::remove_cvref_t<Arguments>...> taken{
        keywords.require<std::remove_cvref_t<Arguments>>(names[next++])...};
    return std::apply(function, taken);
  };
}

}  // namespace headgate::python
