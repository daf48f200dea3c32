// SPDX-License-Identifier: Apache-2.0
#include "headgate/short_convolution.hpp"

#include <nanobind/nanobind.h>

#include <cstddef>

#include "library/core/short_convolution_rows.hpp"
#include "python/headgate/bindings.hpp"
#include "python/headgate/operation_passes.hpp"
#include "python/headgate/operation_tables.hpp"
#include "python/headgate/output_shapes.hpp"

// Bindings of headgate/short_convolution.hpp: short_convolution_forward, its short form `short_convolution`, and
// short_convolution_backward.

namespace headgate::python {
namespace {

struct ShortConvolution : ShortConvolutionTables {
  static constexpr const char* kOutputsClass = "ShortConvolutionOutputs";
  static constexpr const char* kGradientsClass = "ShortConvolutionGradients";
  static constexpr std::size_t kPositional = 3;  // number of inputs that may be positional: x, weight and bias

  static Shape shape_of(const ConvolutionOutput& row, const ShortConvolutionInputs& in) {
    return python::shape_of(row, in);
  }
  static DType dtype_of(const ConvolutionOutput& row, const ShortConvolutionInputs& in) {
    return python::dtype_of(row, in);
  }
};

}  // namespace

void bind_short_convolution(nb::module_& module) {
  module.attr("_convolution_rows") =
      torch_rows<kConvolutionInputs, kConvolutionGradients, kConvolutionOptions, ShortConvolutionOptions>();
  bind_passes<ShortConvolution>(
      module,
      {.outputs = "What the forward pass of the short convolution writes.",
       .gradients = "What the backward pass of the short convolution writes. dstate is the gradient of the old state.",
       .result =
           "The causal depthwise convolution before gated linear attention, with its activation:\n\n"
           "    y[t,c] = activation(bias[c] + sum over j < K of weight[c,j] * x[t-K+1+j,c])\n\n"
           "Returns y (B,T,C): a tensor of PyTorch where x is one, else an array of NumPy. Raises ValueError, in one\n"
           "line, on arguments that do not fit. B batch, T tokens, C channels, K taps, N sequences: those of a packed\n"
           "batch, else B. A batch of one may be (T,C). The weight (C,1,K) of torch.nn.Conv1d is weight[:, 0] here.\n"
           "x may have any strides: channels-first memory is x.transpose(1, 2). Messages give shapes as (B,1,T,C).",
       .forward = "short_convolution, with the last K-1 rows of x: the `state` of the call for the next tokens.\n\n"
                  "The state has the dtype of the old one, or that of x where there is none. With snapshot_lengths,\n"
                  "also states after other tokens. Raises ValueError as short_convolution does.",
       .backward =
           "Gradients of sum(dy * y) + sum(dstate * new state) of short_convolution_forward on the same inputs and\n"
           "options.\n\n"
           "The sums are computed again, from the inputs alone. All gradients are overwritten, never added to; in\n"
           "float32 or better, deterministic. Raises ValueError as short_convolution does."});
}

}  // namespace headgate::python
