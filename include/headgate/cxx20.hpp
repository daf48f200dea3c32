// SPDX-License-Identifier: Apache-2.0
#ifndef HEADGATE_CXX20_HPP_
#define HEADGATE_CXX20_HPP_

/// @file
/// Stops compilation with a clear message if the compiler's language mode is older than C++20. All C++ headers include
/// this file.

#if __cplusplus < 202002L && !(defined(_MSVC_LANG) && _MSVC_LANG >= 202002L)
#error "Headgate needs C++20: compile with -std=c++20, or call the C API, headgate/headgate.h"
#endif

#endif  // HEADGATE_CXX20_HPP_
