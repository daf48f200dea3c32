// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "core/targets.hpp"

namespace headgate::layers {

/// Index in Highway's dispatch tables of the target that the attention kernels run on too (headgate::active_target).
std::size_t target_index();

}  // namespace headgate::layers

/// Defines the table of a per-target function template `name<T>`; HEADGATE_LAYER_DISPATCH(name, T) is its entry for the
/// active target.
// NOLINTBEGIN(bugprone-macro-parentheses): the argument is a name
#define HEADGATE_LAYER_EXPORT(name)                                                                            \
  template <typename T>                                                                                        \
  constexpr decltype(&HWY_STATIC_DISPATCH(name<T>)) name##Table[] = {nullptr, HWY_CHOOSE_TARGET_LIST(name<T>), \
                                                                     HWY_CHOOSE_FALLBACK(name<T>)}
#define HEADGATE_LAYER_DISPATCH(name, T) (name##Table<T>[::headgate::layers::target_index()])
// NOLINTEND(bugprone-macro-parentheses)
