// SPDX-License-Identifier: Apache-2.0
// Keys in two parts, as two machines or two cache pages may hold them: each part is attended to without a gate, the
// parts are merged by their log-sum-exp, and the gate comes once, after the merge (docs/MATH.md, section 6).
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "headgate/headgate.hpp"

namespace hg = headgate;

int main() {
  constexpr std::int64_t H = 4, T = 7, S = 50, D = 16;
  const auto wave = [](std::int64_t n, double step) {
    std::vector<double> x;
    for (std::int64_t i = 0; i < n; ++i) x.push_back(std::sin(step * static_cast<double>(i)));
    return x;
  };
  const auto q = wave(H * T * D, 0.11), k = wave(H * S * D, 0.37), v = wave(H * S * D, 0.71), z = wave(H * T, 1.3);

  // Keys [first, first + count) of every head: a view into the same memory. Ungated output and lse of that part.
  const auto part = [&](std::int64_t first, std::int64_t count, std::vector<double>& o, std::vector<double>& lse) {
    hg::AttentionInputs in;
    in.q = hg::make_view(q.data(), {1, H, T, D});
    in.k = hg::make_view(k.data() + first * D, {1, H, count, D}, {H * S * D, S * D, D, 1});
    in.v = hg::make_view(v.data() + first * D, {1, H, count, D}, {H * S * D, S * D, D, 1});
    o.resize(H * T * D);
    lse.resize(H * T);
    hg::AttentionOutputs out;
    out.y = hg::make_view(o.data(), {1, H, T, D});
    out.lse = hg::make_view(lse.data(), {1, H, T, 1});
    hg::attention_forward(out, in);
  };
  std::vector<double> o1, lse1, o2, lse2, o, lse;
  part(0, 20, o1, lse1);
  part(20, S - 20, o2, lse2);
  part(0, S, o, lse);

  double worst = 0.0;
  for (std::size_t row = 0; row < H * T; ++row) {
    const double top = std::fmax(lse1[row], lse2[row]);
    const double merged_lse = top + std::log(std::exp(lse1[row] - top) + std::exp(lse2[row] - top));
    const double gate = 1.0 / (1.0 + std::exp(-z[row]));  // headwise
    worst = std::fmax(worst, std::abs(merged_lse - lse[row]));
    for (std::size_t x = row * D; x < (row + 1) * D; ++x) {
      const double merged = std::exp(lse1[row] - merged_lse) * o1[x] + std::exp(lse2[row] - merged_lse) * o2[x];
      worst = std::fmax(worst, std::abs(gate * merged - gate * o[x]));
    }
  }
  std::printf("merged against whole: largest difference %.1e\n", worst);
  return worst < 1e-12 ? 0 : 1;
}
