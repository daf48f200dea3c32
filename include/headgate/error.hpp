// SPDX-License-Identifier: Apache-2.0
#ifndef HEADGATE_ERROR_HPP_
#define HEADGATE_ERROR_HPP_

#include <stdexcept>

#include "headgate/cxx20.hpp"
#include "headgate/export.h"

namespace headgate {

/// Thrown for an invalid argument, before any output is written. what() is one line that names the function, the
/// argument and the conflicting values.
class HEADGATE_API Error : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// Thrown by a call that is cancelled through its ExecutionContext. The outputs of the call are then unspecified.
class HEADGATE_API Cancelled : public std::runtime_error {
 public:
  /// The message is "cancelled".
  Cancelled() : std::runtime_error("cancelled") {}
};

}  // namespace headgate

#endif  // HEADGATE_ERROR_HPP_
