// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headgate/linear_attention.hpp"
#include "library/core/random.hpp"

namespace headgate {

/// A contiguous f64 tensor; absent where its shape has a 0.
struct PlainTensor {
  Shape shape{};
  std::vector<double> data;

  double& at(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
    return data[((a * shape[1] + b) * shape[2] + c) * shape[3] + d];
  }
  ConstTensorView view() const { return data.empty() ? ConstTensorView{} : make_view(data.data(), shape); }
};

/// A tiny problem of linear attention in f64: what it has is set before fill().
struct PlainLinearProblem {
  LinearAttentionOptions options;
  std::int64_t B = 1, Hq = 1, Hk = 1, Hv = 1, T = 4, D = 3, Dv = 2;
  std::int64_t decay_width = 0;  // 0: no decay
  std::int64_t beta_heads = 0;   // 0: no beta
  double largest_beta = 1.0;
  bool has_state = false, has_dstate = false;
  std::vector<std::int64_t> cu_seqlens;
  PlainTensor q, k, v, decay, beta, state, dy, dstate;

  std::int64_t Ho() const { return Hq > Hv ? Hq : Hv; }
  std::int64_t N() const { return cu_seqlens.empty() ? B : static_cast<std::int64_t>(cu_seqlens.size()) - 1; }

  PlainLinearProblem& fill(std::uint64_t seed) {
    SplitMix64 random(seed);
    const auto uniform = [&random](PlainTensor& x, const Shape& shape, double low, double high) {
      x.shape = shape;
      x.data.assign(shape[0] * shape[1] * shape[2] * shape[3], 0.0);
      for (double& each : x.data) each = low + (high - low) * random.uniform();
    };
    const double size = std::sqrt(3.0 / static_cast<double>(D));  // |k| is 1 or so
    uniform(q, {B, Hq, T, D}, -1.0, 1.0);
    uniform(k, {B, Hk, T, D}, -size, size);
    uniform(v, {B, Hv, T, Dv}, -1.0, 1.0);
    uniform(decay, {B, Hv, T, decay_width}, -0.7, -0.05);
    uniform(beta, {B, beta_heads, T, 1}, 0.1, largest_beta);
    if (has_state) uniform(state, {N(), Hv, D, Dv}, -1.0, 1.0);
    uniform(dy, {B, Ho(), T, Dv}, -1.0, 1.0);
    if (has_dstate) uniform(dstate, {N(), Hv, D, Dv}, -1.0, 1.0);
    return *this;
  }

  LinearAttentionInputs inputs() const {
    LinearAttentionInputs in{q.view(), k.view(), v.view(), decay.view(), beta.view(), state.view()};
    const auto n = static_cast<std::int64_t>(cu_seqlens.size());
    if (n > 0) in.cu_seqlens = make_vector_view(cu_seqlens.data(), n);
    return in;
  }
  LinearAttentionIncoming incoming() const { return {dy.view(), dstate.view()}; }
};

/// Every rule, with each kind of decay and beta that it takes, and a state in and out of it.
inline std::vector<PlainLinearProblem> problems_of_every_rule() {
  std::vector<PlainLinearProblem> out;
  for (const LinearRule rule : {LinearRule::linear, LinearRule::gated, LinearRule::delta, LinearRule::gated_delta}) {
    const bool gated = rule == LinearRule::gated || rule == LinearRule::gated_delta;
    const bool delta = rule == LinearRule::delta || rule == LinearRule::gated_delta;
    for (const std::int64_t width : {0, 1, 3}) {
      for (const std::int64_t heads : {0, 1, 2}) {
        if ((width > 0 && !gated) || (heads > 0 && !delta)) continue;
        PlainLinearProblem problem;
        problem.options.rule = rule;
        problem.Hq = problem.Hk = problem.Hv = 2;
        problem.decay_width = width;
        problem.beta_heads = heads;
        problem.largest_beta = 1.9;
        problem.has_state = problem.has_dstate = true;
        out.push_back(problem);
      }
    }
  }
  return out;
}

}  // namespace headgate
