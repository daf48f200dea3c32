// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

// Finds models that programs of the Hugging Face Hub have downloaded. Does not use the network. In the cache of
// huggingface_hub, a model has the directory models--OWNER--NAME. The file refs/REVISION in this directory contains the
// name of a directory in snapshots/.

namespace headgate::io {

/// Name of a model on the Hub: OWNER/NAME, or only NAME for some old models. An optional @REVISION is a branch, a tag
/// or a commit.
struct HubName {
  std::string model;
  std::string revision;  ///< "main" if none was given
};

/// Parses the name of a model. Returns nullopt for a text that the Hub refuses as a name.
std::optional<HubName> parse_hub_name(std::string_view text);

/// Returns the directory of the Hub's cache. As in huggingface_hub, these environment variables determine it, the first
/// one first: HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME, XDG_CACHE_HOME, HOME. An empty variable counts as unset.
std::string hub_cache();

/// Returns the directory of a snapshot in the cached model `model`, the path of a directory models--OWNER--NAME.
/// Chooses the first of these that exists:
/// - the snapshot that refs/REVISION names
/// - the snapshot named REVISION, a commit
/// - for the revision "main", the only snapshot
///
/// Throws FileError if there is none, or if the snapshot that refs/REVISION names does not exist.
std::string snapshot_of(const std::string& model, const std::string& revision);

/// Returns the snapshot of a model in the cache, or nullopt if the cache does not have the model. If the snapshot has
/// neither config.json nor tokenizer.json but a GGUF model, returns the model's file or its first part. Throws
/// FileError in the cases of snapshot_of(), if a link in the snapshot dangles, and if it has several GGUF models.
std::optional<std::string> cached_model(const HubName& name);

}  // namespace headgate::io
