// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cli/command_line.hpp"

namespace headgate::cli {

/// Why a run cannot have so many threads, or "": they are from 1 to max_threads().
std::string thread_complaint(const std::string& number);

/// Declares --threads in a verb.
template <typename Int>
Option declare_threads(VerbOptions& verb, Int& to, const std::string& help) {
  return verb.value("--threads", to, "N", help).checked(thread_complaint);
}

}  // namespace headgate::cli
