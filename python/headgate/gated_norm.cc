// SPDX-License-Identifier: Apache-2.0
#include "headgate/gated_norm.hpp"

#include <nanobind/nanobind.h>

#include <cstddef>
#include <vector>

#include "library/core/gated_norm_rows.hpp"
#include "python/headgate/bindings.hpp"
#include "python/headgate/operation_rows.hpp"
#include "python/headgate/signals.hpp"

// Bindings of headgate/gated_norm.hpp: gated_norm and gated_norm_backward.

namespace headgate::python {
namespace {

using NormInputs = OperationInputs<kNormInputs>;
using BackwardResults = ResultsOf<kNormGradients>;

/// Every input may be a positional argument. Only the first input, x, is required. kX is the row of x in the table.
/// Arrays y and dy have the same kind as x.
constexpr std::size_t kPositional = kNormInputs.size(), kRequired = 1;
constexpr const NormInput& kX = kNormInputs.front();

NormInputs take_inputs(const Keywords& keywords) {
  return take_inputs_of<kNormInputs>(keywords, kRequired, [](const NormInput& row) { return array_kind(row.kind); });
}

nb::object gated_norm(const Keywords& keywords) {
  const NormInputs in = take_inputs(keywords);
  auto options = take_options_of<kNormOptions, GatedNormOptions>(keywords);
  nb::object y = keywords.take("out");
  const Output held = place_output(keywords, "y", y, array_kind(kX.kind), in.layout,
                                   [&] { return ArrayFactory(in.first).empty_like(in.arrays[&GatedNormInputs::x]); });
  interruptible(keywords, options.context, [&] { gated_norm_forward(held.view, in.views, options); });
  return y;
}

/// Returns which gradients a call computes by default: those of all inputs that are present. The gate is omitted if
/// gate_fn is none, because the call then ignores it.
std::vector<bool> default_gradients(const GatedNormInputs& in, const GatedNormOptions& options) {
  std::vector<bool> defaults;
  for (const NormGradient& row : kNormGradients) {
    const bool is_unread = row.gradient_of == &GatedNormInputs::gate && options.gate_fn == GateFn::none;
    defaults.push_back((in.*row.gradient_of).present() && !is_unread);
  }
  return defaults;
}

BackwardResults backward(const Keywords& keywords) {
  const NormInputs in = take_inputs(keywords);
  auto options = take_options_of<kNormOptions, GatedNormOptions>(keywords);
  const Input dy = input_of(keywords.function(), "dy", keywords.take("dy"), array_kind(kX.kind), in.layout);
  const auto* out = take_out<BackwardResults>(keywords, "GatedNormGradients");
  const std::vector<bool> chosen =
      chosen_rows<kNormGradients>(keywords, "gradients", out, default_gradients(in.views, options));
  BackwardResults results = out == nullptr ? BackwardResults() : *out;
  GatedNormGradients gradients;
  const auto held = place_gradients<kNormGradients>(keywords, in, chosen, results, gradients);
  interruptible(keywords, options.context, [&] { gated_norm_backward(gradients, in.views, dy.view, options); });
  return results;
}

}  // namespace

void bind_gated_norm(nb::module_& module) {
  bind_results<GatedNormGradients>(
      module, "GatedNormGradients", kNormGradients, [](const NormGradient& row) { return text_of_gradient(row); },
      "What the backward pass of the gated norm writes.");

  module.attr("_norm_rows") = torch_rows<kNormInputs, kNormGradients, kNormOptions, GatedNormOptions>();
  const std::vector<ArgumentText> in =
      joined(joined(input_texts_of<kNormInputs>(kRequired), {layout_text("x, gate, y")}),
             option_texts_of<kNormOptions, GatedNormOptions>());
  define(module, "gated_norm", gated_norm,
         joined(in, {{"out", "Array | None", "None", "where y is written; a new array where it is None"}}), kPositional,
         "Array",
         "The norm and the gate behind gated linear attention, of each row of D features:\n\n"
         "    y = x / sqrt(mean(x^2) + eps) * weight * g(gate)\n\n"
         "Returns y, of the shape and dtype of x: a tensor of PyTorch where x is one, else an array of NumPy. Raises\n"
         "ValueError, in one line, on arguments that do not fit. B batch, H heads, T tokens. Messages give shapes as\n"
         "(B,H,T,D).");
  define(module, "gated_norm_backward", backward,
         joined(joined({{"dy", "Array", "", "(B,H,T,D), dtype of x: gradient of y"}}, in),
                {{"gradients", "Sequence[str] | None", "None",
                  "names of what is computed, of GatedNormGradients; None: of every input that is there"},
                 {"out", "GatedNormGradients | None", "None",
                  "arrays to write to; those that `gradients` names and it lacks are made"}}),
         1 + kPositional, "GatedNormGradients",
         "Gradients of sum(dy * y) of gated_norm on the same inputs and options.\n\n"
         "All gradients are overwritten, never added to; in float32 or better, deterministic. Raises ValueError as\n"
         "gated_norm does.");
}

}  // namespace headgate::python
