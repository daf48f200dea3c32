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

/// Lists the files that a verb reads. Each add_ function takes the option or argument that names its paths.
class InputFiles {
 public:
  /// Adds a file; "-" is standard input.
  void add_file(const std::string& option, const std::string& path);
  /// Adds models and runs, with all files that belong to them.
  void add_models(const std::string& argument, const std::vector<std::string>& models);
  /// Adds files of text, and directories of which `choice` selects files.
  void add_text(const std::string& option, const std::vector<std::string>& paths, const train::FileChoice& choice = {});

  const std::vector<io::NamedPath>& paths() const { return paths_; }

 private:
  std::vector<io::NamedPath> paths_;
};

/// Refuses, before the work begins, outputs that are one file or would overwrite what the verb reads.
/// list_inputs(inputs) is called only if a path is given. Throws Error, and io::FileError for inputs that cannot be
/// listed.
void check_overwrites(const std::vector<io::NamedPath>& outputs,
                      const std::function<void(InputFiles& inputs)>& list_inputs);

/// Does the same as check_overwrites, and also refuses output files that cannot be written.
void check_outputs(const std::vector<io::NamedPath>& outputs,
                   const std::function<void(InputFiles& inputs)>& list_inputs);

/// Refuses an output directory, which would be replaced as a whole, if a file in it is one that the verb reads, or if
/// it is a run or the checkpoint of one.
void check_output_directory(const io::NamedPath& output, const std::function<void(InputFiles& inputs)>& list_inputs);

/// Prints "headgate VERB: wrote PATH: WHAT" on stderr.
void say_written(const std::string& verb, const std::string& path, const std::string& what = "");

/// Prints on stderr how many bytes of a text became no token, if any did.
void say_left_out(std::size_t bytes);

/// Writes a file of text and calls say_written. Throws io::WriteError.
void write_output(const std::string& verb, const std::string& path, std::string_view text);

}  // namespace headgate::cli
