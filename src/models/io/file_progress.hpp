// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace headgate::io {

/// Callback that receives the fraction of a file that has been read or written. May be empty.
using FileProgress = std::function<void(double fraction)>;

}  // namespace headgate::io
