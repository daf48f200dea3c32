// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace headgate::io {

/// Is called while a file is read or written, with the fraction that is done. May be empty.
using FileProgress = std::function<void(double fraction)>;

}  // namespace headgate::io
