// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <string>
#include <vector>

#include "tool/attend/job.hpp"

namespace headgate::attend {
namespace {

std::string statistic_path(const Files& files, const StatisticsOutput& output) {
  return (std::filesystem::path(files.statistics.directory) / (std::string(output.name) + ".npy")).string();
}

}  // namespace

void check_outputs(const Files& files) {
  std::vector<io::NamedPath> outputs = output_paths(files);
  for (const StatisticsOutput& output : kStatisticsOutputs) {
    const bool written = !files.statistics.directory.empty() && files.statistics.wants(output);
    if (written) outputs.push_back({"--stats", statistic_path(files, output)});
  }
  check_paths(outputs, input_paths(files), {{"--grad-dir", files.grad_dir}, {"--stats", files.statistics.directory}});
}

std::vector<io::NpyWriter::Entry> write_outputs(const Files& files, const Results& results) {
  io::NpyWriter writer;
  if (!files.statistics.directory.empty()) {
    writer.make_directory(files.statistics.directory);
    for (std::size_t n = 0; n < kStatisticsOutputs.size(); ++n) {
      add_file(writer, statistic_path(files, kStatisticsOutputs[n]), results.statistics[n]);
    }
  }
  add_results(writer, files, results);
  writer.commit();
  return writer.entries();
}

}  // namespace headgate::attend
