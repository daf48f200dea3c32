// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace headgate::io {

/// Name of the file in a checkpoint directory that holds the state of a training run.
inline constexpr const char* kRunState = "trainer_state.json";

/// Returns the text of the file kRunState in `directory`. Returns an empty string if no training run of Headgate wrote
/// one. Ignores the file of the same name that the Trainer of transformers writes. Throws FileError if the file is
/// empty.
std::string read_run_state(const std::string& directory);

}  // namespace headgate::io
