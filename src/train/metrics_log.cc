// SPDX-License-Identifier: Apache-2.0
#include "train/metrics_log.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "io/staged_file.hpp"

namespace headgate::train {

namespace {

/// The step that a line records, −1 for what is no record.
std::int64_t step_of(const std::string& line) {
  const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!record.is_object() || !record.contains("step") || !record["step"].is_number_integer()) return -1;
  return record["step"].get<std::int64_t>();
}

std::string lines_up_to(const std::string& path, std::int64_t step) {
  std::string kept;
  std::ifstream in(path, std::ios::binary);
  std::int64_t last = 0;
  for (std::string line; std::getline(in, line);) {
    const std::int64_t at = step_of(line);
    if (at <= last || at > step) break;
    kept += line + "\n";
    last = at;
  }
  return kept;
}

}  // namespace

MetricsLog::MetricsLog(const std::string& path, std::int64_t step) : path_(path) {
  const std::string kept = lines_up_to(path, step);
  io::StagedFile start(path);
  start.write(kept.data(), kept.size());
  start.commit();
  file_.reset(std::fopen(path.c_str(), "ab"));
  if (!file_) io::fail(path, "cannot write: {}", std::strerror(errno));
}

void MetricsLog::add(const nlohmann::ordered_json& record) {
  const std::string line = record.dump() + "\n";
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() || std::fflush(file_.get()) != 0) {
    io::fail(path_, "cannot write: {}", std::strerror(errno));
  }
}

}  // namespace headgate::train
