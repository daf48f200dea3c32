// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tool/bench/cases.hpp"

namespace headgate::bench {

/// Returns the cases of whole training steps, in f32 and in bf16.
/// The models are decoders of about 1M, 10M and 50M parameters, with an elementwise sigmoid gate on the attention
/// output. One model is also compared with a model of equal size without a gate.
std::vector<BenchGroup> training_groups();

}  // namespace headgate::bench
