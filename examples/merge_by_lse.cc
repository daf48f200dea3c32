// SPDX-License-Identifier: Apache-2.0
// Splits the keys in two parts, as if two machines or two cache pages held them. Computes attention to each part
// without the gate, merges the results by their log-sum-exp, and applies the gate once (docs/reference/math.md, section
// 6). Then computes the gradients of the second part from its keys and the merged result.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "headgate/headgate.hpp"

namespace hg = headgate;

int main() {
  constexpr std::int64_t H = 4, T = 7, S = 50, D = 16, kSplit = 20;
  const auto wave = [](std::int64_t n, double step) {
    std::vector<double> x;
    for (std::int64_t i = 0; i < n; ++i) x.push_back(std::sin(step * static_cast<double>(i)));
    return x;
  };
  const auto q = wave(H * T * D, 0.11), k = wave(H * S * D, 0.37), v = wave(H * S * D, 0.71), z = wave(H * T, 1.3);
  const auto dy = wave(H * T * D, 0.23);

  hg::AttentionInputs in;
  in.q = hg::make_view(q.data(), {1, H, T, D});
  in.k = hg::make_view(k.data(), {1, H, S, D});
  in.v = hg::make_view(v.data(), {1, H, S, D});
  in.gate = hg::make_view(z.data(), {1, H, T, 1});
  hg::AttentionOptions options;
  options.causality = hg::Causality::causal;

  // The output of T queries per head, and its log-sum-exp.
  struct Rows {
    std::vector<double> y = std::vector<double>(H * T * D), lse = std::vector<double>(H * T);
    hg::AttentionOutputs outputs() {
      hg::AttentionOutputs out;
      out.y = hg::make_view(y.data(), {1, H, T, D});
      out.lse = hg::make_view(lse.data(), {1, H, T, 1});
      return out;
    }
  };
  Rows whole, first, second, merged;
  hg::attention_forward(whole.outputs(), in, options);

  hg::KeyRangeVectors vectors[2];
  hg::AttentionInputs ranges[2] = {hg::narrow_keys(in, 0, kSplit, vectors[0]),
                                   hg::narrow_keys(in, kSplit, S, vectors[1])};
  for (auto& range : ranges) range.gate = {};
  hg::attention_forward(first.outputs(), ranges[0], options);
  hg::attention_forward(second.outputs(), ranges[1], options);
  const std::vector<hg::MergePart> parts{{first.outputs().y, first.outputs().lse},
                                         {second.outputs().y, second.outputs().lse}};
  hg::attention_merge(merged.outputs(), parts, in.gate, options);

  double worst = 0.0;
  const auto compare = [&worst](const double* a, const double* b, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) worst = std::fmax(worst, std::abs(a[i] - b[i]));
  };
  compare(merged.y.data(), whole.y.data(), H * T * D);
  compare(merged.lse.data(), whole.lse.data(), H * T);

  // Computes dk of the second part's keys twice: from all keys, and from only these keys with the merged y and lse.
  std::vector<double> dk(H * S * D), dk_part(H * S * D);
  hg::AttentionIncoming incoming;
  incoming.dy = hg::make_view(dy.data(), {1, H, T, D});
  hg::AttentionGradients gradients;
  gradients.dk = hg::make_view(dk.data(), {1, H, S, D});
  hg::attention_backward(gradients, in, {whole.outputs().y, whole.outputs().lse, {}}, incoming, options);
  gradients.dk = hg::narrow(hg::make_view(dk_part.data(), {1, H, S, D}), 2, kSplit, S);
  ranges[1].gate = in.gate;
  hg::attention_backward(gradients, ranges[1], {merged.outputs().y, merged.outputs().lse, {}}, incoming, options);
  for (std::int64_t h = 0; h < H; ++h) {
    const std::int64_t at = (h * S + kSplit) * D;
    compare(dk.data() + at, dk_part.data() + at, (S - kSplit) * D);
  }
  std::printf("merged against whole: largest difference %.1e\n", worst);
  return worst < 1e-12 ? 0 : 1;
}
