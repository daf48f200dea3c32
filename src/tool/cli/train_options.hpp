// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/train/start.hpp"
#include "tool/cli/command_line.hpp"

namespace headgate::cli {

/// The parsed command line of `headgate train`.
struct TrainOptions {
  train::RunRequest run;
  bool resume = false;
  std::optional<std::int64_t> log_every;
  bool json = false;
};

/// Declares all options of `headgate train`.
/// Most options come from the rows of the tables kConfigKeys (the model) and kSettings (the training).
void declare_train_options(VerbOptions& verb, TrainOptions& options);

/// Declares --include, whose patterns select the files to read from directories of text.
Option declare_include(VerbOptions& verb, std::vector<std::string>& patterns);

}  // namespace headgate::cli
