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
  /// Adds all files of the named models. A model is a file, a directory or a training run.
  void add_models(const std::string& argument, const std::vector<std::string>& models);
  /// Adds text files, and for directories the files in them that `choice` selects.
  void add_text(const std::string& option, const std::vector<std::string>& paths, const train::FileChoice& choice = {});

  const std::vector<io::NamedPath>& paths() const { return paths_; }

 private:
  std::vector<io::NamedPath> paths_;
};

/// Throws Error if two outputs are the same file or an output would overwrite an input. Called before the work begins.
/// Calls list_inputs(inputs) only if an output is given, and throws io::FileError if inputs cannot be listed.
void check_overwrites(const std::vector<io::NamedPath>& outputs,
                      const std::function<void(InputFiles& inputs)>& list_inputs);

/// Throws the errors of check_overwrites(), and also refuses output files that cannot be written.
void check_outputs(const std::vector<io::NamedPath>& outputs,
                   const std::function<void(InputFiles& inputs)>& list_inputs);

/// Throws Error if an output directory, which is replaced as a whole, holds an input of the verb. Also throws if the
/// directory is a run or the checkpoint of one.
void check_output_directory(const io::NamedPath& output, const std::function<void(InputFiles& inputs)>& list_inputs);

/// Prints "headgate VERB: wrote PATH: WHAT" on stderr.
void say_written(const std::string& verb, const std::string& path, const std::string& what = "");

/// Reports on stderr how many bytes of a text were left out because no token represents them, if there are any.
void say_left_out(std::size_t bytes);

/// Writes a file of text and calls say_written. Throws io::WriteError.
void write_output(const std::string& verb, const std::string& path, std::string_view text);

}  // namespace headgate::cli
