// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "headgate/attention.hpp"
#include "headgate/runtime.hpp"
#include "headgate/types.h"
#include "library/capi/sized.hpp"
#include "library/capi/tensors.hpp"
#include "library/core/check.hpp"
#include "library/core/format.hpp"
#include "library/core/option_rows.hpp"
#include "library/core/rows.hpp"
#include "library/core/tensor_rows.hpp"

// Converts the C structs of an operation to C++ structs. The tables of the operation list the structs' members.

namespace headgate::capi {

template <typename Enum>
constexpr bool same(std::int32_t c, Enum cpp) {
  return c == static_cast<std::int32_t>(cpp);
}

/// Returns find(name), the value of an option that C programs select by name. Returns the default `other` if the name
/// is null or empty. If find() fails, throws Error with the option's name and the valid names().
template <class Find, class Names, typename Value>
Value find_named(const char* option, const char* name, const Find& find, const Names& names, const Value& other) {
  if (name == nullptr || *name == '\0') return other;
  try {
    return find(name);
  } catch (const Error&) {
    throw Error(formatted("options.{} is '{}' but must be one of {}", option, name, comma_separated(names())));
  }
}

/// Converts `c`, the value of an option in C. `other` is the option's default in C++. Does not check enumerators: the
/// operation does.
template <typename Value, typename C>
Value to_option(C c, [[maybe_unused]] const Value& other) {
  if constexpr (std::is_same_v<Value, GateFn>) {
    // 0 means the default in C, but GateFn::none in C++. Other gate functions have the same number in both languages
    // (core/gate_functions.hpp).
    if (c == HEADGATE_GATE_FN_DEFAULT) return other;
    return c == HEADGATE_GATE_FN_NONE ? GateFn::none : static_cast<GateFn>(c);
  } else {
    return static_cast<Value>(c);
  }
}
template <>
inline std::int64_t to_option<std::int64_t>(const char* target, const std::int64_t& /*other*/) {
  return find_named("target", target, find_target, supported_targets, std::int64_t{0});
}
template <>
inline const Backend* to_option<const Backend*>(const char* backend, const Backend* const& /*other*/) {
  const auto find = [](const char* name) { return &find_backend(name); };
  return find_named("backend", backend, find, supported_backends, static_cast<const Backend*>(nullptr));
}

/// Checks the has_ member of an option in C. Throws Error if the member is neither 0 nor 1, or if it is 0 while the
/// option's value is not 0.
template <class Row, class C>
void check_given(const Row& row, const C& c) {
  const std::int32_t given = c.*row.in_c.given;
  require(given == 0 || given == 1, "options.{} is {} but must be 0 or 1", row.in_c.given_name, given);
  require(given == 1 || c.*row.c_member == 0, "options.{} is {} but {} is 0", row.text.name, c.*row.c_member,
          row.in_c.given_name);
}

template <class Struct, typename Member>
std::size_t offset_of(Member Struct::*member) {
  static const Struct object{};
  return static_cast<std::size_t>(reinterpret_cast<const std::byte*>(&(object.*member)) -
                                  reinterpret_cast<const std::byte*>(&object));
}

/// Returns the sizes that the C struct of options had in older versions.
template <const auto& kRows>
const std::vector<std::size_t>& older_sizes_of_options() {
  static const std::vector<std::size_t> sizes = [] {
    std::vector<std::size_t> found;
    for_each_row(kRows, [&found](const auto& row) {
      if (row.in_c.older_end_here) found.push_back(offset_of(row.c_member));
    });
    std::sort(found.begin(), found.end());
    return found;
  }();
  return sizes;
}

/// Converts a C struct of options to the C++ struct that the table `kRows` describes. Returns the defaults if `given`
/// is null.
template <const auto& kRows, class Options, class C>
Options read_options(const C* given) {
  Options options;
  if (given == nullptr) return options;
  const C c = read_sized(given, "options", older_sizes_of_options<kRows>());
  for_each_row(kRows, [&](const auto& row) {
    using Value = std::remove_reference_t<decltype(row.of(options))>;
    if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(c.*row.c_member)>>) {
      if (row.in_c.given != nullptr) check_given(row, c);
      const bool is_given = row.in_c.given == nullptr ? c.*row.c_member != 0 : c.*row.in_c.given != 0;
      if (!is_given) return;
    }
    row.of(options) = to_option<Value>(c.*row.c_member, row.of(options));
  });
  if constexpr (requires { c.reserved; }) {
    require(c.reserved == 0, "options.reserved is {} but must be 0", c.reserved);
  }
  return options;
}

/// Returns the sizes that the C struct of tensors had in older versions.
template <const auto& kRows>
const std::vector<std::size_t>& older_sizes() {
  static const std::vector<std::size_t> sizes = [] {
    std::vector<std::size_t> found;
    if constexpr (requires { kRows[0].traits; }) {
      for (const auto& row : kRows) {
        if (row.traits.older_c_ends_here) found.push_back(offset_of(row.c_member));
      }
    }
    return found;
  }();
  return sizes;
}

/// Converts a C struct of tensors to the C++ struct that the table `kRows` describes. `name` is the argument's name for
/// messages.
template <const auto& kRows, class C>
auto to_views(const C* given, const char* name) {
  const C c = read_sized(given, name, older_sizes<kRows>());
  typename std::remove_cvref_t<decltype(kRows[0])>::Struct views;
  for (const auto& row : kRows) views.*row.member = to_view(c.*row.c_member, row.name);
  return views;
}

}  // namespace headgate::capi
