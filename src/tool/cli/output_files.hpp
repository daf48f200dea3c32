// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "models/data/text_files.hpp"
#include "models/io/output_guard.hpp"

namespace headgate::cli {

/// Collects the paths of the files that a verb reads. Each add_ function also takes the option that the path came from.
class InputFiles {
 public:
  /// Adds one file. The path "-" stands for standard input.
  void add_file(const std::string& option, const std::string& path);
  /// Adds all files of the given models. Each model is a file, a directory or a training run.
  void add_models(const std::string& argument, const std::vector<std::string>& models);
  /// Adds text files. In a directory, adds the files that `choice` selects.
  void add_text(const std::string& option, const std::vector<std::string>& paths, const train::FileChoice& choice = {});

  const std::vector<io::NamedPath>& paths() const { return paths_; }

 private:
  std::vector<io::NamedPath> paths_;
};

/// Throws Error if two outputs are the same file, or if an output would overwrite an input.
/// Call it before the work begins.
/// Without outputs, does not call list_inputs(inputs). Throws io::FileError if the inputs cannot be listed.
void check_overwrites(const std::vector<io::NamedPath>& outputs,
                      const std::function<void(InputFiles& inputs)>& list_inputs);

/// Calls check_overwrites(). Then throws io::WriteError if an output file cannot be written.
void check_outputs(const std::vector<io::NamedPath>& outputs,
                   const std::function<void(InputFiles& inputs)>& list_inputs);

/// Throws Error if
/// - an input lies in the output directory, which writing replaces as a whole, or
/// - the directory is a training run or its checkpoint.
void check_output_directory(const io::NamedPath& output, const std::function<void(InputFiles& inputs)>& list_inputs);

/// Prints "headgate VERB: wrote PATH: WHAT" on stderr.
void say_written(const std::string& verb, const std::string& path, const std::string& what = "");

/// Prints a note on stderr if `bytes` of a text were dropped because the vocabulary has no token for them.
void say_left_out(std::size_t bytes);

/// Writes `text` to a file and calls say_written(). Throws io::WriteError.
void write_output(const std::string& verb, const std::string& path, std::string_view text);

}  // namespace headgate::cli
