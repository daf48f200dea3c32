// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace headgate::io {

/// Callback for reading or writing a file; receives the fraction that is done. May be empty.
using FileProgress = std::function<void(double fraction)>;

}  // namespace headgate::io
