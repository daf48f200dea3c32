// SPDX-License-Identifier: Apache-2.0
#include "models/data/run_files.hpp"

#include <fmt/format.h>

#include "models/io/exists.hpp"
#include "models/io/staged_directory.hpp"

namespace headgate::train {
namespace {

bool has(const std::string& directory, const char* name) {
  return io::exists(io::present_directory(directory) + "/" + name);
}

}  // namespace

std::string metrics_path(const std::string& run) { return run + "/metrics.jsonl"; }

std::string token_ids_path(const std::string& run) { return run + "/token_ids.bin"; }

std::string numbered_checkpoint(const std::string& run, int number) {
  return number == 0 ? run + "/checkpoint" : fmt::format("{}/checkpoint.{}", run, number);
}

bool is_checkpoint(const std::string& directory) { return has(directory, kCheckpointConfig); }

bool is_training_checkpoint(const std::string& directory) {
  return is_checkpoint(directory) && has(directory, kCheckpointState);
}

bool is_run_or_checkpoint(const std::string& directory) {
  const std::string checkpoint = numbered_checkpoint(directory, 0);
  return is_training_checkpoint(directory) || is_training_checkpoint(checkpoint) ||
         (io::exists(metrics_path(directory)) && io::exists(io::present_directory(checkpoint)));
}

}  // namespace headgate::train
