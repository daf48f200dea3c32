// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tool/reports/xray/report.hpp"

namespace headgate::xray {

/// Returns what the figures of a model say about attention sinks and massive activations, in a few sentences: which
/// layers have sinks, how many heads, how much of the attention, and where the largest activation is.
std::string verdict(const ModelXray& model);

}  // namespace headgate::xray
