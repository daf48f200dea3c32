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
  Matrix Q, K, V;                     // shapes as in WorkedProblem
  std::vector<Matrix> scores;         // per query head (T,S): q kᵀ
  std::vector<Matrix> scaled_scores;  // scores / √D, −∞ for hidden keys
  std::vector<Matrix> weights;        // per query head (T,S): softmax of the scaled scores
  Matrix attention;                   // (T,Hq·Dv)
  std::optional<Matrix> gate_logits;  // Z
  std::optional<Matrix> gate;         // g(Z)
  Matrix gated;                       // (T,Hq·Dv); equals attention without a gate
  std::optional<Matrix> projected;    // (T,C') output after W_o; empty without W_o

  const Matrix& output() const { return projected ? *projected : gated; }
};

/// Solves the problem step by step. Throws Error if a step overflows.
Solution solve(const WorkedProblem& problem);

}  // namespace headgate::explain
