// SPDX-License-Identifier: Apache-2.0
// Computes a padded batch of sequences of different lengths, with a learned sink. Each token sees itself and the two
// tokens before it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <vector>

#include "headgate/headgate.hpp"

namespace hg = headgate;

int main() {
  constexpr std::int64_t B = 2, T = 6, D = 4, kLeft = 2;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::int32_t lengths[B] = {6, 3};
  const float sink[] = {0.0F};  // a logit of 0 adds exp(0) = 1 to the denominator: "off-by-one" softmax
  std::vector<float> q(B * T * D), k(B * T * D), v(B * T * D), y(B * T * D), lse(B * T);
  for (std::int64_t i = 0; i < B * T * D; ++i) {
    const bool padding = i / D % T >= lengths[i / (T * D)];
    q[i] = std::sin(0.5F * static_cast<float>(i));
    k[i] = padding ? nan : std::cos(0.4F * static_cast<float>(i));  // keys beyond the length are never read
    v[i] = padding ? nan : std::sin(0.8F * static_cast<float>(i));
  }

  hg::AttentionInputs in;
  in.q = hg::make_view(q.data(), {B, 1, T, D});
  in.k = hg::make_view(k.data(), {B, 1, T, D});
  in.v = hg::make_view(v.data(), {B, 1, T, D});
  in.key_lengths = hg::make_vector_view(lengths, B);
  in.sinks = hg::make_vector_view(sink, 1);
  hg::AttentionOptions options;
  options.causality = hg::Causality::causal;
  options.window_left = kLeft;
  hg::AttentionOutputs out;
  out.y = hg::make_view(y.data(), {B, 1, T, D});
  out.lse = hg::make_view(lse.data(), {B, 1, T, 1});
  hg::attention_forward(out, in, options);

  // Computes the same by definition. T = S, so query i is at the position of key i.
  double worst = 0.0;
  for (std::int64_t b = 0; b < B; ++b) {
    for (std::int64_t i = 0; i < T; ++i) {
      double sum = std::exp(sink[0]), o[D] = {};
      for (std::int64_t j = std::max<std::int64_t>(i - kLeft, 0); j <= i && j < lengths[b]; ++j) {
        double dot = 0.0;
        for (std::int64_t d = 0; d < D; ++d) dot += q[(b * T + i) * D + d] * k[(b * T + j) * D + d];
        const double weight = std::exp(dot / std::sqrt(D));
        sum += weight;
        for (std::int64_t d = 0; d < D; ++d) o[d] += weight * v[(b * T + j) * D + d];
      }
      worst = std::fmax(worst, std::abs(lse[b * T + i] - std::log(sum)));
      for (std::int64_t d = 0; d < D; ++d) worst = std::fmax(worst, std::abs(y[(b * T + i) * D + d] - o[d] / sum));
    }
  }
  std::printf("against the definition: largest difference %.1e\n", worst);
  return worst < 1e-6 ? 0 : 1;
}
