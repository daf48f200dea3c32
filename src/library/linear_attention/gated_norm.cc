// SPDX-License-Identifier: Apache-2.0
#include "library/linear_attention/gated_norm.hpp"

#include <cmath>

#include "library/call/call.hpp"
#include "library/call/gate_fn_check.hpp"
#include "library/call/verbose.hpp"
#include "library/core/gated_norm_rows.hpp"
#include "library/linear_attention/small_work.hpp"

namespace headgate {
namespace {

void check_options(const Call& call, const GatedNormOptions& options, GatedNormProblem& p) {
  p.eps = options.eps;
  if (!(p.eps >= 0.0 && std::isfinite(p.eps))) call.fail("eps is {} but must be at least 0 and finite", p.eps);
  check_gate_fn(call, options.gate_fn);
  p.context = call.context(options.context);
}

GatedNormProblem check_inputs(Call& call, const GatedNormInputs& in, const GatedNormOptions& options) {
  GatedNormProblem p;
  p.inputs = in;
  const Argument x{"x", in.x};
  call.require_given(x);
  call.input(x, {DType::f32, DType::f64, DType::bf16, DType::f16});
  p.dtype = in.x.dtype;
  p.B = in.x.shape[0];
  p.H = in.x.shape[1];
  p.T = in.x.shape[2];
  p.D = in.x.shape[3];
  if (p.D < 1) call.fail("x has shape {}: D is {} but must be at least 1", shape_text(in.x.shape), p.D);
  check_options(call, options, p);
  const Argument weight{"weight", in.weight};
  if (call.given(weight)) {
    call.input(weight, {p.dtype, DType::f32});
    const Shape shared{1, 1, 1, p.D}, of_heads{1, p.H, 1, p.D};
    if (in.weight.shape != shared && in.weight.shape != of_heads) {
      call.fail("weight has shape {} but must be (1,1,1,D) = {} or (1,H,1,D) = {}", shape_text(in.weight.shape),
                shape_text(shared), shape_text(of_heads));
    }
  }
  const Argument gate{"gate", in.gate};
  if (call.given(gate)) {
    call.input(gate, {p.dtype, DType::f32});
    call.shape(gate, "(B,H,T,D)", in.x.shape);
    p.gate_fn = options.gate_fn;
    if (!p.gated()) p.inputs.gate = {};
  }
  return p;
}

/// Sets B and T to 0 if there are no rows. Limits small work to one thread, because starting more threads would take
/// longer than the work.
void fit_to_work(GatedNormProblem& p) {
  if (p.B == 0 || p.H == 0 || p.T == 0) p.B = p.T = 0;
  const double tensors = 2.0 + (p.gated() ? 1.0 : 0.0) + (p.dy.present() ? 1.0 : 0.0);
  const double rows = static_cast<double>(p.B) * static_cast<double>(p.H) * static_cast<double>(p.T);
  if (is_small_work(tensors * rows * static_cast<double>(p.D), p.dtype)) p.context.threads = 1;
}

}  // namespace

void gated_norm_forward(const TensorView& y, const GatedNormInputs& inputs, const GatedNormOptions& options) {
  Call call("gated_norm_forward");
  GatedNormProblem p = check_inputs(call, inputs, options);
  const Argument output{"y", y};
  call.require_given(output);
  call.output(output, {p.dtype});
  call.shape(output, "(B,H,T,D)", inputs.x.shape);
  call.no_overlap();
  p.y = y;
  fit_to_work(p);
  run_on_cpu<kNormInputs, kNormOptions>("gated_norm_forward", p, options, cpu_gated_norm);
}

void gated_norm_backward(const GatedNormGradients& gradients, const GatedNormInputs& inputs, const ConstTensorView& dy,
                         const GatedNormOptions& options) {
  Call call("gated_norm_backward");
  GatedNormProblem p = check_inputs(call, inputs, options);
  const Argument incoming{"dy", dy};
  call.require_given(incoming);
  call.input(incoming, {p.dtype});
  call.shape(incoming, "(B,H,T,D)", inputs.x.shape);
  if (gradients.dgate.present() && inputs.gate.present() && !p.gated()) {
    call.fail("dgate is asked for but gate_fn is none");
  }
  call.gradient({"dx", gradients.dx}, {"x", inputs.x});
  call.gradient({"dweight", gradients.dweight}, {"weight", inputs.weight});
  call.gradient({"dgate", gradients.dgate}, {"gate", inputs.gate});
  call.no_overlap();
  p.dy = dy;
  p.gradients = gradients;
  fit_to_work(p);
  run_on_cpu<kNormInputs, kNormOptions>("gated_norm_backward", p, options, cpu_gated_norm);
}

}  // namespace headgate
