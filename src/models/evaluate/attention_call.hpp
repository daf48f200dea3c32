// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headgate/statistics.hpp"
#include "models/decoder/decoder.hpp"

namespace headgate::metrics {

/// What attention_statistics takes for a layer's attention.
struct AttentionCall {
  AttentionInputs inputs;  ///< without values and gates
  ConstTensorView lse;
  AttentionOptions options;
};

/// For observers of Tap::scores. `context`: one of resolved().
template <typename T>
AttentionCall attention_call(const models::LayerView<T>& view, const ExecutionContext& context);

/// The same call where every query sees token 0, whatever the layer hides: statistics of that token alone take it.
AttentionCall with_all_visible(AttentionCall call);

}  // namespace headgate::metrics
