// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>

#include "library/core/check.hpp"
#include "library/core/format.hpp"

namespace headgate {

enum class Bound { included, excluded };

/// The permitted values of a field. This primary template serves types other than numbers and permits all values.
template <typename T>
struct Range {};

/// A range of numbers. By default the range includes both bounds. It never includes NaN or infinities.
template <typename T>
requires std::is_arithmetic_v<T>
struct Range<T> {
  T least = std::numeric_limits<T>::lowest();
  T most = std::numeric_limits<T>::max();
  Bound at_least = Bound::included;
  Bound at_most = Bound::included;

  constexpr bool has(T value) const {
    return (at_least == Bound::included ? value >= least : value > least) &&
           (at_most == Bound::included ? value <= most : value < most);
  }

  /// Describes the range: "from 1 to 512", "from 0 to below 1", "a finite number above 0".
  std::string text() const {
    const char* above = at_least == Bound::included ? "from " : "above ";
    if (most == std::numeric_limits<T>::max()) {
      if (least == std::numeric_limits<T>::lowest()) return "a finite number";
      return formatted("a finite number {}{}{}", above, least, at_least == Bound::included ? " on" : "");
    }
    return formatted("{}{} to {}{}", above, least, at_most == Bound::included ? "" : "below ", most);
  }
};

/// Throws Error, "NAME is VALUE but must be RANGE", if the value is outside the range.
template <typename T>
void require_in(const Range<T>& range, std::string_view name, const T& value) {
  if constexpr (std::is_arithmetic_v<T>) {
    require(range.has(value), "{} is {} but must be {}", name, value, range.text());
  }
}

}  // namespace headgate
