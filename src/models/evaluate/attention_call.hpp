// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headgate/statistics.hpp"
#include "models/decoder/decoder.hpp"

namespace headgate::metrics {

/// Holds the arguments of attention_statistics for a layer's attention.
struct AttentionCall {
  AttentionInputs inputs;  ///< without values and gates
  ConstTensorView lse;
  AttentionOptions options;
};

/// Builds the call for observers of Tap::scores. `context`: a context returned by resolved().
template <typename T>
AttentionCall attention_call(const models::LayerView<T>& view, const ExecutionContext& context);

/// Returns the same call with token 0 visible to every query, whatever the layer hides. Only statistics of token 0 may
/// use it.
AttentionCall with_all_visible(AttentionCall call);

}  // namespace headgate::metrics
