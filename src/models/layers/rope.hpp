// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "library/core/words.hpp"
#include "models/layers/arguments.hpp"

namespace headgate::layers {

/// Selects how RoPE's frequencies are scaled for sequences longer than `original_seq_len`. Below, s is the number of
/// rotations that a frequency makes in `original_seq_len` tokens.
/// - linear: divides all frequencies by `factor`.
/// - llama3: divides the slow frequencies (s < low_freq_factor) and keeps the fast ones (s > high_freq_factor).
///   Interpolates the frequencies between them by s.
/// - yarn: works like llama3, but interpolates by the index of the frequency. Also multiplies q and k by
///   `attention_factor`.
enum class RopeScalingKind : std::int32_t { none, linear, llama3, yarn };

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::none;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;  ///< above low_freq_factor
  std::int64_t original_seq_len = 8192;
  bool truncate = true;           ///< yarn: rounds the range of interpolated indices outward to integers
  double attention_factor = 0.0;  ///< yarn: factor that multiplies q and k; 0 means 0.1 · ln(factor) + 1
};

/// Returns the R/2 frequencies of RoPE in radians per token: f = base^(−2i/R) for i = 0 … R/2 − 1, after scaling. base
/// must exceed 1.
/// - linear: f / factor.
/// - llama3 and yarn: w·f + (1 − w)·f / factor, with w clamped to [0, 1].
/// - llama3: w = (s − low_freq_factor) / (high_freq_factor − low_freq_factor), where s = original_seq_len · f / 2π is
///   the number of rotations in original_seq_len tokens.
/// - yarn: w = 1 − (i − first) / (last − first). The frequency with index first makes high_freq_factor rotations, and
///   the frequency with index last makes low_freq_factor rotations. A frequency that makes s rotations has the index
///   R·ln(original_seq_len / (2π·s)) / (2·ln(base)). With `truncate`, first is rounded down and last is rounded up.
///   Then first is raised to at least 0, and last is lowered to at most R − 1.
std::vector<double> rope_frequencies(std::int64_t R, double base, const RopeScaling& scaling = {});

/// Returns the factor that multiplies the rotated features of q and k, which is 1 without yarn.
double rope_attention_factor(const RopeScaling& scaling);

/// Computes the tables cos(T,R/2) = factor · cos θ and sin(T,R/2) = factor · sin θ, where θ(t,i) = positions[t] ·
/// frequencies[i]. R, an even number, is the number of features that RoPE rotates. Computes in f64.
template <typename T>
void rope_tables(View<T, 2> cos, View<T, 2> sin, const View<const std::int64_t, 1>& positions,
                 const std::vector<double>& frequencies, double factor = 1.0);

/// Rotates x(B,T,H,D) in place; row t of the tables is for token t of every sequence. Rotates features i and i + R/2
/// together ("rotate half"): (a, b) → (a·cos − b·sin, b·cos + a·sin). Features from R on do not change.
template <typename T>
void rope_forward(View<T, 4> x, ConstView<Wide<T>, 2> cos, ConstView<Wide<T>, 2> sin, const ExecutionContext& context);

/// Computes the gradient of RoPE's input in place. On entry, dx(B,T,H,D) is the gradient of the rotated tensor. Rotates
/// by −θ, with the same factor.
template <typename T>
void rope_backward(View<T, 4> dx, ConstView<Wide<T>, 2> cos, ConstView<Wide<T>, 2> sin,
                   const ExecutionContext& context);

}  // namespace headgate::layers

namespace headgate {

template <>
struct Words<layers::RopeScalingKind> {
  static constexpr std::array<Word<layers::RopeScalingKind>, 4> kAll{{{layers::RopeScalingKind::none, "none"},
                                                                      {layers::RopeScalingKind::linear, "linear"},
                                                                      {layers::RopeScalingKind::llama3, "llama3"},
                                                                      {layers::RopeScalingKind::yarn, "yarn"}}};
};

}  // namespace headgate
