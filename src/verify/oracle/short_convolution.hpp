// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "headgate/short_convolution.hpp"

// Reference for short_convolution_forward and short_convolution_backward, in f64 and with plain loops. Arguments must
// be valid; they are not checked. Accepts any dtype and any strides. Results are contiguous.

namespace headgate::reference {

struct ShortConvolutionArrays {
  std::vector<double> y;          // (B,1,T,C)
  std::vector<double> state;      // (N,1,K−1,C) state after the last token
  std::vector<double> snapshots;  // (N·M,1,K−1,C); empty without snapshot_lengths
};

/// Outputs of the forward pass. `magnitude` bounds the effect of rounding on each element, as in Forward (oracle.hpp).
struct ShortConvolutionForward : ShortConvolutionArrays {
  ShortConvolutionArrays magnitude;
};

struct ShortConvolutionGradientArrays {
  std::vector<double> dx;       // (B,1,T,C)
  std::vector<double> dweight;  // (1,1,C,K)
  std::vector<double> dbias;    // (1,1,1,C)
  std::vector<double> dstate;   // (N,1,K−1,C) gradient of the state before the first token
};

struct ShortConvolutionBackward : ShortConvolutionGradientArrays {
  ShortConvolutionGradientArrays magnitude;
};

ShortConvolutionForward short_convolution(const ShortConvolutionInputs& inputs, const ShortConvolutionOptions& options);

/// Returns the gradients of Σ dy∘y + Σ dstate∘(new state).
/// Includes gradients of the bias and of the initial state even if these inputs are absent.
ShortConvolutionBackward short_convolution_backward(const ShortConvolutionInputs& inputs,
                                                    const ShortConvolutionIncoming& incoming,
                                                    const ShortConvolutionOptions& options);

}  // namespace headgate::reference
