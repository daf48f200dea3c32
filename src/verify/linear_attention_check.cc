// SPDX-License-Identifier: Apache-2.0
#include "verify/linear_attention_check.hpp"

#include <cstdint>

namespace headgate::verify {
namespace {

/// Returns the number of products in the longest chain of dependent sums within one token. The chain has two or three
/// sums of D products: the norm of k (only with l2_norm), the state times k, and the new state times q.
std::int64_t forward_terms(const LinearCaseSpec& spec) { return (spec.l2_norm ? 3 : 2) * spec.D; }

}  // namespace

std::optional<std::string> check_linear_forward_case(LinearCase& problem, const LinearKernels& kernels,
                                                     WorstError* worst) {
  const LinearAttentionOutputs& out = problem.outputs();
  problem.poison_outputs();
  problem.poison_gradients();
  if (auto error = thrown_by("linear_attention_forward", describing(problem),
                             [&] { kernels.forward(out, problem.forward_inputs(), problem.options()); })) {
    return error;
  }
  const reference::LinearForward& want = problem.expected_forward();
  const auto rule = [&problem](const TensorView& view) {
    Tolerance tolerance = Tolerance::of(problem.spec().rounds_as(), view.dtype, forward_terms(problem.spec()));
    // Kernels with native16 round factors to the dtype of q, even if the snapshots are f32.
    tolerance.saved = unit_roundoff(problem.spec().dtype);
    return tolerance;
  };
  const bool native16 = problem.spec().precision == Precision::native16;
  const reference::LinearForwardArrays* rounded = native16 ? &want.rounded : nullptr;
  const auto of = [rounded](auto member) { return rounded == nullptr ? nullptr : &(rounded->*member); };
  using Arrays = reference::LinearForwardArrays;
  return mismatch_in(
      {{"y", out.y, want.y, want.magnitude.y, of(&Arrays::y), nullptr, rule(out.y)},
       {"new state", out.state, want.state, want.magnitude.state, of(&Arrays::state), nullptr, rule(out.state)},
       {"snapshots", out.snapshots, want.snapshots, want.magnitude.snapshots, of(&Arrays::snapshots), nullptr,
        rule(out.snapshots)}},
      problem, worst);
}

std::optional<std::string> check_linear_backward_case(LinearCase& problem, const LinearKernels& kernels,
                                                      WorstError* worst) {
  const LinearCaseSpec& spec = problem.spec();
  const LinearAttentionGradients& out = problem.gradients();
  problem.poison_outputs();
  problem.poison_gradients();
  if (auto error = thrown_by("linear_attention_backward", describing(problem),
                             [&] { kernels.backward(out, problem.inputs(), problem.incoming(), problem.options()); })) {
    return error;
  }
  const reference::LinearBackward& want = problem.expected_backward();
  const reference::LinearBackwardArrays& m = want.magnitude;
  const std::int64_t row = forward_terms(spec) + spec.Dv;
  const auto rule = [&spec](const TensorView& view, std::int64_t terms) {
    Tolerance tolerance = Tolerance::of(spec.dtype, view.dtype, terms);
    // Kernels with native16 round factors to the dtype of q, even if dstate is f32.
    tolerance.saved = unit_roundoff(spec.dtype);
    return tolerance;
  };
  using Arrays = reference::LinearBackwardArrays;
  const bool native16 = spec.precision == Precision::native16;
  const auto rounded = [&](auto member) { return native16 ? &(want.rounded.*member) : nullptr; };
  const std::int64_t heads = spec.beta == BetaInput::shared ? spec.Hv : 1;
  return mismatch_in(
      {{"dq", out.dq, want.dq, m.dq, rounded(&Arrays::dq), nullptr, rule(out.dq, row + spec.Ho() / spec.Hq)},
       {"dk", out.dk, want.dk, m.dk, rounded(&Arrays::dk), nullptr, rule(out.dk, row + spec.Ho() / spec.Hk)},
       {"dv", out.dv, want.dv, m.dv, rounded(&Arrays::dv), nullptr, rule(out.dv, row)},
       {"ddecay", out.ddecay, want.ddecay, m.ddecay, rounded(&Arrays::ddecay), nullptr, rule(out.ddecay, row)},
       {"dbeta", out.dbeta, want.dbeta, m.dbeta, rounded(&Arrays::dbeta), nullptr, rule(out.dbeta, row + heads)},
       {"dstate", out.dstate, want.dstate, m.dstate, rounded(&Arrays::dstate), nullptr, rule(out.dstate, row)}},
      problem, worst);
}

std::optional<std::string> check_linear_same_bits(LinearCase& problem, const LinearKernels& kernels) {
  return thread_mismatch(problem, [&] {
    problem.poison_outputs();
    problem.poison_gradients();
    kernels.backward(problem.gradients(), problem.inputs(), problem.incoming(), problem.options());
    kernels.forward(problem.outputs(), problem.forward_inputs(), problem.options());
    return problem.written_bytes();
  });
}

std::optional<std::string> check_linear_on_every_target(
    const LinearCaseSpec& spec,
    const std::function<std::optional<std::string>(LinearCase& problem, const std::string& target)>& check) {
  return check_on_implementations<LinearCase>(spec, check);
}

}  // namespace headgate::verify
