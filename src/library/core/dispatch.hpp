// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "headgate/tensor.hpp"
#include "library/core/targets.hpp"
// Highway must be included after targets.hpp, which selects the targets to compile.
#include "hwy/targets.h"

// Selects the code for a call's vector target. Highway's own selection is global: using it would affect other users of
// Highway in the program.

namespace headgate {

/// Returns the index of a target in Highway's function tables. `bit` is the target's value of HWY_TARGET.
inline std::size_t table_index(std::int64_t bit) {
  hwy::ChosenTarget chosen;
  chosen.Update(bit);
  return chosen.GetIndex();
}

}  // namespace headgate

// Macros for files that foreach_target.h includes once per target. Use them after the namespace of per-target code.
//   HEADGATE_TARGET_TABLE(name)          defines the function table of the per-target template name<T>
//   HEADGATE_FOR_TARGET(name, T, bit)    gives the pointer to name<T> for the target `bit`
//   HEADGATE_FOR_DTYPE(name, dtype, bit) gives the pointer to name<double> for f64 tensors, else to name<float>
// NOLINTBEGIN(bugprone-macro-parentheses): the argument is a name
#define HEADGATE_TARGET_TABLE(name)                                                                            \
  template <typename T>                                                                                        \
  constexpr decltype(&HWY_STATIC_DISPATCH(name<T>)) name##Table[] = {nullptr, HWY_CHOOSE_TARGET_LIST(name<T>), \
                                                                     HWY_CHOOSE_FALLBACK(name<T>)}
#define HEADGATE_FOR_TARGET(name, T, bit) (name##Table<T>[::headgate::table_index(bit)])
#define HEADGATE_FOR_DTYPE(name, dtype, bit) \
  ((dtype) == ::headgate::DType::f64 ? HEADGATE_FOR_TARGET(name, double, bit) : HEADGATE_FOR_TARGET(name, float, bit))
// NOLINTEND(bugprone-macro-parentheses)
