// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace headgate::support {

/// Returns the number of calls of operator new so far. allocations.cc replaces operator new in programs that link it.
std::size_t allocations();

/// Returns the bytes of the largest allocation by operator new since the previous call of this function.
std::size_t take_largest_allocation();

/// Returns false under clang's thread sanitizer, which replaces operator new itself.
bool allocations_are_counted();

}  // namespace headgate::support
