// SPDX-License-Identifier: Apache-2.0
#include "library/linear_attention/problem.hpp"

#include <cmath>

#include "library/call/call.hpp"
#include "library/call/compute_range.hpp"
#include "library/core/linear_words.hpp"
#include "library/core/words.hpp"
#include "library/linear_attention/snapshots.hpp"

namespace headgate {
namespace {

void check_dim(const Call& call, const Argument& arg, std::size_t dim, const char* letter, std::int64_t most) {
  const std::int64_t size = arg.view.shape[dim];
  if (size < 1 || size > most) {
    call.fail("{} has shape {}: {} is {} but must be 1 to {}", arg.name, shape_text(arg.view.shape), letter, size,
              most);
  }
}

void check_heads(const Call& call, const LinearProblem& p) {
  for (const auto& [letter, heads] : {std::pair{"Hq", p.Hq}, {"Hk", p.Hk}, {"Hv", p.Hv}}) {
    if (heads < 1) call.fail("{} is {} but must be at least 1", letter, heads);
  }
  if (p.Hv % p.Hk != 0) call.fail("v has Hv = {} heads, which is not a multiple of the Hk = {} of k", p.Hv, p.Hk);
  if (p.Hq % p.Hv != 0 && p.Hv % p.Hq != 0) {
    call.fail("q has Hq = {} heads and v has Hv = {}, and neither is a multiple of the other", p.Hq, p.Hv);
  }
}

void check_qkv(Call& call, const LinearAttentionInputs& in, LinearProblem& p) {
  const Argument q{"q", in.q}, k{"k", in.k}, v{"v", in.v};
  for (const Argument& arg : {q, k, v}) call.require_given(arg);
  call.input(q, {DType::f32, DType::f64, DType::bf16, DType::f16});
  call.input(k, {in.q.dtype});
  call.input(v, {in.q.dtype});
  for (const Argument& arg : {k, v}) {
    call.same_dim(q, arg, 0, "B");
    call.same_dim(q, arg, 2, "T");
  }
  call.same_dim(q, k, 3, "D");
  check_dim(call, q, 3, "D", kMaxStateDim);
  check_dim(call, v, 3, "Dv", kMaxStateDim);
  p.B = in.q.shape[0];
  p.Hq = in.q.shape[1];
  p.Hk = in.k.shape[1];
  p.Hv = in.v.shape[1];
  p.T = in.q.shape[2];
  p.D = in.q.shape[3];
  p.Dv = in.v.shape[3];
  p.N = p.B;
  check_heads(call, p);
}

void check_decay(Call& call, const LinearAttentionInputs& in, const LinearRuleRow& rule, const LinearProblem& p) {
  const Argument decay{"decay", in.decay};
  if (!call.given(decay)) return;
  if (!rule.has_decay) call.fail("decay is given but the rule {} has none", rule.word);
  call.input(decay, {in.q.dtype, DType::f32});
  const Shape by_head{p.B, p.Hv, p.T, 1}, by_feature{p.B, p.Hv, p.T, p.D};
  if (in.decay.shape != by_head && in.decay.shape != by_feature) {
    call.fail("decay has shape {} but must be (B,Hv,T,1) = {} or (B,Hv,T,D) = {}", shape_text(in.decay.shape),
              shape_text(by_head), shape_text(by_feature));
  }
}

void check_beta(Call& call, const LinearAttentionInputs& in, const LinearRuleRow& rule, const LinearProblem& p) {
  const Argument beta{"beta", in.beta};
  if (!call.given(beta)) return;
  if (!rule.has_delta) call.fail("beta is given but the rule {} has none", rule.word);
  call.input(beta, {in.q.dtype, DType::f32});
  const Shape by_head{p.B, p.Hv, p.T, 1}, for_all{p.B, 1, p.T, 1};
  if (in.beta.shape != by_head && in.beta.shape != for_all) {
    call.fail("beta has shape {} but must be (B,Hv,T,1) = {} or (B,1,T,1) = {}", shape_text(in.beta.shape),
              shape_text(by_head), shape_text(for_all));
  }
}

void check_cu_seqlens(Call& call, const LinearAttentionInputs& in, LinearProblem& p) {
  const Argument bounds{"cu_seqlens", in.cu_seqlens};
  if (!call.given(bounds)) return;
  call.bounds(bounds, "T", p.T);
  if (p.B != 1) call.fail("cu_seqlens is given but B is {} and must be 1", p.B);
  p.N = in.cu_seqlens.shape[3] - 1;
}

/// Checks a state, or the gradient of a state, if it is present. `add` registers the argument as an input or as an
/// output of the call.
template <class Add>
void check_state(const Call& call, const Argument& arg, const LinearProblem& p, const Add& add) {
  if (!call.given(arg)) return;
  add(arg);
  call.shape(arg, "(N,Hv,D,Dv)", {p.N, p.Hv, p.D, p.Dv});
}

void check_options(const Call& call, const LinearAttentionOptions& options, LinearProblem& p) {
  p.scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(p.D)));
  const ComputeRange range = compute_range(p.inputs.q.dtype);
  if (!(std::abs(p.scale) <= range.huge)) call.fail("scale is {} but must be finite in {}", p.scale, range.name);
  p.normalises = options.l2_norm.has_value();
  p.eps = options.l2_norm.value_or(0.0);
  if (!(p.eps >= 0.0) || !std::isfinite(p.eps)) {
    call.fail("l2_norm is {} but must be at least 0 and finite: it is the eps of the norm", p.eps);
  }
  check_enum(call, "precision", options.precision, Precision::native16);
  p.precision = options.precision;
  if (p.precision == Precision::native16 && p.inputs.q.dtype != DType::bf16) {
    call.fail("precision is native16 but q is {}, not bf16", dtype_name(p.inputs.q.dtype));
  }
  p.context = call.context(options.context);
}

void check_like_y(const Call& call, const Argument& arg, const LinearProblem& p) {
  call.shape(arg, "(B,Ho,T,Dv)", {p.B, p.Ho(), p.T, p.Dv});
}

}  // namespace

LinearProblem check_linear_inputs(Call& call, const LinearAttentionInputs& in, const LinearAttentionOptions& options) {
  refuse_snapshots(call, in.snapshot_lengths);
  LinearProblem p;
  p.inputs = in;
  check_enum(call, "rule", options.rule, LinearRule::linear);
  const LinearRuleRow& rule = rule_row(options.rule);
  p.has_delta = rule.has_delta;
  check_qkv(call, in, p);
  check_decay(call, in, rule, p);
  check_beta(call, in, rule, p);
  check_cu_seqlens(call, in, p);
  check_state(call, {"state", in.state}, p, [&call](const Argument& arg) {
    call.input(arg, {DType::f32, DType::f64});
  });
  check_options(call, options, p);
  if (in.beta.present()) p.inputs.beta = broadcast_to(in.beta, {p.B, p.Hv, p.T, 1});
  return p;
}

LinearForwardProblem check_linear_forward(const LinearAttentionOutputs& outputs, const LinearAttentionInputs& inputs,
                                          const LinearAttentionOptions& options) {
  Call call("linear_attention_forward");
  LinearAttentionInputs read = inputs;
  read.snapshot_lengths = {};
  LinearForwardProblem p{check_linear_inputs(call, read, options), outputs};
  const Argument y{"y", outputs.y};
  call.require_given(y);
  call.output(y, {inputs.q.dtype});
  check_like_y(call, y, p);
  check_state(call, {"new state", outputs.state}, p, [&call](const Argument& arg) {
    call.output(arg, {DType::f32, DType::f64});
  });
  p.inputs.snapshot_lengths = check_snapshots(call, inputs.snapshot_lengths, outputs.snapshots,
                                              {DType::f32, DType::f64}, "(N*M,Hv,D,Dv)", {p.N, p.Hv, p.D, p.Dv}, p);
  call.allow_in_place("new state", "state");
  call.no_overlap();
  return p;
}

LinearBackwardProblem check_linear_backward(const LinearAttentionGradients& gradients,
                                            const LinearAttentionInputs& inputs,
                                            const LinearAttentionIncoming& incoming,
                                            const LinearAttentionOptions& options) {
  Call call("linear_attention_backward");
  LinearBackwardProblem p{check_linear_inputs(call, inputs, options), incoming, gradients};
  p.sums_beta = inputs.beta.present() && inputs.beta.shape[1] != p.Hv;
  const Argument dy{"dy", incoming.dy};
  call.require_given(dy);
  call.input(dy, {inputs.q.dtype});
  check_like_y(call, dy, p);
  check_state(call, {"incoming dstate", incoming.dstate}, p, [&call](const Argument& arg) {
    call.input(arg, {DType::f32, DType::f64});
  });
  call.gradient({"dq", gradients.dq}, {"q", inputs.q});
  call.gradient({"dk", gradients.dk}, {"k", inputs.k});
  call.gradient({"dv", gradients.dv}, {"v", inputs.v});
  call.gradient({"ddecay", gradients.ddecay}, {"decay", inputs.decay});
  call.gradient({"dbeta", gradients.dbeta}, {"beta", inputs.beta});
  call.gradient({"dstate", gradients.dstate}, {"state", inputs.state});
  call.no_overlap();
  return p;
}

}  // namespace headgate
