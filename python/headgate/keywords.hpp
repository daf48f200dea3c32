// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "python/headgate/arrays.hpp"

// The keyword arguments of a call, taken by name from the rows that describe them.

namespace headgate::python {

namespace nb = nanobind;

class Keywords {
 public:
  Keywords(const char* function, const nb::kwargs& given) : function_(function), given_(given) {}

  const char* function() const { return function_; }

  /// The argument `name`; None where it was not given.
  nb::object take(const char* name) {
    taken_.insert(name);
    return given_.contains(name) ? nb::object(given_[name]) : nb::none();
  }

  /// The same as a T; `fallback` where it is absent or None. Throws TypeError, and Error where it requires a gradient.
  template <typename T>
  T take(const char* name, const char* wanted, T fallback) {
    const nb::object object = take(name);
    if (object.is_none()) return fallback;
    refuse_recorded(function_, name, object);
    T value{};
    if (!nb::try_cast(object, value, true)) refuse(name, object, wanted);
    return value;
  }

  /// Throws TypeError where an argument was given that nobody took.
  void finish() const {
    for (const auto& [key, value] : given_) {
      const std::string name = nb::cast<std::string>(key);
      if (taken_.contains(name)) continue;
      throw nb::type_error(fmt::format("{}: there is no argument '{}'", function_, name).c_str());
    }
  }

  [[noreturn]] void refuse(const char* name, nb::handle object, const char* wanted) const {
    const std::string text = nb::cast<std::string>(nb::repr(object));
    throw nb::type_error(fmt::format("{}: {} is {} but must be {}", function_, name, text, wanted).c_str());
  }

 private:
  const char* function_;
  nb::kwargs given_;
  std::set<std::string, std::less<>> taken_;
};

/// What a signature and a docstring say of an argument.
struct ArgumentText {
  std::string name, type, default_text, help;
};

/// "def NAME(q: Array, k: Array, …, *, bias: Array | None = None, …) -> RESULT". Arguments without a default stand
/// first; `positional` counts those that may be given by position.
std::string signature_of(const char* name, const std::vector<ArgumentText>& arguments, std::size_t positional,
                         const char* result);

/// "    name: help" for each.
std::string arguments_help(const std::vector<ArgumentText>& arguments);

std::vector<ArgumentText> joined(std::vector<ArgumentText> texts, const std::vector<ArgumentText>& more);

/// Adds `function`, whose parameters are the `positional` first arguments, named by `names`, and the keywords.
template <class Function, class... Names>
void define(nb::module_& module, const char* name, Function function, const std::vector<ArgumentText>& arguments,
            std::size_t positional, const char* result, const char* text, const Names&... names) {
  const std::string signature = signature_of(name, arguments, positional, result);
  const std::string help = fmt::format("{}\n\nArguments:\n{}", text, arguments_help(arguments));
  module.def(name, function, names..., nb::arg("keywords"), nb::sig(signature.c_str()), help.c_str());
}

}  // namespace headgate::python
