// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "library/core/words.hpp"
#include "models/layers/arguments.hpp"

namespace headgate::layers {

/// How a model for longer sequences slows the angles of a shorter one down. linear: all by `factor`. llama3: those that
/// turn less than `low_freq_factor` times in `original_seq_len` tokens by `factor`, those that turn more than
/// `high_freq_factor` times not at all, and between the two by what lies between.
enum class RopeScalingKind : std::int32_t { none, linear, llama3 };

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::none;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;  ///< above low_freq_factor
  std::int64_t original_seq_len = 8192;
};

/// Radians a token, (R/2): f(i) = base^(−2i/R), slowed down. With s = original_seq_len · f / 2π turns, llama3 gives f
/// for s > high, f / factor for s < low, else w·f + (1 − w)·f / factor with w = (s − low) / (high − low).
std::vector<double> rope_frequencies(std::int64_t R, double base, const RopeScaling& scaling = {});

/// The angles of tokens at `positions`(T): θ(t,i) = positions[t] · frequencies[i], i < R/2, where the first R features
/// of a head turn, R even. cos(T,R/2) =, sin(T,R/2) =. Computed in f64.
template <typename T>
void rope_tables(View<T, 2> cos, View<T, 2> sin, const View<const std::int64_t, 1>& positions,
                 const std::vector<double>& frequencies);

/// In place on x(B,T,H,D), whose sequences have the same positions: token t of each turns by row t of the tables.
/// Features from R on stay. The "rotate half" pairing of features i and i + R/2:
/// (a, b) → (a·cos − b·sin, b·cos + a·sin).
template <typename T>
void rope_forward(View<T, 4> x, ConstView<T, 2> cos, ConstView<T, 2> sin, const ExecutionContext& context);

/// In place on dx(B,T,H,D): the gradient turns back, by −θ.
template <typename T>
void rope_backward(View<T, 4> dx, ConstView<T, 2> cos, ConstView<T, 2> sin, const ExecutionContext& context);

}  // namespace headgate::layers

namespace headgate {

template <>
struct Words<layers::RopeScalingKind> {
  static constexpr std::array<Word<layers::RopeScalingKind>, 3> kAll{{{layers::RopeScalingKind::none, "none"},
                                                                      {layers::RopeScalingKind::linear, "linear"},
                                                                      {layers::RopeScalingKind::llama3, "llama3"}}};
};

}  // namespace headgate
