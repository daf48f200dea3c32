// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "headgate/short_convolution.hpp"

// The short convolution in f64, forward and backward, by plain loops: the reference for short_convolution_forward and
// short_convolution_backward. Arguments are assumed to be valid; any dtype and any strides. Results are contiguous.

namespace headgate::reference {

struct ShortConvolutionArrays {
  std::vector<double> y;      // (B,1,T,C)
  std::vector<double> state;  // (N,1,K−1,C), after the last token
};

/// `magnitude`: as in Forward.
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

/// Gradients of Σ dy∘y + Σ dstate∘(new state); of the bias and the old state even where they are absent.
ShortConvolutionBackward short_convolution_backward(const ShortConvolutionInputs& inputs,
                                                    const ShortConvolutionIncoming& incoming,
                                                    const ShortConvolutionOptions& options);

}  // namespace headgate::reference
