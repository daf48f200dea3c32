// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace headgate::cli {

/// Whether the files of all worked problems are there; not what they hold.
bool has_worked_problems(const std::filesystem::path& directory);

/// Solves the four worked problems of `directory`, prints them, and holds the oracle's steps and the kernels' f32
/// output against the published figures. False if one differs.
bool show_worked_problems(const std::string& directory);

/// A gated attention layer's call at real size, forward and backward: its speed against this machine's limits, and
/// sampled rows against the oracle. False if a row is out of tolerance.
bool show_layer(int threads);

}  // namespace headgate::cli
