// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace headgate::train {

/// Returns the reason why `number` is not a valid number of threads, or an empty string if it is valid. Valid numbers
/// are 1 to max_threads().
std::string thread_complaint(const std::string& number);

}  // namespace headgate::train
