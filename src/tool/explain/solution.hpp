// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tool/explain/problem.hpp"

namespace headgate::explain {

/// Holds every step of a problem's solution, in f64.
struct Solution {
  std::int64_t head_dim = 0;          // D
  Matrix Q, K, V;                     // (T,Hq·D), (S,Hkv·D) and (S,Hkv·Dv)
  std::vector<Matrix> scores;         // q kᵀ, one matrix (T,S) per query head
  std::vector<Matrix> scaled_scores;  // scores / √D, or −∞ for hidden keys
  std::vector<Matrix> weights;        // softmax of scaled_scores, one matrix (T,S) per query head
  Matrix attention;                   // (T,Hq·Dv)
  std::optional<Matrix> gate_logits;  // Z
  std::optional<Matrix> gate;         // g(Z)
  Matrix gated;                       // (T,Hq·Dv): gate ∘ attention, or attention if there is no gate
  std::optional<Matrix> projected;    // (T,C'): the product gated · W_o; empty without W_o

  const Matrix& output() const { return projected ? *projected : gated; }
};

/// Solves the problem step by step. Throws Error if a step overflows.
Solution solve(const WorkedProblem& problem);

}  // namespace headgate::explain
