// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace headgate::support {

/// Calls of operator new so far in a program that links allocations.cc, which replaces it.
std::size_t allocations();

/// False under clang's thread sanitizer, which replaces operator new itself.
bool allocations_are_counted();

}  // namespace headgate::support
