// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace headgate::demo {

/// Returns whether the files of all worked problems exist; does not read them.
bool has_worked_problems(const std::filesystem::path& directory);

/// Checks that the worked problems in `directory` can be read. Throws io::FileError or Error if one cannot.
void check_worked_problems(const std::string& directory);

/// Solves the four worked problems in `directory` and prints the outputs.
/// Compares each published output with two results: that of a step-by-step solution, and that of the f32 kernels.
/// Returns false if a result differs. Throws io::FileError or Error if a problem cannot be read or solved.
bool show_worked_problems(const std::string& directory);

}  // namespace headgate::demo
