// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headgate/attention.hpp"

// Reads a small attention problem from a JSON file.

namespace headgate::explain {

struct Matrix {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<double> values;  // (rows,cols)

  double operator()(std::int64_t i, std::int64_t j) const { return values[i * cols + j]; }
  double& operator()(std::int64_t i, std::int64_t j) { return values[i * cols + j]; }
};

/// Holds the matrices of a worked problem. Their sizes have been checked against each other.
/// In a matrix of several heads, the heads stand side by side, each in its own columns.
struct WorkedProblem {
  // Either X and its weights are present, or Q, K, V and optionally Z.
  std::optional<Matrix> X;    // (T,C)
  std::optional<Matrix> W_q;  // (C,Hq·D)
  std::optional<Matrix> W_k;  // (C,Hkv·D)
  std::optional<Matrix> W_v;  // (C,Hkv·Dv)
  std::optional<Matrix> W_g;  // gate weights: (C,Hq·Dv) if elementwise, (C,Hq) if headwise
  std::optional<Matrix> W_o;  // (Hq·Dv,C')
  std::optional<Matrix> Q;    // (T,Hq·D)
  std::optional<Matrix> K;    // (S,Hkv·D)
  std::optional<Matrix> V;    // (S,Hkv·Dv)
  std::optional<Matrix> Z;    // gate logits: (T,Hq·Dv) if elementwise, (T,Hq) if headwise; absent: no gate
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  bool causal = false;
  GateFn gate_fn = GateFn::sigmoid;
  bool gate_headwise = false;
};

/// Reads a problem from a JSON file. Throws io::FileError, whose message names the file, the key and the sizes that
/// disagree.
WorkedProblem read_worked_problem(const std::string& path);

}  // namespace headgate::explain
