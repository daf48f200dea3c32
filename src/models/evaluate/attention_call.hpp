// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headgate/statistics.hpp"
#include "models/decoder/decoder.hpp"

namespace headgate::metrics {

/// Holds the arguments with which attention_statistics() recomputes the attention of a layer.
struct AttentionCall {
  AttentionInputs inputs;  ///< has q, the keys (k, or those of the view's cache) and sinks; v is absent
  ConstTensorView lse;
  AttentionOptions options;
};

/// Builds the arguments of attention_statistics() for a layer of softmax attention. The observer that received `view`
/// must have requested Tap::scores. `context` must be a result of resolved() (runtime.hpp).
template <typename T>
AttentionCall attention_call(const models::LayerView<T>& view, const ExecutionContext& context);

/// Returns `call` without the causal mask and without the window, so that every query sees token 0. With the result,
/// only the statistics about token 0 are valid.
AttentionCall with_all_visible(AttentionCall call);

}  // namespace headgate::metrics
