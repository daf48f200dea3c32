// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "models/families/model_file.hpp"

namespace headgate::generate {

/// Holds the tokenizer and generation settings of a GGUF file as files of a Hugging Face directory.
struct GgufTextFiles {
  std::vector<models::TextFile> files;
  std::string no_tokenizer;  ///< why tokenizer.json and tokenizer_config.json are missing; else empty
};

/// Writes tokenizer.json; tokenizer_config.json with special tokens, the maximum length and the chat template; and
/// generation_config.json with the ids that end a text. `model` is a GGUF file that was opened from `path`. Throws
/// io::FileError as read_generation_files does.
GgufTextFiles gguf_text_files(const std::string& path, const models::ModelFile& model);

}  // namespace headgate::generate
