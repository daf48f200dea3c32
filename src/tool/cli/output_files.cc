// SPDX-License-Identifier: Apache-2.0
#include "tool/cli/output_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <system_error>

#include "library/core/check.hpp"
#include "models/data/corpus.hpp"
#include "models/io/directory_entries.hpp"
#include "models/io/staged_file.hpp"
#include "models/io/units.hpp"
#include "models/train/run_directory.hpp"
#include "tool/console/console.hpp"
#include "tool/console/terminal_text.hpp"

namespace headgate::cli {

void InputFiles::add_file(const std::string& option, const std::string& path) {
  paths_.push_back({option, path == "-" ? "/dev/stdin" : path});
}

void InputFiles::add_models(const std::string& argument, const std::vector<std::string>& models) {
  for (const std::string& model : models) {
    for (const std::string& file : train::files_of_model_or_run(model)) add_file(argument, file);
  }
}

void InputFiles::add_text(const std::string& option, const std::vector<std::string>& paths,
                          const train::FileChoice& choice) {
  for (const std::string& file : train::text_files(paths, choice)) add_file(option, file);
}

void check_overwrites(const std::vector<io::NamedPath>& outputs,
                      const std::function<void(InputFiles& inputs)>& list_inputs) {
  const auto given = [](const io::NamedPath& output) { return !output.path.empty(); };
  if (std::none_of(outputs.begin(), outputs.end(), given)) return;
  InputFiles inputs;
  list_inputs(inputs);
  io::check_overwrites(outputs, inputs.paths());
}

void check_outputs(const std::vector<io::NamedPath>& outputs,
                   const std::function<void(InputFiles& inputs)>& list_inputs) {
  check_overwrites(outputs, list_inputs);
  for (const io::NamedPath& output : outputs) {
    if (!output.path.empty()) io::check_writable(output.path);
  }
}

void check_output_directory(const io::NamedPath& output, const std::function<void(InputFiles& inputs)>& list_inputs) {
  std::vector<io::NamedPath> replaced{output};
  std::error_code ignored;  // a missing or unreadable path counts as a directory without entries
  for (const auto& entry : io::directory_entries(output.path, ignored)) {
    replaced.push_back({output.option, entry.path().string()});
  }
  InputFiles inputs;
  list_inputs(inputs);
  // Calls check_overwrites() once per path, because a call refuses two outputs that are the same file.
  // Two entries of the output directory may be links to one file.
  for (const io::NamedPath& each : replaced) io::check_overwrites({each}, inputs.paths());
  require(!train::is_run_or_checkpoint(output.path), "{} {} is a run or its checkpoint: give another path",
          output.option, output.path);
}

void say_written(const std::string& verb, const std::string& path, const std::string& what) {
  console::note(
      fmt::format("headgate {}: wrote {}{}{}\n", verb, console::terminal_text(path), what.empty() ? "" : ": ", what));
}

void say_left_out(std::size_t bytes) {
  if (bytes > 0) console::note(fmt::format("left out: {} bytes that the vocabulary has no token for\n", bytes));
}

void write_output(const std::string& verb, const std::string& path, std::string_view text) {
  io::write_text(path, text);
  say_written(verb, path, console::bytes_text(static_cast<double>(text.size())));
}

}  // namespace headgate::cli
