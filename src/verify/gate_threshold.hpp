// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headgate/attention.hpp"

namespace headgate::verify {

/// A gate_threshold that closes about `share` of the rows of logits `gate` (B,Hq,T,1|Dv), so far from the gates of all
/// rows that rounding in the kernels decides about none. Every row counts once, also where strides repeat it.
double threshold_that_closes(double share, const ConstTensorView& gate, GateFn fn);

}  // namespace headgate::verify
