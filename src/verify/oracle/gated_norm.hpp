// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "headgate/gated_norm.hpp"

// Reference for gated_norm_forward and gated_norm_backward, in f64 and with plain loops. Arguments must be valid; they
// are not checked. Accepts any dtype and any strides. Results are contiguous.

namespace headgate::reference {

/// Output of the forward pass. `magnitude` bounds the effect of rounding on each element, as in Forward (oracle.hpp).
struct GatedNormForward {
  std::vector<double> y;  // (B,H,T,D)
  std::vector<double> magnitude;
};

struct GatedNormGradientArrays {
  std::vector<double> dx;       // (B,H,T,D)
  std::vector<double> dweight;  // same shape as weight; empty if weight is absent
  std::vector<double> dgate;    // (B,H,T,D); empty without a gate
};

struct GatedNormBackward : GatedNormGradientArrays {
  GatedNormGradientArrays magnitude;
};

GatedNormForward gated_norm(const GatedNormInputs& inputs, const GatedNormOptions& options);

/// Returns the gradients of Σ dy∘y.
GatedNormBackward gated_norm_backward(const GatedNormInputs& inputs, const ConstTensorView& dy,
                                      const GatedNormOptions& options);

}  // namespace headgate::reference
