// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "io/file_error.hpp"

namespace headgate::train {

/// metrics.jsonl: one JSON object a line, one line a step. Each line is in the file as soon as it is added.
class MetricsLog {
 public:
  /// Keeps the lines of steps up to `step` that are there, drops what a run wrote after its last checkpoint, and
  /// appends from there. Throws io::FileError.
  MetricsLog(const std::string& path, std::int64_t step);

  void add(const nlohmann::ordered_json& record);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace headgate::train
