// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace headgate::demo {

/// Returns whether the files of all worked problems exist; does not read them.
bool has_worked_problems(const std::filesystem::path& directory);

/// Reads the worked problems of `directory`. Throws io::FileError and Error for problems that cannot be read.
void check_worked_problems(const std::string& directory);

/// Solves the four worked problems of `directory`, prints them, and compares the oracle's steps and the kernels' f32
/// output with the published figures. Returns false if one differs. Throws io::FileError and Error for problems that
/// cannot be read or solved.
bool show_worked_problems(const std::string& directory);

}  // namespace headgate::demo
