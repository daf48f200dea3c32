// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headgate/attention.hpp"

namespace headgate::verify {

/// Returns a gate_threshold that closes about `share` of the rows of the gate logits `gate` (B,Hq,T,1|Dv). Rounding in
/// the kernels cannot change which rows it closes. Every row counts, even if strides repeat its memory.
double threshold_that_closes(double share, const ConstTensorView& gate, GateFn fn);

}  // namespace headgate::verify
