// SPDX-License-Identifier: Apache-2.0
#include "headgate/attention.hpp"

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "library/core/gate_functions.hpp"
#include "python/headgate/attention_rows.hpp"
#include "python/headgate/bindings.hpp"
#include "python/headgate/results.hpp"
#include "python/headgate/signals.hpp"

// headgate/attention.hpp: attention_forward, its short form `attention`, and attention_backward.

namespace headgate::python {
namespace {

using ForwardResults = Results<AttentionOutputs, kOutputRows.size()>;
using BackwardResults = Results<AttentionGradients, kGradientRows.size()>;

Shape shape_of(const OutputRow& row, const AttentionInputs& in) {
  const auto& [B, Hq, T, D] = in.q.shape;
  if (row.kind == ArrayKind::rows) return {B, Hq, T, 1};
  return {B, Hq, T, row.kind == ArrayKind::scores ? keys_of(in) : in.v.shape[3]};
}

DType dtype_of_output(const OutputRow& row, const AttentionInputs& in) {
  if (row.kind != ArrayKind::rows) return in.q.dtype;
  return in.q.dtype == DType::f64 ? DType::f64 : DType::f32;
}

/// The arrays that are `chosen`, made where `results` has none, as views in `outputs`.
void place(const char* function, const Inputs& in, const std::vector<bool>& chosen, ForwardResults& results,
           AttentionOutputs& outputs, std::array<Output, kOutputRows.size()>& held) {
  const Maker maker(in.q);
  for (std::size_t i = 0; i < kOutputRows.size(); ++i) {
    if (!chosen[i]) continue;
    const OutputRow& row = kOutputRows[i];
    if (results.arrays[i].is_none()) {
      const std::vector<std::int64_t> sizes = sizes_of(shape_of(row, in.views), row.kind, in.layout, in.has_batch());
      results.arrays[i] = maker.empty(sizes, dtype_of_output(row, in.views));
    }
    held[i] = output_of(function, row.name, results.arrays[i], row.kind, in.layout);
    outputs.*row.member = held[i].view;
  }
}

ForwardResults run_forward(const Keywords& keywords, const Inputs& in, AttentionOptions options,
                           const std::vector<bool>& chosen, ForwardResults results) {
  AttentionOutputs outputs;
  std::array<Output, kOutputRows.size()> held;
  place(keywords.function(), in, chosen, results, outputs, held);
  interruptible(options.context, [&] { attention_forward(outputs, in.views, options); });
  return results;
}

constexpr std::size_t kY = 0, kLse = 1, kAttn = 2;

nb::object attention(const Keywords& keywords) {
  const Inputs in = take_inputs(keywords);
  const AttentionOptions options = take_options(keywords);
  ForwardResults results;
  results.arrays[kY] = keywords.take("out");
  return run_forward(keywords, in, options, {true, false, false, false}, std::move(results)).arrays[kY];
}

ForwardResults forward(const Keywords& keywords) {
  const Inputs in = take_inputs(keywords);
  const AttentionOptions options = take_options(keywords);
  const auto* out = take_out<ForwardResults>(keywords, "AttentionOutputs");
  std::vector<bool> defaults(kOutputRows.size(), false);
  defaults[kY] = defaults[kLse] = true;
  defaults[kAttn] = in.views.gate.present() && keeps_output(options.gate_fn, options.gate_op);
  const std::vector<bool> chosen = chosen_of<AttentionOutputs>(
      keywords, "outputs", kOutputRows, [](const OutputRow& row) { return row.name; }, out, defaults);
  return run_forward(keywords, in, options, chosen, out == nullptr ? ForwardResults() : *out);
}

/// What the backward pass reads beside the inputs, as rows.
struct SavedArrays {
  Input y, lse, attn, dy, dlse;
};

BackwardResults backward(const Keywords& keywords) {
  const char* const function = keywords.function();
  const Inputs in = take_inputs(keywords);
  AttentionOptions options = take_options(keywords);
  const auto read = [&](const char* name, const nb::object& object, ArrayKind kind) {
    return input_of(function, name, object, kind, in.layout);
  };
  const SavedArrays saved{
      read("y", keywords.take("y"), ArrayKind::heads), read("lse", keywords.take("lse"), ArrayKind::rows),
      read("attn", keywords.take("attn"), ArrayKind::heads), read("dy", keywords.take("dy"), ArrayKind::heads),
      read("dlse", keywords.take("dlse"), ArrayKind::rows)};
  const auto* out = take_out<BackwardResults>(keywords, "AttentionGradients");
  const bool gated = options.gate_fn != GateFn::none;
  std::vector<bool> defaults(kGradientRows.size());
  for (std::size_t i = 0; i < kGradientRows.size(); ++i) {
    const auto input = kGradientRows[i].input;
    defaults[i] = (in.views.*input).present() && (input != &AttentionInputs::gate || gated);
  }
  const std::vector<bool> chosen = chosen_of<AttentionGradients>(
      keywords, "gradients", kGradientRows, [](const GradientOf& of) { return of.row.name; }, out, defaults);

  BackwardResults results = out == nullptr ? BackwardResults() : *out;
  AttentionGradients gradients;
  std::array<Output, kGradientRows.size()> held;
  const Maker maker(in.q);
  for (std::size_t i = 0; i < kGradientRows.size(); ++i) {
    if (!chosen[i]) continue;
    const GradientOf& of = kGradientRows[i];
    if (results.arrays[i].is_none()) {
      std::size_t n = 0;
      while (kInputRows[n].member != of.input) ++n;
      const auto& array = in.arrays[n].array;
      require(in.arrays[n].view.present(), "{}: {} is asked for but {} is None", function, of.row.name,
              kInputRows[n].name);
      results.arrays[i] = maker.empty({array.shape_ptr(), array.ndim()}, in.arrays[n].view.dtype);
    }
    held[i] = output_of(function, of.row.name, results.arrays[i], of.row.kind, in.layout);
    gradients.*of.row.member = held[i].view;
  }
  interruptible(options.context, [&] {
    attention_backward(gradients, in.views, {saved.y.view, saved.lse.view, saved.attn.view},
                       {saved.dy.view, saved.dlse.view}, options);
  });
  return results;
}

}  // namespace

void bind_attention(nb::module_& module) {
  bind_results<AttentionOutputs>(
      module, "AttentionOutputs", kOutputRows,
      [](const OutputRow& row) {
        return ArgumentText{row.name, {}, {}, row.help};
      },
      "What the forward pass writes.");
  bind_results<AttentionGradients>(
      module, "AttentionGradients", kGradientRows,
      [](const GradientOf& of) {
        return ArgumentText{of.row.name, {}, {}, of.row.help};
      },
      "What the backward pass writes.");

  const std::vector<ArgumentText> in = joined(input_texts(), option_texts());
  define(
      module, "attention", attention,
      joined(in, {{"out", "Array | None", "None", "where y is written; a new array where it is None"}}),
      kPositionalInputs, "Array",
      "y = g(gate) * softmax(scale q k^T + bias, mask) v, exact, in O(T) memory.\n\n"
      "Returns y (B,Hq,T,Dv): a tensor of PyTorch where q is one, else an array of NumPy. Raises ValueError, in one\n"
      "line, on arguments that do not fit. B batch, T queries, S keys, Hq query heads, Hkv key and value heads (Hq\n"
      "a multiple of Hkv), D and Dv head dims from 1 to 512. Query i stands at key position at_i = i + S - T, or\n"
      "query_offsets[b] + i. Messages give shapes as (B,H,T,D), whatever the layout.");
  define(module, "attention_forward", forward,
         joined(in, {{"outputs", "Sequence[str] | None", "None",
                      "names of what is computed, of AttentionOutputs; None: y, lse, and attn where gradients need it"},
                     {"out", "AttentionOutputs | None", "None", "arrays to write to; those that it lacks are made"}}),
         kPositionalInputs, "AttentionOutputs",
         "attention, with what attention_backward and attention_statistics need of it.\n\n"
         "A row that sees nothing has o = 0 and lse = -inf (the sink's logit where there is one); a row that\n"
         "gate_threshold closes has y = o = 0 and lse = inf. Raises ValueError as attention does.");
  define(
      module, "attention_backward", backward,
      joined(joined({{"dy", "Array", "", "gradient of y (B,Hq,T,Dv), dtype of q"}}, in),
             {{"y", "Array | None", "None", "of attention_forward, as lse and attn; needed"},
              {"lse", "Array | None", "None", "needed"},
              {"attn", "Array | None", "None", "for dgate where g may be 0 (silu, identity); helps where it is added"},
              {"dlse", "Array | None", "None", "gradient of lse (B,Hq,T), float32 or float64; None: zero"},
              {"gradients", "Sequence[str] | None", "None",
               "names of what is computed, of AttentionGradients; None: of every input that is there"},
              {"out", "AttentionGradients | None", "None", "arrays to write to; those that it lacks are made"}}),
      1 + kPositionalInputs, "AttentionGradients",
      "Gradients of sum(dy * y) + sum(dlse * lse) of attention_forward on the same inputs and options.\n\n"
      "All are overwritten, never added to; in float32 or better, deterministic. Raises ValueError as attention\n"
      "does, and on rows that gate_threshold left out.");
}

}  // namespace headgate::python
