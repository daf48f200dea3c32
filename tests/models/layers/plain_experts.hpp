// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "models/layers/experts.hpp"
#include "models/layers/magnitude.hpp"

// A plain mixture of experts, written from its formulas, one token after the other.

namespace headgate::layers {

/// gate and up (width,C), down (C,width).
struct PlainExpert {
  std::vector<double> gate, up, down;
  std::vector<double> gate_bias, up_bias, down_bias;  ///< empty: 0
};

struct PlainExperts {
  ExpertsShape shape;
  std::vector<double> h, router, bias, logit_bias, shared_gate;
  std::vector<PlainExpert> experts;
  PlainExpert shared;

  /// Returns out (N,C).
  std::vector<Number> output() const {
    std::vector<Number> out;
    for (std::int64_t n = 0; n < shape.N; ++n) {
      const std::vector<double> x(h.begin() + n * shape.C, h.begin() + (n + 1) * shape.C);
      const std::vector<Number> row = token(x);
      out.insert(out.end(), row.begin(), row.end());
    }
    return out;
  }

 private:
  /// Returns row `row` of a matrix times x.
  template <typename X>
  static Number product(const std::vector<double>& matrix, std::int64_t row, const std::vector<X>& x) {
    Number sum;
    for (std::size_t i = 0; i < x.size(); ++i)
      sum += matrix[static_cast<std::size_t>(row) * x.size() + i] * Number(x[i]);
    return sum;
  }

  std::vector<Number> token(const std::vector<double>& x) const {
    std::vector<Number> logits;
    for (std::int64_t e = 0; e < shape.E; ++e) logits.push_back(plus(product(router, e, x), logit_bias, e));
    std::vector<Number> out(static_cast<std::size_t>(shape.C));
    const std::vector<Number> weights = router_weights(logits);
    const bool is_shifted = shape.activation == ExpertActivation::shifted_swiglu;
    for (std::size_t e = 0; e < experts.size(); ++e) {
      if (weights[e].magnitude > 0.0) add(out, weights[e], experts[e], x, shape.limit, is_shifted);
    }
    if (shape.S == 0) return out;
    add(out, shared_gate.empty() ? Number(1.0) : sigmoid(product(shared_gate, 0, x)), shared, x, shape.shared_limit);
    return out;
  }

  /// Returns the weight of each expert, 0 of those that are not chosen.
  std::vector<Number> router_weights(const std::vector<Number>& logits) const {
    const bool is_softmax = shape.router == ExpertRouter::softmax;
    std::vector<Number> shares;
    Number all;
    for (const Number& logit : logits) {
      shares.push_back(is_softmax ? exp(logit) : sigmoid(logit));
      all += shares.back();
    }
    std::vector<std::size_t> order(logits.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      const auto score = [&](std::size_t e) { return shares[e].value + (bias.empty() ? 0.0 : bias[e]); };
      return score(a) > score(b);
    });
    order.resize(static_cast<std::size_t>(shape.active));
    Number chosen = is_softmax ? 0.0 : 1e-20;
    for (const std::size_t e : order) chosen += shares[e];
    std::vector<Number> weights(logits.size());
    for (const std::size_t e : order) {
      weights[e] = shape.scale * shares[e];
      if (shape.renormalise) {
        weights[e] = weights[e] / chosen;
      } else if (is_softmax) {
        weights[e] = weights[e] / all;
      }
    }
    return weights;
  }

  static Number plus(const Number& x, const std::vector<double>& bias, std::int64_t i) {
    return bias.empty() ? x : x + Number(bias[static_cast<std::size_t>(i)]);
  }

  static Number at_most(const Number& x, double limit) { return x.value > limit ? Number(limit) : x; }

  /// out += weight · expert(x)
  void add(std::vector<Number>& out, const Number& weight, const PlainExpert& expert, const std::vector<double>& x,
           double limit, bool shifted = false) const {
    std::vector<Number> activation;
    const auto width = static_cast<std::int64_t>(expert.gate.size()) / shape.C;
    for (std::int64_t i = 0; i < width; ++i) {
      const Number z = plus(product(expert.gate, i, x), expert.gate_bias, i);
      Number gate = shifted ? z : silu(z), up = plus(product(expert.up, i, x), expert.up_bias, i);
      if (limit > 0.0) {
        gate = at_most(gate, limit);
        up = -at_most(-at_most(up, limit), limit);
      }
      activation.push_back(shifted ? gate * sigmoid(Number(1.702) * gate) * (up + Number(1.0)) : gate * up);
    }
    for (std::size_t c = 0; c < out.size(); ++c) {
      const auto row = static_cast<std::int64_t>(c);
      out[c] += weight * plus(product(expert.down, row, activation), expert.down_bias, row);
    }
  }
};

}  // namespace headgate::layers
