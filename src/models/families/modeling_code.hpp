// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace headgate::models {

/// Name of the Python file beside config.json that transformers loads for "headgate" models.
inline constexpr std::string_view kModelingModule = "modeling_headgate";
inline constexpr const char* kModelingFile = "modeling_headgate.py";

/// Returns the content of modeling_headgate.py. It is python/transformers/modeling_headgate.py of the source tree, with
/// the import of the layer replaced by the layer's code.
std::string_view modeling_code();

}  // namespace headgate::models
