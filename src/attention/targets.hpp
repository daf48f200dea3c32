// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "core/targets.hpp"

namespace headgate {

/// Index of the active target in Highway's dispatch tables. Throws Error if HEADGATE_ISA cannot be honoured.
std::size_t active_target_index();

}  // namespace headgate

/// Calls the per-target function `name` (exported with HWY_EXPORT) for the active target. The choice is this library's
/// own, so that a program's other users of Highway keep theirs.
#define HEADGATE_DISPATCH(name) (HWY_DISPATCH_TABLE(name)[::headgate::active_target_index()])
