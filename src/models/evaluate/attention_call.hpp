// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headgate/statistics.hpp"
#include "models/decoder/decoder.hpp"

namespace headgate::metrics {

/// Arguments of attention_statistics for a layer's attention.
struct AttentionCall {
  AttentionInputs inputs;  ///< q, k and sinks; other members are absent
  ConstTensorView lse;
  AttentionOptions options;
};

/// Builds the arguments of attention_statistics for a layer. `view` must have the members that Tap::scores requests.
/// `context` must be a result of resolved() (runtime.hpp).
template <typename T>
AttentionCall attention_call(const models::LayerView<T>& view, const ExecutionContext& context);

/// Removes the causal mask and the window from a call, so that every query sees token 0. The result is valid only for
/// statistics of token 0.
AttentionCall with_all_visible(AttentionCall call);

}  // namespace headgate::metrics
