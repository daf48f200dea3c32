// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tool/reports/xray/report.hpp"

namespace headgate::xray {

/// Summarises the attention sinks and massive activations of a model in a few sentences.
/// Gives the layers and the share of heads with sinks, the attention to the first token, and the largest activation.
std::string verdict(const ModelXray& model);

}  // namespace headgate::xray
