// SPDX-License-Identifier: Apache-2.0
#include "headgate/linear_attention.hpp"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "library/core/linear_attention_rows.hpp"
#include "python/headgate/bindings.hpp"
#include "python/headgate/operation_rows.hpp"
#include "python/headgate/signals.hpp"

// headgate/linear_attention.hpp: linear_attention_forward, its short form `linear_attention`, and
// linear_attention_backward.

namespace headgate::python {
namespace {

using LinearInputs = OperationInputs<kLinearInputs>;
using ForwardResults = ResultsOf<kLinearOutputs>;
using BackwardResults = ResultsOf<kLinearGradients>;

/// q, k, v, decay and beta may be given by position, and q, k and v must be given.
constexpr std::size_t kPositional = 5, kRequired = 3;
static_assert(kLinearInputs[kRequired - 1].traits.required && !kLinearInputs[kRequired].traits.required);

LinearInputs take_inputs(const Keywords& keywords) {
  return take_inputs_of<kLinearInputs>(keywords, kRequired,
                                       [](const LinearInput& row) { return array_kind(row.kind); });
}

LinearAttentionOptions take_options(const Keywords& keywords) {
  return take_options_of<kLinearOptions, LinearAttentionOptions>(keywords);
}

/// Sizes that the call refuses are cut to ones that it refuses as well and that take no memory.
Shape shape_of(const LinearOutput& row, const LinearAttentionInputs& in) {
  const auto& [B, Hq, T, D] = in.q.shape;
  const std::int64_t Hv = in.v.shape[1], Dv = in.v.shape[3];
  if (row.kind != TensorKind::state) return {B, std::max(Hq, Hv), T, Dv};
  const std::int64_t N = in.cu_seqlens.present() ? std::max<std::int64_t>(in.cu_seqlens.shape[3] - 1, 0) : B;
  return {N, Hv, std::min(D, kMaxStateDim), std::min(Dv, kMaxStateDim)};
}

ForwardResults run_forward(const Keywords& keywords, const LinearInputs& in, LinearAttentionOptions options,
                           const std::vector<bool>& chosen, ForwardResults results) {
  const Maker maker(in.q);
  LinearAttentionOutputs outputs;
  const auto held = place_results<kLinearOutputs>(
      keywords.function(), in.layout, chosen, results, outputs, [&](const LinearOutput& row) {
        const std::vector<std::int64_t> sizes =
            sizes_of(shape_of(row, in.views), array_kind(row.kind), in.layout, in.has_batch());
        return maker.empty(sizes, output_dtype(row.elements, in.views.q.dtype));
      });
  interruptible(options.context, [&] { linear_attention_forward(outputs, in.views, options); });
  return results;
}

constexpr std::size_t kY = row_number(kLinearOutputs, &LinearAttentionOutputs::y);

nb::object linear_attention(const Keywords& keywords) {
  const LinearInputs in = take_inputs(keywords);
  const LinearAttentionOptions options = take_options(keywords);
  ForwardResults results;
  results.arrays[kY] = keywords.take("out");
  std::vector<bool> chosen(kLinearOutputs.size(), false);
  chosen[kY] = true;
  return run_forward(keywords, in, options, chosen, std::move(results)).arrays[kY];
}

ForwardResults forward(const Keywords& keywords) {
  const LinearInputs in = take_inputs(keywords);
  const LinearAttentionOptions options = take_options(keywords);
  const auto* out = take_out<ForwardResults>(keywords, "LinearAttentionOutputs");
  const std::vector<bool> all(kLinearOutputs.size(), true);
  std::vector<bool> chosen = chosen_rows<kLinearOutputs>(keywords, "outputs", out, all);
  chosen[kY] = true;
  return run_forward(keywords, in, options, chosen, out == nullptr ? ForwardResults() : *out);
}

BackwardResults backward(const Keywords& keywords) {
  const LinearInputs in = take_inputs(keywords);
  LinearAttentionOptions options = take_options(keywords);
  LinearAttentionIncoming incoming;
  const auto incoming_arrays = take_tensors<kLinearIncoming>(keywords, in.layout, incoming);
  const auto* out = take_out<BackwardResults>(keywords, "LinearAttentionGradients");
  std::vector<bool> defaults;
  for (const LinearGradient& row : kLinearGradients) defaults.push_back((in.views.*row.gradient_of).present());
  const std::vector<bool> chosen = chosen_rows<kLinearGradients>(keywords, "gradients", out, defaults);
  BackwardResults results = out == nullptr ? BackwardResults() : *out;
  LinearAttentionGradients gradients;
  const auto held = place_gradients<kLinearGradients>(keywords.function(), in, chosen, results, gradients);
  interruptible(options.context, [&] { linear_attention_backward(gradients, in.views, incoming, options); });
  return results;
}

/// What linear_attention_backward reads beside the inputs and dy.
std::vector<ArgumentText> backward_texts() {
  std::vector<ArgumentText> texts;
  for (const LinearIncomingTensor& row : kLinearIncoming) {
    if (!row.traits.required) texts.push_back(text_of_read(row));
  }
  return texts;
}

}  // namespace

void bind_linear_attention(nb::module_& module) {
  bind_results<LinearAttentionOutputs>(
      module, "LinearAttentionOutputs", kLinearOutputs, [](const LinearOutput& row) { return text_of_output(row); },
      "What the forward pass of linear attention writes.");
  bind_results<LinearAttentionGradients>(
      module, "LinearAttentionGradients", kLinearGradients,
      [](const LinearGradient& row) { return text_of_gradient(row); },
      "What the backward pass of linear attention writes. dstate is the gradient of S_0.");

  module.attr("_linear_rows") = torch_rows<kLinearInputs, kLinearGradients, kLinearOptions, LinearAttentionOptions>();
  const std::vector<ArgumentText> in =
      joined(joined(input_texts_of<kLinearInputs>(kRequired), {layout_text("q, k, v, decay, beta, y")}),
             option_texts_of<kLinearOptions, LinearAttentionOptions>());
  define(
      module, "linear_attention", linear_attention,
      joined(in, {{"out", "Array | None", "None", "where y is written; a new array where it is None"}}), kPositional,
      "Array",
      "Gated linear attention with the delta rule: the recurrence of Gated DeltaNet, exact.\n\n"
      "A head keeps a state S (D,Dv) in place of keys and values. For one token after the other, with S the state\n"
      "that it finds, times e^g with the rules gated and gated_delta:\n"
      "    linear, gated:       S + k v^T\n"
      "    delta, gated_delta:  S + beta k (v - S^T k)^T\n"
      "is the new state, and y = scale S^T q of that.\n\n"
      "Returns y (B,Ho,T,Dv): a tensor of PyTorch where q is one, else an array of NumPy. Raises ValueError, in one\n"
      "line, on arguments that do not fit. B batch, T tokens, Hq, Hk and Hv heads of q, k and v, Ho the larger of Hq\n"
      "and Hv, D and Dv head dims from 1 to 256, N sequences: those of a packed batch, else B. States are\n"
      "(N,Hv,D,Dv) whatever the layout. Messages give shapes as (B,H,T,D).");
  define(
      module, "linear_attention_forward", forward,
      joined(in, {{"outputs", "Sequence[str] | None", "None",
                   "names of what is computed beside y, of LinearAttentionOutputs; None: state"},
                  {"out", "LinearAttentionOutputs | None", "None",
                   "arrays to write to. Its state may be the array that is given as `state`, which is then updated "
                   "in place. y is made where it is lacking"}}),
      kPositional, "LinearAttentionOutputs",
      "linear_attention, with the state after the last token: the `state` of the call for the next tokens.\n\n"
      "Any number of tokens, a prompt, a part of one or a single new token, go on from the state. Raises ValueError\n"
      "as linear_attention does.");
  define(module, "linear_attention_backward", backward,
         joined(joined({text_of_required(kLinearIncoming.front())}, in),
                joined(backward_texts(),
                       {{"gradients", "Sequence[str] | None", "None",
                         "names of what is computed, of LinearAttentionGradients; None: of every input that is there"},
                        {"out", "LinearAttentionGradients | None", "None",
                         "arrays to write to; those that `gradients` names and it lacks are made"}})),
         1 + kPositional, "LinearAttentionGradients",
         "Gradients of sum(dy * y) + sum(dstate * S_T) of linear_attention_forward on the same inputs and options.\n\n"
         "The states are computed again, from the inputs alone. All gradients are overwritten, never added to; in\n"
         "float32 or better, deterministic. Raises ValueError as linear_attention does.");
}

}  // namespace headgate::python
