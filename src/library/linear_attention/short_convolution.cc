// SPDX-License-Identifier: Apache-2.0
#include "library/linear_attention/short_convolution.hpp"

#include "library/call/call.hpp"
#include "library/call/gate_fn_check.hpp"
#include "library/call/verbose.hpp"
#include "library/core/short_convolution_rows.hpp"
#include "library/linear_attention/small_work.hpp"
#include "library/linear_attention/snapshots.hpp"

namespace headgate {
namespace {

/// Argument names in error messages. They distinguish the old and the new state, which are both members named `state`.
constexpr const char* kOldState = "inputs.state";
constexpr const char* kNewState = "outputs.state";

/// Checks x and weight. Sets the sizes of the problem that they determine.
void check_x_and_weight(Call& call, const ShortConvolutionInputs& in, ShortConvolutionProblem& p) {
  const Argument x{"x", in.x};
  const Argument weight{"weight", in.weight};
  call.require_given(x);
  call.input(x, {DType::f32, DType::f64, DType::bf16, DType::f16});
  p.dtype = in.x.dtype;
  p.B = in.x.shape[0];
  p.T = in.x.shape[2];
  p.C = in.x.shape[3];
  call.shape(x, "(B,1,T,C)", {p.B, 1, p.T, p.C});
  call.require_given(weight);
  call.input(weight, {p.dtype, DType::f32});
  p.K = in.weight.shape[3];
  if (p.K < kMinTaps || p.K > kMaxTaps) {
    call.fail("weight has shape {}: K is {} but must be {} to {}", shape_text(in.weight.shape), p.K, kMinTaps,
              kMaxTaps);
  }
  call.shape(weight, "(1,1,C,K)", {1, 1, p.C, p.K});
}

/// Checks an optional state (N,1,K−1,C), which holds K−1 rows of x for each sequence. `reads` is true for an input and
/// false for an output.
void check_state(Call& call, const Argument& state, const ShortConvolutionProblem& p, bool reads) {
  if (!call.given(state)) return;
  reads ? call.input(state, {p.dtype, DType::f32}) : call.output(state, {p.dtype, DType::f32});
  call.shape(state, "(N,1,K-1,C)", {p.N, 1, p.K - 1, p.C});
}

ShortConvolutionProblem check_inputs(Call& call, const ShortConvolutionInputs& in,
                                     const ShortConvolutionOptions& options) {
  refuse_snapshots(call, in.snapshot_lengths);
  ShortConvolutionProblem p;
  p.inputs = in;
  check_x_and_weight(call, in, p);
  if (options.activation != GateFn::silu && options.activation != GateFn::none) {
    call.fail("activation is {} but must be silu or none", gate_fn_text(options.activation));
  }
  p.activation = options.activation;
  p.context = call.context(options.context);
  const Argument bias{"bias", in.bias};
  if (call.given(bias)) {
    call.input(bias, {p.dtype, DType::f32});
    call.shape(bias, "(1,1,1,C)", {1, 1, 1, p.C});
  }
  p.N = p.B;
  const Argument bounds{"cu_seqlens", in.cu_seqlens};
  if (call.given(bounds)) {
    if (p.B != 1) {
      call.fail("cu_seqlens is given but x has shape {}: B is {} but must be 1", shape_text(in.x.shape), p.B);
    }
    call.bounds(bounds, "T", p.T);
    p.N = in.cu_seqlens.shape[3] - 1;
  }
  check_state(call, {kOldState, in.state}, p, true);
  return p;
}

/// Sets B, T and N to 0 if there is nothing to write. `states` is the number of states to write. Limits small work to
/// one thread, because starting more threads would take longer than the work.
void fit_to_work(ShortConvolutionProblem& p, std::int64_t states) {
  if (p.C == 0 || p.T == 0) p.B = p.T = 0;
  if (p.C == 0 || (p.T == 0 && states == 0)) p.N = 0;
  const double rows = 2.0 * static_cast<double>(p.rows()) + static_cast<double>(p.K) +
                      2.0 * static_cast<double>(states) * static_cast<double>(p.K - 1);
  if (is_small_work(rows * static_cast<double>(p.C), p.dtype)) p.context.threads = 1;
}

}  // namespace

void short_convolution_forward(const ShortConvolutionOutputs& outputs, const ShortConvolutionInputs& inputs,
                               const ShortConvolutionOptions& options) {
  Call call("short_convolution_forward");
  ShortConvolutionInputs read = inputs;
  read.snapshot_lengths = {};
  ShortConvolutionProblem p = check_inputs(call, read, options);
  const Argument y{"y", outputs.y};
  call.require_given(y);
  call.output(y, {p.dtype});
  call.shape(y, "(B,1,T,C)", inputs.x.shape);
  check_state(call, {kNewState, outputs.state}, p, false);
  p.inputs.snapshot_lengths = check_snapshots(call, inputs.snapshot_lengths, outputs.snapshots, {p.dtype, DType::f32},
                                              "(N*M,1,K-1,C)", {p.N, 1, p.K - 1, p.C}, p);
  call.allow_in_place(kNewState, kOldState);
  call.no_overlap();
  p.outputs = outputs;
  fit_to_work(p, p.N * p.states());
  run_on_cpu<kConvolutionInputs, kConvolutionOptions>("short_convolution_forward", p, options, cpu_short_convolution);
}

void short_convolution_backward(const ShortConvolutionGradients& gradients, const ShortConvolutionInputs& inputs,
                                const ShortConvolutionIncoming& incoming, const ShortConvolutionOptions& options) {
  Call call("short_convolution_backward");
  ShortConvolutionProblem p = check_inputs(call, inputs, options);
  const Argument dy{"dy", incoming.dy};
  call.require_given(dy);
  call.input(dy, {p.dtype});
  call.shape(dy, "(B,1,T,C)", inputs.x.shape);
  check_state(call, {"incoming.dstate", incoming.dstate}, p, true);
  call.gradient({"dx", gradients.dx}, {"x", inputs.x});
  call.gradient({"dweight", gradients.dweight}, {"weight", inputs.weight});
  call.gradient({"dbias", gradients.dbias}, {"bias", inputs.bias});
  call.gradient({"gradients.dstate", gradients.dstate}, {kOldState, inputs.state});
  call.no_overlap();
  p.incoming = incoming;
  p.gradients = gradients;
  fit_to_work(p, gradients.dstate.present() ? p.N : 0);
  run_on_cpu<kConvolutionInputs, kConvolutionOptions>("short_convolution_backward", p, options,
                                                      cpu_short_convolution_backward);
}

}  // namespace headgate
