// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace headgate::train {

/// Why a run cannot have so many threads, or "": they are from 1 to max_threads().
std::string thread_complaint(const std::string& number);

}  // namespace headgate::train
