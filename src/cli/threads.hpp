// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace headgate::cli {

/// Why a run cannot have so many threads, or "": they are from 1 to max_threads().
std::string thread_complaint(const std::string& number);

/// Declares --threads in a verb.
template <typename Int>
CLI::Option* declare_threads(CLI::App& app, Int& to, const std::string& help) {
  return app.add_option("--threads", to, help)->option_text("N")->check(CLI::Validator(thread_complaint, ""));
}

}  // namespace headgate::cli
