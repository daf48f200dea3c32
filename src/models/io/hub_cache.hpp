// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

// Finds models that Hugging Face programs have downloaded from the Hub. Does not use the network. In the cache of
// huggingface_hub, each model has a directory models--OWNER--NAME. In this directory, the file refs/REVISION contains
// the name of a directory in snapshots/.

namespace headgate::io {

/// Name of a model on the Hub: OWNER/NAME, or only NAME for some old models. It may end with @REVISION, where REVISION
/// is a branch, a tag or a commit.
struct HubName {
  std::string model;
  std::string revision;  ///< "main" if the name has no @REVISION
};

/// Parses the name of a model. Returns nullopt for a text that the Hub would not accept as a name.
std::optional<HubName> parse_hub_name(std::string_view text);

/// Returns the directory of the Hub's cache. Follows the first of these environment variables that is set and not
/// empty, as huggingface_hub does: HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME, XDG_CACHE_HOME, HOME.
std::string hub_cache();

/// Returns the directory of a snapshot. `model` is the directory models--OWNER--NAME. Returns the first of these that
/// exists:
/// - the snapshot that the file refs/REVISION names
/// - the snapshot named REVISION, for a revision that is a commit
/// - the only snapshot, for the revision "main"
///
/// Throws FileError if none exists, or if the snapshot that refs/REVISION names does not exist.
std::string snapshot_of(const std::string& model, const std::string& revision);

/// Returns the snapshot directory of a model in the cache, or nullopt if the cache does not have the model. If the
/// snapshot has a GGUF model, but neither config.json nor tokenizer.json, returns the GGUF file or its first part.
/// Throws FileError in these cases:
/// - snapshot_of() throws.
/// - A link in the snapshot leads to nothing.
/// - The snapshot has several GGUF models.
std::optional<std::string> cached_model(const HubName& name);

}  // namespace headgate::io
