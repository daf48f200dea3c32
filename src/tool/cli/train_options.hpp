// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/train/start.hpp"
#include "tool/cli/command_line.hpp"

namespace headgate::cli {

/// Holds the command line of `headgate train`.
struct TrainOptions {
  train::RunRequest run;
  bool resume = false;
  std::optional<std::int64_t> log_every;
  bool json = false;
};

/// Declares an option for each row of kConfigKeys and kSettings that has one, and the options without a row.
void declare_train_options(VerbOptions& verb, TrainOptions& options);

/// Declares --include, which belongs to --data, in a verb.
Option declare_include(VerbOptions& verb, std::vector<std::string>& patterns);

}  // namespace headgate::cli
