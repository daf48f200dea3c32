// SPDX-License-Identifier: Apache-2.0
#include "headgate/headgate.h"
#include "headgate/linear_attention_statistics.hpp"
#include "library/capi/operation.hpp"
#include "library/capi/status.hpp"
#include "library/capi/tensors.hpp"
#include "library/core/linear_attention_rows.hpp"
#include "library/core/linear_statistics_rows.hpp"

namespace headgate::capi {
namespace {

// Checks the sizes of structs on systems with 64-bit pointers. The sizes must not change before the next minor version,
// because programs compiled with version 0.2 depend on them.
static_assert(sizeof(void*) != 8 || sizeof(headgate_linear_attention_weights_outputs) == 8 + 2 * 80);
static_assert(sizeof(void*) != 8 || sizeof(headgate_linear_attention_statistics_outputs) == 8 + 15 * 80);

}  // namespace
}  // namespace headgate::capi

namespace capi = headgate::capi;

headgate_status headgate_linear_attention_weights(const headgate_linear_attention_weights_outputs* outputs,
                                                  const headgate_linear_attention_inputs* inputs,
                                                  const headgate_const_tensor* queries,
                                                  const headgate_linear_attention_options* options) {
  return capi::guarded(__func__, [&] {
    headgate::linear_attention_weights(
        capi::to_views<headgate::kLinearWeights>(outputs, "outputs"),
        capi::to_views<headgate::kLinearInputs>(inputs, "inputs"), capi::to_view_of(queries, "queries"),
        capi::read_options<headgate::kLinearOptions, headgate::LinearAttentionOptions>(options));
  });
}

headgate_status headgate_linear_attention_statistics(const headgate_linear_attention_statistics_outputs* outputs,
                                                     const headgate_linear_attention_inputs* inputs,
                                                     const headgate_linear_attention_options* options) {
  return capi::guarded(__func__, [&] {
    headgate::linear_attention_statistics(
        capi::to_views<headgate::kLinearStatistics>(outputs, "outputs"),
        capi::to_views<headgate::kLinearInputs>(inputs, "inputs"),
        capi::read_options<headgate::kLinearOptions, headgate::LinearAttentionOptions>(options));
  });
}
