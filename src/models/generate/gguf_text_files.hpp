// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "models/families/model_file.hpp"

namespace headgate::generate {

/// Holds the files of a Hugging Face directory that contain the tokenizer and generation settings of a GGUF file.
struct GgufTextFiles {
  std::vector<models::TextFile> files;
  std::string no_tokenizer;  ///< reason why tokenizer.json and tokenizer_config.json are missing; empty if they exist
};

/// Converts the tokenizer and generation settings of a GGUF file, which was opened as `model` from `path`. Throws
/// io::FileError as read_generation_files() does. The result has these files:
/// - tokenizer.json
/// - tokenizer_config.json, with special tokens, maximum length and chat template
/// - generation_config.json, with the ids that begin, end and pad a text
GgufTextFiles gguf_text_files(const std::string& path, const models::ModelFile& model);

}  // namespace headgate::generate
