// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "models/model_file.hpp"

namespace headgate::generate {

/// What a GGUF file says of text, as the files of a directory of Hugging Face's.
struct GgufTextFiles {
  std::vector<models::TextFile> files;
  std::string no_tokenizer;  ///< why tokenizer.json and tokenizer_config.json are not among them; else empty
};

/// tokenizer.json; tokenizer_config.json with the tokens that have a role, the model's length and the chat template;
/// generation_config.json with the ids that end a text. `model` is a GGUF file that was opened from `path`. Throws
/// io::FileError as read_generation_files does.
GgufTextFiles gguf_text_files(const std::string& path, const models::ModelFile& model);

}  // namespace headgate::generate
