// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "headgate/short_convolution.hpp"

// Reference for short_convolution_forward and short_convolution_backward: the short convolution in f64 by plain loops.
// Arguments are assumed to be valid. Any dtype and any strides are accepted. Results are contiguous.

namespace headgate::reference {

struct ShortConvolutionArrays {
  std::vector<double> y;      // (B,1,T,C)
  std::vector<double> state;  // (N,1,K−1,C), after the last token
};

/// Outputs of the forward pass. `magnitude` bounds the effect of rounding on each element, as in Forward (oracle.hpp).
struct ShortConvolutionForward : ShortConvolutionArrays {
  ShortConvolutionArrays magnitude;
};

struct ShortConvolutionGradientArrays {
  std::vector<double> dx;       // (B,1,T,C)
  std::vector<double> dweight;  // (1,1,C,K)
  std::vector<double> dbias;    // (1,1,1,C)
  std::vector<double> dstate;   // (N,1,K−1,C), before the first token
};

struct ShortConvolutionBackward : ShortConvolutionGradientArrays {
  ShortConvolutionGradientArrays magnitude;
};

ShortConvolutionForward short_convolution(const ShortConvolutionInputs& inputs, const ShortConvolutionOptions& options);

/// Returns the gradients of Σ dy∘y + Σ dstate∘(new state), including those of an absent bias and old state.
ShortConvolutionBackward short_convolution_backward(const ShortConvolutionInputs& inputs,
                                                    const ShortConvolutionIncoming& incoming,
                                                    const ShortConvolutionOptions& options);

}  // namespace headgate::reference
