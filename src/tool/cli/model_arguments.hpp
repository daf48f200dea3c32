// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace headgate::cli {

/// Throws UsageError if a path given as MODEL is a text file. The message suggests to pass the file with --text.
void refuse_texts(const std::vector<std::string>& models);

/// Throws UsageError unless exactly one of --text and --token-ids is given.
void check_text_options(const std::vector<std::string>& text, const std::string& token_ids);

/// Throws UsageError if --include is given and all paths of `option` are files, because --include selects among the
/// files below a directory.
void check_include(const char* option, const std::vector<std::string>& paths, const std::vector<std::string>& include);

}  // namespace headgate::cli
