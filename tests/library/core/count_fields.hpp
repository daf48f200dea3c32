// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>

namespace headgate::testing {

/// Converts to a value of any type, in unevaluated expressions.
struct AnyValue {
  std::size_t index;
  template <typename T>
  operator T() const;  // NOLINT(google-explicit-constructor): initialises a field of any type
};

template <class Aggregate, std::size_t... kIndex>
constexpr bool takes_values(std::index_sequence<kIndex...>) {
  return requires { Aggregate{AnyValue{kIndex}...}; };
}

/// Counts the fields of a struct without constructors: the largest number of values that can initialise it.
template <class Aggregate, std::size_t kCount = 0>
constexpr std::size_t count_fields() {
  if constexpr (takes_values<Aggregate>(std::make_index_sequence<kCount + 1>())) {
    return count_fields<Aggregate, kCount + 1>();
  } else {
    return kCount;
  }
}

}  // namespace headgate::testing
