// SPDX-License-Identifier: Apache-2.0
#include "headgate/linear_attention.hpp"

#include <nanobind/nanobind.h>

#include <cstddef>

#include "library/core/linear_attention_rows.hpp"
#include "python/headgate/bindings.hpp"
#include "python/headgate/operation_passes.hpp"
#include "python/headgate/operation_tables.hpp"
#include "python/headgate/output_shapes.hpp"

// Bindings of headgate/linear_attention.hpp: linear_attention_forward, its short form `linear_attention`, and
// linear_attention_backward.

namespace headgate::python {
namespace {

struct LinearAttention : LinearAttentionTables {
  static constexpr const char* kOutputsClass = "LinearAttentionOutputs";
  static constexpr const char* kGradientsClass = "LinearAttentionGradients";
  static constexpr std::size_t kPositional = 5;  // number of inputs that may be positional: q, k, v, decay and beta
  static constexpr const char* kLayoutArrays = "q, k, v, decay, beta, y";

  static Shape shape_of(const LinearOutput& row, const LinearAttentionInputs& in) { return python::shape_of(row, in); }
  static DType dtype_of(const LinearOutput& row, const LinearAttentionInputs& in) { return python::dtype_of(row, in); }
};

}  // namespace

void bind_linear_attention(nb::module_& module) {
  module.attr("_linear_rows") = torch_rows<kLinearInputs, kLinearGradients, kLinearOptions, LinearAttentionOptions>();
  bind_passes<LinearAttention>(
      module,
      {.outputs = "What the forward pass of linear attention writes.",
       .gradients = "What the backward pass of linear attention writes. dstate is the gradient of S_0.",
       .result =
           "Gated linear attention with the delta rule: the recurrence of Gated DeltaNet, exact.\n\n"
           "A head keeps a state S (D,Dv) in place of keys and values. For one token after the other, with S the "
           "state\n"
           "that it finds, times e^g with the rules gated and gated_delta:\n"
           "    linear, gated:       S + k v^T\n"
           "    delta, gated_delta:  S + beta k (v - S^T k)^T\n"
           "is the new state, and y = scale S^T q of that.\n\n"
           "Returns y (B,Ho,T,Dv): a tensor of PyTorch where q is one, else an array of NumPy. Raises ValueError, in "
           "one\n"
           "line, on arguments that do not fit. B batch, T tokens, Hq, Hk and Hv heads of q, k and v, Ho the larger of "
           "Hq\n"
           "and Hv, D and Dv head dims from 1 to 256, N sequences: those of a packed batch, else B. States are\n"
           "(N,Hv,D,Dv) whatever the layout. Messages give shapes as (B,H,T,D).",
       .forward =
           "linear_attention, with the state after the last token: the `state` of the call for the next tokens.\n\n"
           "With snapshot_lengths, also states after other tokens. Results are then bitwise those of a call for each\n"
           "part between them.\n\n"
           "Any number of tokens, a prompt, a part of one or a single new token, go on from the state. Raises "
           "ValueError\n"
           "as linear_attention does.",
       .backward =
           "Gradients of sum(dy * y) + sum(dstate * S_T) of linear_attention_forward on the same inputs and "
           "options.\n\n"
           "The states are computed again, from the inputs alone. All gradients are overwritten, never added to; in\n"
           "float32 or better, deterministic. Raises ValueError as linear_attention does."});
}

}  // namespace headgate::python
