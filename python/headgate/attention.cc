// SPDX-License-Identifier: Apache-2.0
#include "headgate/attention.hpp"

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "library/core/gate_functions.hpp"
#include "python/headgate/attention_rows.hpp"
#include "python/headgate/bindings.hpp"
#include "python/headgate/output_shapes.hpp"
#include "python/headgate/results.hpp"
#include "python/headgate/signals.hpp"

// Bindings of headgate/attention.hpp: attention_forward, its short form `attention`, and attention_backward.

namespace headgate::python {
namespace {

using ForwardResults = ResultsOf<kAttentionOutputs>;
using BackwardResults = ResultsOf<kAttentionGradients>;

ForwardResults run_forward(const Keywords& keywords, const Inputs& in, AttentionOptions options,
                           const std::vector<bool>& chosen, ForwardResults results) {
  const ArrayFactory factory(in.first);
  AttentionOutputs outputs;
  const auto held =
      place_results<kAttentionOutputs>(keywords, in.layout, chosen, results, outputs, [&](const AttentionOutput& row) {
        const DType dtype = dtype_of(row, in.views);
        const Shape shape = shape_of(row, in.views);
        if (row.kind != TensorKind::rows_or_heads) return make_output(factory, row, in, shape, dtype);
        const bool of_sequences = in.has_batch() || in.views.cu_seqlens_q.present();
        return factory.empty(sizes_of(shape, array_kind(row.kind), in.layout, of_sequences), dtype);
      });
  interruptible(keywords, options.context, [&] { attention_forward(outputs, in.views, options); });
  return results;
}

constexpr std::size_t kY = row_number(kAttentionOutputs, &AttentionOutputs::y),
                      kLse = row_number(kAttentionOutputs, &AttentionOutputs::lse),
                      kAttn = row_number(kAttentionOutputs, &AttentionOutputs::attn);

/// Number of required inputs if a forward pass computes lse but no y: q and k.
constexpr std::size_t kRequiredInputsOfLse = 2;

nb::object attention(const Keywords& keywords) {
  const Inputs in = take_inputs(keywords);
  const AttentionOptions options = take_options(keywords);
  ForwardResults results;
  results.arrays[kY] = keywords.take("out");
  std::vector<bool> chosen(kAttentionOutputs.size(), false);
  chosen[kY] = true;
  return run_forward(keywords, in, options, chosen, std::move(results)).arrays[kY];
}

ForwardResults forward(const Keywords& keywords) {
  const Inputs in = take_inputs(keywords, kRequiredInputsOfLse);
  const AttentionOptions options = take_options(keywords);
  const auto* out = take_out<ForwardResults>(keywords, "AttentionOutputs");
  std::vector<bool> defaults(kAttentionOutputs.size(), false);
  defaults[kY] = defaults[kLse] = true;
  defaults[kAttn] = in.views.gate.present() && keeps_output(options.gate_fn, options.gate_op, in.views.q.dtype);
  const std::vector<bool> chosen = chosen_rows<kAttentionOutputs>(keywords, "outputs", out, defaults);
  require(in.views.v.present() || !(chosen[kY] || chosen[kAttn]), "{}: v is required but None", keywords.function());
  return run_forward(keywords, in, options, chosen, out == nullptr ? ForwardResults() : *out);
}

BackwardResults backward(const Keywords& keywords) {
  const Inputs in = take_inputs(keywords);
  AttentionOptions options = take_options(keywords);
  AttentionSaved saved;
  AttentionIncoming incoming;
  const auto saved_arrays = take_tensors<kSavedTensors>(keywords, in.layout, saved);
  const auto incoming_arrays = take_tensors<kIncomingTensors>(keywords, in.layout, incoming);
  const auto* out = take_out<BackwardResults>(keywords, "AttentionGradients");
  const bool gated = options.gate_fn != GateFn::none;
  std::vector<bool> defaults(kAttentionGradients.size());
  for (std::size_t i = 0; i < kAttentionGradients.size(); ++i) {
    const auto input = kAttentionGradients[i].gradient_of;
    defaults[i] = (in.views.*input).present() && (input != &AttentionInputs::gate || gated);
  }
  const std::vector<bool> chosen = chosen_rows<kAttentionGradients>(keywords, "gradients", out, defaults);

  BackwardResults results = out == nullptr ? BackwardResults() : *out;
  AttentionGradients gradients;
  const auto held = place_gradients<kAttentionGradients>(keywords, in, chosen, results, gradients);
  interruptible(keywords, options.context, [&] { attention_backward(gradients, in.views, saved, incoming, options); });
  return results;
}

/// Returns the signature and help texts of attention_backward's arguments other than the inputs, dy and the options.
std::vector<ArgumentText> backward_texts() {
  std::vector<ArgumentText> texts;
  texts.reserve(kSavedTensors.size() + kIncomingTensors.size());
  for (const SavedTensor& row : kSavedTensors) texts.push_back(text_of_read(row));
  for (const IncomingTensor& row : kIncomingTensors) {
    if (!row.traits.required) texts.push_back(text_of_read(row));
  }
  return texts;
}

}  // namespace

void bind_attention(nb::module_& module) {
  bind_results<AttentionOutputs>(
      module, "AttentionOutputs", kAttentionOutputs, [](const AttentionOutput& row) { return text_of_output(row); },
      "What the forward pass writes.");
  bind_results<AttentionGradients>(
      module, "AttentionGradients", kAttentionGradients,
      [](const AttentionGradient& row) { return text_of_gradient(row); }, "What the backward pass writes.");

  module.attr("_rows") = rows_for_torch();
  const std::vector<ArgumentText> in = joined(input_texts(), option_texts());
  define(
      module, "attention", attention,
      joined(in, {{"out", "Array | None", "None", "where y is written; a new array where it is None"}}),
      kPositionalInputs, "Array",
      "y = g(gate) * softmax(scale q k^T + bias, mask) v, exact, in O(T) memory.\n\n"
      "Returns y (B,Hq,T,Dv): a tensor of PyTorch where q is one, else an array of NumPy. Raises ValueError, in one\n"
      "line, on arguments that do not fit. B batch, T queries, S keys, Hq query heads, Hkv key and value heads (Hq\n"
      "a multiple of Hkv), D and Dv head dims from 1 to 576. Query i stands at key position at_i = i + S - T, or\n"
      "query_offsets[b] + i. Messages give shapes as (B,H,T,D), whatever the layout.");
  define(module, "attention_forward", forward,
         joined(joined(input_texts(kRequiredInputsOfLse), option_texts()),
                {{"outputs", "Sequence[str] | None", "None",
                  "names of what is computed, of AttentionOutputs; None: y, lse, and attn where gradients need it"},
                 {"out", "AttentionOutputs | None", "None",
                  "arrays to write to; if outputs is None, no others are computed"}}),
         kPositionalInputs, "AttentionOutputs",
         "attention, with what attention_backward and attention_statistics need of it.\n\n"
         "Without y in `outputs`, as in outputs=['lse'], nothing is multiplied by v, which may be None, and the gate\n"
         "is not read.\n\n"
         "A row that sees nothing has o = 0 and lse = -inf (the sink's logit where there is one); a row that\n"
         "gate_threshold closes has y = o = 0, max_logit = -inf and lse = inf. Raises ValueError as attention does.");
  define(module, "attention_backward", backward,
         joined(joined({text_of_required(kIncomingTensors.front())}, in),
                joined(backward_texts(),
                       {{"gradients", "Sequence[str] | None", "None",
                         "names of what is computed, of AttentionGradients; None: of every input that is there"},
                        {"out", "AttentionGradients | None", "None",
                         "arrays to write to; if gradients is None, no others are computed"}})),
         1 + kPositionalInputs, "AttentionGradients",
         "Gradients of sum(dy * y) + sum(dlse * lse) of attention_forward on the same inputs and options.\n\n"
         "All are overwritten, never added to; in float32 or better, deterministic. Raises ValueError as attention\n"
         "does, and on rows that gate_threshold left out.");
}

}  // namespace headgate::python
