// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace headgate::io {

/// Name of the file that holds the state of a training run, in the directory of a checkpoint.
inline constexpr const char* kRunState = "trainer_state.json";

/// Returns the text of kRunState in `directory`; empty if a training run of Headgate wrote none there. The Trainer of
/// transformers writes another file of this name, which is ignored. Throws FileError for an empty file.
std::string read_run_state(const std::string& directory);

}  // namespace headgate::io
