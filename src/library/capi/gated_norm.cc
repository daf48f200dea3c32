// SPDX-License-Identifier: Apache-2.0
#include "headgate/gated_norm.hpp"

#include "headgate/linear_attention.h"
#include "library/capi/operation.hpp"
#include "library/capi/status.hpp"
#include "library/capi/tensors.hpp"
#include "library/core/gated_norm_rows.hpp"

namespace headgate::capi {
namespace {

// Checks the sizes of structs on systems with 64-bit pointers. The sizes must not change before the next minor version,
// because programs compiled with version 0.2 depend on them.
static_assert(sizeof(void*) != 8 || sizeof(headgate_gated_norm_options) == 8 + 8 + 4 * 4 + 2 * 8);
static_assert(sizeof(void*) != 8 || sizeof(headgate_gated_norm_inputs) == 8 + 3 * 80);
static_assert(sizeof(void*) != 8 || sizeof(headgate_gated_norm_gradients) == 8 + 3 * 80);

GatedNormOptions to_norm_options(const headgate_gated_norm_options* given) {
  return read_options<kNormOptions, GatedNormOptions>(given);
}

}  // namespace
}  // namespace headgate::capi

namespace capi = headgate::capi;

headgate_status headgate_gated_norm_forward(const headgate_tensor* y, const headgate_gated_norm_inputs* inputs,
                                            const headgate_gated_norm_options* options) {
  return capi::guarded(__func__, [&] {
    headgate::gated_norm_forward(capi::to_view_of(y, "y"), capi::to_views<headgate::kNormInputs>(inputs, "inputs"),
                                 capi::to_norm_options(options));
  });
}

headgate_status headgate_gated_norm_backward(const headgate_gated_norm_gradients* gradients,
                                             const headgate_gated_norm_inputs* inputs, const headgate_const_tensor* dy,
                                             const headgate_gated_norm_options* options) {
  return capi::guarded(__func__, [&] {
    headgate::gated_norm_backward(capi::to_views<headgate::kNormGradients>(gradients, "gradients"),
                                  capi::to_views<headgate::kNormInputs>(inputs, "inputs"), capi::to_view_of(dy, "dy"),
                                  capi::to_norm_options(options));
  });
}
