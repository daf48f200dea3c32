// SPDX-License-Identifier: Apache-2.0
#include "headgate/linear_attention.hpp"

#include "headgate/linear_attention.h"
#include "library/capi/operation.hpp"
#include "library/capi/status.hpp"
#include "library/core/linear_attention_rows.hpp"

namespace headgate::capi {
namespace {

static_assert(same(HEADGATE_LINEAR_RULE_GATED_DELTA, LinearRule::gated_delta) &&
              same(HEADGATE_LINEAR_RULE_DELTA, LinearRule::delta) &&
              same(HEADGATE_LINEAR_RULE_GATED, LinearRule::gated) &&
              same(HEADGATE_LINEAR_RULE_LINEAR, LinearRule::linear));

// Checks the sizes of structs on systems with 64-bit pointers. The sizes must not change before the next minor version,
// because programs compiled with version 0.2 depend on them.
static_assert(sizeof(void*) != 8 || sizeof(headgate_linear_attention_options) == 8 + 2 * 8 + 4 * 4 + 2 * 8 + 2 * 4);
static_assert(sizeof(void*) != 8 || sizeof(headgate_linear_attention_inputs) == 8 + 8 * 80);
static_assert(sizeof(void*) != 8 || sizeof(headgate_linear_attention_outputs) == 8 + 3 * 80);
static_assert(sizeof(void*) != 8 || sizeof(headgate_linear_attention_incoming) == 8 + 2 * 80);
static_assert(sizeof(void*) != 8 || sizeof(headgate_linear_attention_gradients) == 8 + 6 * 80);

LinearAttentionOptions to_linear_options(const headgate_linear_attention_options* given) {
  return read_options<kLinearOptions, LinearAttentionOptions>(given);
}

}  // namespace
}  // namespace headgate::capi

namespace capi = headgate::capi;

headgate_status headgate_linear_attention_forward(const headgate_linear_attention_outputs* outputs,
                                                  const headgate_linear_attention_inputs* inputs,
                                                  const headgate_linear_attention_options* options) {
  return capi::guarded(__func__, [&] {
    headgate::linear_attention_forward(capi::to_views<headgate::kLinearOutputs>(outputs, "outputs"),
                                       capi::to_views<headgate::kLinearInputs>(inputs, "inputs"),
                                       capi::to_linear_options(options));
  });
}

headgate_status headgate_linear_attention_backward(const headgate_linear_attention_gradients* gradients,
                                                   const headgate_linear_attention_inputs* inputs,
                                                   const headgate_linear_attention_incoming* incoming,
                                                   const headgate_linear_attention_options* options) {
  return capi::guarded(__func__, [&] {
    headgate::linear_attention_backward(capi::to_views<headgate::kLinearGradients>(gradients, "gradients"),
                                        capi::to_views<headgate::kLinearInputs>(inputs, "inputs"),
                                        capi::to_views<headgate::kLinearIncoming>(incoming, "incoming"),
                                        capi::to_linear_options(options));
  });
}
