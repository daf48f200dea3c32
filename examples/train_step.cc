// SPDX-License-Identifier: Apache-2.0
// Runs the forward and the backward pass on views of a fused projection, in which each token has a row
// [q | gate | k | v]. Writes the gradients to a buffer of the same layout, for the backward pass of the projection.
// Copies nothing.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "headgate/headgate.hpp"

namespace hg = headgate;

constexpr std::int64_t B = 2, T = 37, Hq = 4, Hkv = 2, D = 24, kRow = (2 * Hq + 2 * Hkv) * D;

/// Returns a view (B,count,T,D) of `count` heads of D features. They start at head `first` of every row in memory
/// (B,T,row).
hg::TensorView heads(std::vector<float>& rows, std::int64_t first, std::int64_t count, std::int64_t row = kRow) {
  return hg::make_view(rows.data() + first * D, {B, count, T, D}, {T * row, D, row, 1});
}

int main() {
  std::vector<float> x(B * T * kRow), dx(x.size()), y(B * T * Hq * D), dy(y.size()), lse(B * Hq * T);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(0.7F * static_cast<float>(i));
  for (std::size_t i = 0; i < dy.size(); ++i) dy[i] = std::cos(0.3F * static_cast<float>(i));

  hg::AttentionInputs in;
  in.q = heads(x, 0, Hq);
  in.gate = heads(x, Hq, Hq);
  in.k = heads(x, 2 * Hq, Hkv);
  in.v = heads(x, 2 * Hq + Hkv, Hkv);
  hg::AttentionOutputs out;
  out.y = heads(y, 0, Hq, Hq * D);  // (B,T,Hq·D), the layout that the output projection needs
  out.lse = hg::make_view(lse.data(), {B, Hq, T, 1});
  hg::AttentionOptions options;
  options.causality = hg::Causality::causal;
  hg::attention_forward(out, in, options);

  hg::AttentionGradients gradients;
  gradients.dq = heads(dx, 0, Hq);
  gradients.dgate = heads(dx, Hq, Hq);
  gradients.dk = heads(dx, 2 * Hq, Hkv);
  gradients.dv = heads(dx, 2 * Hq + Hkv, Hkv);
  hg::attention_backward(gradients, in, {out.y, out.lse, {}}, {heads(dy, 0, Hq, Hq * D), {}}, options);

  // The loss is Σ dy∘y. Its slope along the gradient is the squared norm of the gradient.
  double square = 0.0, rise = 0.0;
  for (const float dxi : dx) square += static_cast<double>(dxi) * static_cast<double>(dxi);
  for (const float step : {0.01F, -0.02F}) {  // x + 0.01 dx, then x − 0.01 dx
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += step * dx[i];
    hg::attention_forward(out, in, options);
    for (std::size_t i = 0; i < y.size(); ++i) rise += (step > 0 ? 1.0 : -1.0) * static_cast<double>(dy[i] * y[i]);
  }
  std::printf("slope along the gradient %.5f, square of the gradient %.5f\n", rise / 0.02, square);
  return std::abs(rise / (0.02 * square) - 1.0) < 1e-3 ? 0 : 1;
}
