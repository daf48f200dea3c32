// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

// Lists the parsers of files. An entry returns when it read the bytes, or refused them with the parser's own error on
// one printable line that names the file. Anything else ends the process.

namespace headgate::fuzz {

struct Target {
  const char* name;
  void (*run)(const std::string& bytes);
  std::vector<std::string> (*seeds)();  ///< whole files to start from
  /// Pieces of the format that mutations insert.
  std::vector<std::string> words;
};

/// npy, safetensors, gguf, gguf_model, model, config, trainer_state, worked_problem, token_file, chat_template,
/// tokenizer, gguf_vocabulary.
const std::vector<Target>& targets();

}  // namespace headgate::fuzz
