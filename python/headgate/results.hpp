// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "library/core/check.hpp"
#include "library/core/format.hpp"
#include "python/headgate/arrays.hpp"
#include "python/headgate/keywords.hpp"

// Binds results that consist of several arrays. Each result is a Python class. Its attributes are the rows of the table
// of its arrays, such as kStatisticsOutputs. Attributes without an array are None.

namespace headgate::python {

/// Holds the arrays of a result, one for each row of the result's table. `Struct` is the C++ struct of views of these
/// arrays. It makes the types of two results differ even if their tables have the same number of rows.
template <class Struct, std::size_t kRows>
struct Results {
  std::array<nb::object, kRows> arrays;

  Results() { arrays.fill(nb::none()); }
};

/// Returns the argument `out`, an object of class `Class`. Returns null if the argument is None.
template <class Class>
const Class* take_out(const Keywords& keywords, const char* class_name) {
  const nb::object given = keywords.take("out");
  if (given.is_none()) return nullptr;
  const Class* out = nullptr;
  if (!nb::try_cast(given, out, false)) keywords.refuse("out", given, class_name);
  return out;
}

/// Returns a flag for each array of a result: whether the call computes it. A call computes the arrays that the
/// argument `name` lists and those present in `out`. If there are none of either, returns `defaults`.
template <class Struct, class Rows, class NameOf>
std::vector<bool> chosen_of(const Keywords& keywords, const char* name, const Rows& rows, const NameOf& name_of,
                            const Results<Struct, std::tuple_size_v<Rows>>* out, const std::vector<bool>& defaults) {
  std::vector<bool> chosen(rows.size(), false);
  const nb::object given = keywords.take(name);
  for (std::size_t i = 0; out != nullptr && i < rows.size(); ++i) chosen[i] = !out->arrays[i].is_none();
  if (given.is_none()) return std::find(chosen.begin(), chosen.end(), true) == chosen.end() ? defaults : chosen;
  std::vector<std::string> names;
  if (!nb::try_cast(given, names, true)) keywords.refuse(name, given, "a sequence of names");
  for (const std::string& wanted : names) {
    const auto* row =
        std::find_if(rows.begin(), rows.end(), [&](const auto& candidate) { return wanted == name_of(candidate); });
    if (row == rows.end()) {
      throw Error(
          formatted("{}: {}: '{}' is none of {}", keywords.function(), name, wanted, comma_separated(rows, name_of)));
    }
    chosen[static_cast<std::size_t>(row - rows.begin())] = true;
  }
  return chosen;
}

/// Adds a result class to the module, with an attribute for each row.
template <class Struct, class Rows, class TextOf>
void bind_results(nb::module_& module, const char* name, const Rows& rows, const TextOf& text_of, const char* doc) {
  using Class = Results<Struct, std::tuple_size_v<Rows>>;
  std::vector<ArgumentText> arguments;
  for (const auto& row : rows) {
    const ArgumentText text = text_of(row);
    arguments.push_back({text.name, "Array | None", "None", text.help});
  }
  const std::string help =
      formatted("{}\n\nAttributes, None where there is no array:\n{}", doc, arguments_help(arguments));
  auto bound = nb::class_<Class>(module, name, help.c_str());
  const std::string class_name = name;
  define_method<Class*>(
      bound, "__init__", name,
      [arguments](Class* self, const Keywords& keywords) {
        Class results;
        for (std::size_t i = 0; i < arguments.size(); ++i) results.arrays[i] = keywords.take(arguments[i].name.c_str());
        new (self) Class(std::move(results));
      },
      arguments, 0, "None", "Takes arrays by their names.");
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string getter = formatted("def {}(self, /) -> Array | None", arguments[i].name);
    bound.def_prop_ro(
        arguments[i].name.c_str(), [i](const Class& self) { return self.arrays[i]; }, nb::sig(getter.c_str()),
        arguments[i].help.c_str());
  }
  bound.def("__repr__", [arguments, class_name](const Class& self) {
    std::string text;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (self.arrays[i].is_none()) continue;
      const nb::object& array = self.arrays[i];  // may be any Python object: only calls check its type
      const nb::str of = nb::hasattr(array, "shape") ? nb::str(nb::tuple(array.attr("shape"))) : nb::repr(array.type());
      text += formatted("{}{}: {}", text.empty() ? "" : ", ", arguments[i].name, of.c_str());
    }
    return formatted("{}({})", class_name, text);
  });
}

}  // namespace headgate::python
