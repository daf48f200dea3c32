// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace headgate::models {

/// Where config.json of "headgate" says that transformers finds the model's code: beside it.
inline constexpr std::string_view kModelingModule = "modeling_headgate";
inline constexpr const char* kModelingFile = "modeling_headgate.py";

/// python/transformers/modeling_headgate.py of the source tree, with the layer that it imports in place of the import.
std::string_view modeling_code();

}  // namespace headgate::models
