// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "models/train/thread_limit.hpp"
#include "tool/cli/command_line.hpp"

namespace headgate::cli {

/// Declares the option --threads, with the short name -t.
template <typename Int>
Option declare_threads(VerbOptions& verb, Int& to, const std::string& help) {
  return verb.value("-t,--threads", to, "N", help).checked(train::thread_complaint);
}

}  // namespace headgate::cli
