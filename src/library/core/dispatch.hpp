// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "headgate/tensor.hpp"
#include "library/core/targets.hpp"
// After targets.hpp, which says which of Highway's targets are compiled.
#include "hwy/targets.h"

// How a call reaches the code of its vector target. The choice is this library's own, so that a program's other users
// of Highway keep theirs.

namespace headgate {

/// Index in Highway's tables of the code for the target with this HWY_TARGET bit.
inline std::size_t table_index(std::int64_t bit) {
  hwy::ChosenTarget chosen;
  chosen.Update(bit);
  return chosen.GetIndex();
}

}  // namespace headgate

// In a file that foreach_target.h reads once per target, after its namespace of per-target code:
//   HEADGATE_TARGET_TABLE(name)       defines the table of `name`, a per-target function template name<T>
//   HEADGATE_FOR_TARGET(name, T, bit) is the pointer to name<T> for the target `bit`
//   HEADGATE_FOR_DTYPE(name, dtype, bit) is the pointer to name<double> of f64 tensors, to name<float> of all others
// NOLINTBEGIN(bugprone-macro-parentheses): the argument is a name
#define HEADGATE_TARGET_TABLE(name)                                                                            \
  template <typename T>                                                                                        \
  constexpr decltype(&HWY_STATIC_DISPATCH(name<T>)) name##Table[] = {nullptr, HWY_CHOOSE_TARGET_LIST(name<T>), \
                                                                     HWY_CHOOSE_FALLBACK(name<T>)}
#define HEADGATE_FOR_TARGET(name, T, bit) (name##Table<T>[::headgate::table_index(bit)])
#define HEADGATE_FOR_DTYPE(name, dtype, bit) \
  ((dtype) == ::headgate::DType::f64 ? HEADGATE_FOR_TARGET(name, double, bit) : HEADGATE_FOR_TARGET(name, float, bit))
// NOLINTEND(bugprone-macro-parentheses)
