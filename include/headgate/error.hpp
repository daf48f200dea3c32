// SPDX-License-Identifier: Apache-2.0
#ifndef HEADGATE_ERROR_HPP_
#define HEADGATE_ERROR_HPP_

#include <stdexcept>

#include "headgate/cxx20.hpp"
#include "headgate/export.h"

namespace headgate {

/// A bad argument. `what()` is one line that names the function, the argument and the values that disagree.
/// Thrown before any output is written.
class HEADGATE_API Error : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// Thrown by a call that its ExecutionContext cancels. The outputs of the call are then unspecified.
class HEADGATE_API Cancelled : public std::runtime_error {
 public:
  /// The message is "cancelled".
  Cancelled() : std::runtime_error("cancelled") {}
};

}  // namespace headgate

#endif  // HEADGATE_ERROR_HPP_
