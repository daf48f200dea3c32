// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

// Finds models that the Hugging Face Hub's own programs have downloaded, without a network, where huggingface_hub
// keeps them: models--OWNER--NAME/refs/REVISION names a directory in snapshots/.

namespace headgate::io {

/// A model on the Hub: OWNER/NAME, or NAME of its first models, and perhaps @REVISION: a branch, a tag or a commit.
struct HubName {
  std::string model;
  std::string revision;  ///< "main" if none was given
};

/// Returns nothing for a text that the Hub refuses as a name.
std::optional<HubName> parse_hub_name(std::string_view text);

/// Returns the directory of the Hub's cache by HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME, as huggingface_hub does;
/// an empty variable counts as unset.
std::string hub_cache();

/// Returns the directory of a snapshot in `model`, a directory models--OWNER--NAME: the one that refs/REVISION names,
/// the one of this commit, or for "main" the only one. Throws FileError if there is none, or if refs/REVISION is not
/// the name of one.
std::string snapshot_of(const std::string& model, const std::string& revision);

/// Returns the snapshot of a model in the cache or, if it holds no config.json and no tokenizer.json but one GGUF file,
/// that file; nothing if the cache does not have the model. Throws FileError as snapshot_of does, for a link
/// of the snapshot that leads nowhere, and if there are several GGUF files.
std::optional<std::string> cached_model(const HubName& name);

}  // namespace headgate::io
