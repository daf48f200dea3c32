// SPDX-License-Identifier: Apache-2.0
#include "headgate/short_convolution.hpp"

#include "headgate/linear_attention.h"
#include "library/capi/operation.hpp"
#include "library/capi/status.hpp"
#include "library/core/short_convolution_rows.hpp"

namespace headgate::capi {
namespace {

// Checks the sizes of structs on systems with 64-bit pointers. The sizes must not change before the next minor version,
// because programs compiled with version 0.2 depend on them.
static_assert(sizeof(void*) != 8 || sizeof(headgate_short_convolution_options) == 8 + 2 * 4 + 2 * 8);
static_assert(sizeof(void*) != 8 || sizeof(headgate_short_convolution_inputs) == 8 + 6 * 80);
static_assert(sizeof(void*) != 8 || sizeof(headgate_short_convolution_outputs) == 8 + 3 * 80);
static_assert(sizeof(void*) != 8 || sizeof(headgate_short_convolution_incoming) == 8 + 2 * 80);
static_assert(sizeof(void*) != 8 || sizeof(headgate_short_convolution_gradients) == 8 + 4 * 80);

ShortConvolutionOptions to_convolution_options(const headgate_short_convolution_options* given) {
  return read_options<kConvolutionOptions, ShortConvolutionOptions>(given);
}

}  // namespace
}  // namespace headgate::capi

namespace capi = headgate::capi;

headgate_status headgate_short_convolution_forward(const headgate_short_convolution_outputs* outputs,
                                                   const headgate_short_convolution_inputs* inputs,
                                                   const headgate_short_convolution_options* options) {
  return capi::guarded(__func__, [&] {
    headgate::short_convolution_forward(capi::to_views<headgate::kConvolutionOutputs>(outputs, "outputs"),
                                        capi::to_views<headgate::kConvolutionInputs>(inputs, "inputs"),
                                        capi::to_convolution_options(options));
  });
}

headgate_status headgate_short_convolution_backward(const headgate_short_convolution_gradients* gradients,
                                                    const headgate_short_convolution_inputs* inputs,
                                                    const headgate_short_convolution_incoming* incoming,
                                                    const headgate_short_convolution_options* options) {
  return capi::guarded(__func__, [&] {
    headgate::short_convolution_backward(capi::to_views<headgate::kConvolutionGradients>(gradients, "gradients"),
                                         capi::to_views<headgate::kConvolutionInputs>(inputs, "inputs"),
                                         capi::to_views<headgate::kConvolutionIncoming>(incoming, "incoming"),
                                         capi::to_convolution_options(options));
  });
}
