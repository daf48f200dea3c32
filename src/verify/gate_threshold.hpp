// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headgate/attention.hpp"

namespace headgate::verify {

/// Returns a gate_threshold that closes about the fraction `share` of the rows; kernels skip closed rows.
/// `gate` holds the logits, (B,Hq,T,1|Dv). Rows that share memory (stride 0) count separately.
/// The threshold keeps a distance from all gate values. Rounding errors in kernels thus do not change which rows close.
double threshold_that_closes(double share, const ConstTensorView& gate, GateFn fn);

}  // namespace headgate::verify
