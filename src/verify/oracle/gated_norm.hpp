// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "headgate/gated_norm.hpp"

// The gated norm in f64, forward and backward, by plain loops: the reference for gated_norm_forward and
// gated_norm_backward. Arguments are assumed to be valid; any dtype and any strides. Results are contiguous.

namespace headgate::reference {

/// `magnitude`: as in Forward.
struct GatedNormForward {
  std::vector<double> y;  // (B,H,T,D)
  std::vector<double> magnitude;
};

struct GatedNormGradientArrays {
  std::vector<double> dx;       // (B,H,T,D)
  std::vector<double> dweight;  // shape of weight; empty where it is absent
  std::vector<double> dgate;    // (B,H,T,D); empty where there is no gate
};

struct GatedNormBackward : GatedNormGradientArrays {
  GatedNormGradientArrays magnitude;
};

GatedNormForward gated_norm(const GatedNormInputs& inputs, const GatedNormOptions& options);

/// Gradients of Σ dy∘y.
GatedNormBackward gated_norm_backward(const GatedNormInputs& inputs, const ConstTensorView& dy,
                                      const GatedNormOptions& options);

}  // namespace headgate::reference
