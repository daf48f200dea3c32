// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <new>

#include "headgate/error.hpp"
#include "headgate/types.h"

namespace headgate::capi {

/// Returns the error text of the calling thread.
const char* last_error() noexcept;
void clear_last_error() noexcept;

/// Sets the error text to "function: message". Messages from C++ already begin with the function's name, without
/// "headgate_". The error text does not repeat this name.
void set_last_error(const char* function, const char* message) noexcept;

/// Runs `call`, and returns a status. Converts an exception to a status and an error text.
template <typename Call>
headgate_status guarded(const char* function, Call&& call) noexcept {
  try {
    call();
    clear_last_error();
    return HEADGATE_OK;
  } catch (const Error& error) {
    set_last_error(function, error.what());
    return HEADGATE_INVALID_ARGUMENT;
  } catch (const std::bad_alloc&) {
    set_last_error(function, "out of memory");
    return HEADGATE_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    set_last_error(function, error.what());
  } catch (...) {
    set_last_error(function, "unknown failure");
  }
  return HEADGATE_INTERNAL_ERROR;
}

}  // namespace headgate::capi
