// SPDX-License-Identifier: Apache-2.0
#include "models/evaluate/attention_call.hpp"

namespace headgate::metrics {

template <typename T>
AttentionCall attention_call(const models::LayerView<T>& view, const ExecutionContext& context) {
  AttentionCall call;
  call.inputs.q = view.q;
  call.inputs.k = view.k;
  if (view.cache != nullptr) {
    view.cache->set(call.inputs);
    call.inputs.v = {};
    call.inputs.v_scale = {};
  }
  if (view.sinks.present()) call.inputs.sinks = make_vector_view(view.sinks.data, view.sinks.shape[0]);
  const auto& [b, h, t] = view.lse.strides;
  call.lse = {view.lse.data, dtype_of<T>(), {view.shape.batch, view.lse.shape[1], view.shape.seq, 1}, {b, h, t, 1}};
  call.options.scale = view.scale;
  call.options.causality = Causality::causal;
  if (view.window > 0) call.options.window_left = view.window - 1;
  call.options.context = context;
  return call;
}

AttentionCall with_all_visible(AttentionCall call) {
  AttentionOptions options;
  options.scale = call.options.scale;
  options.context = call.options.context;
  call.options = options;
  return call;
}

template AttentionCall attention_call(const models::LayerView<float>& view, const ExecutionContext& context);
template AttentionCall attention_call(const models::LayerView<double>& view, const ExecutionContext& context);

}  // namespace headgate::metrics
