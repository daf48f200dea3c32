// SPDX-License-Identifier: Apache-2.0
// Computes sequences of different lengths in one call, without padding: a prompt of 5 tokens, one new token of a
// sequence with 9 keys in its cache, and an empty sequence. The results are bitwise identical to separate calls.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "headgate/headgate.hpp"

namespace hg = headgate;

int main() {
  constexpr std::int64_t H = 2, D = 8, N = 3;
  const std::int32_t cu_q[N + 1] = {0, 5, 6, 6};    // rows of q: 5, 1 and 0 queries
  const std::int32_t cu_k[N + 1] = {0, 5, 14, 14};  // rows of k and v: 5, 9 and 0 keys
  const std::int64_t T = cu_q[N], S = cu_k[N];
  const auto wave = [](std::int64_t n, float step) {
    std::vector<float> x;
    for (std::int64_t i = 0; i < n; ++i) x.push_back(std::sin(step * static_cast<float>(i)));
    return x;
  };
  const auto q = wave(H * T * D, 0.11F), k = wave(H * S * D, 0.37F), v = wave(H * S * D, 0.71F);

  hg::AttentionInputs in;
  in.q = hg::make_view(q.data(), {1, H, T, D}, {0, D, H * D, 1});  // (T,H,D) memory
  in.k = hg::make_view(k.data(), {1, H, S, D}, {0, D, H * D, 1});
  in.v = hg::make_view(v.data(), {1, H, S, D}, {0, D, H * D, 1});
  in.cu_seqlens_q = hg::make_vector_view(cu_q, N + 1);
  in.cu_seqlens_k = hg::make_vector_view(cu_k, N + 1);
  hg::AttentionOptions options;
  options.causality = hg::Causality::causal;  // the last query of a sequence is at its last key

  std::vector<float> y(H * T * D);
  hg::AttentionOutputs out;
  out.y = hg::make_view(y.data(), {1, H, T, D}, {0, D, H * D, 1});
  hg::attention_forward(out, in, options);

  bool same = true;
  for (std::int64_t n = 0; n < N; ++n) {
    hg::AttentionInputs own;
    own.q = hg::narrow(in.q, 2, cu_q[n], cu_q[n + 1]);
    own.k = hg::narrow(in.k, 2, cu_k[n], cu_k[n + 1]);
    own.v = hg::narrow(in.v, 2, cu_k[n], cu_k[n + 1]);
    const std::int64_t rows = own.q.shape[2];
    std::vector<float> alone(H * rows * D);
    hg::AttentionOutputs own_out;
    own_out.y = hg::make_view(alone.data(), {1, H, rows, D}, {0, D, H * D, 1});
    hg::attention_forward(own_out, own, options);
    for (std::size_t i = 0; i < alone.size(); ++i) same = same && alone[i] == y[cu_q[n] * H * D + i];
    std::printf("sequence %d: %d queries, %d keys\n", static_cast<int>(n), static_cast<int>(rows),
                static_cast<int>(cu_k[n + 1] - cu_k[n]));
  }
  std::printf("packed and alone: %s\n", same ? "the same bits" : "DIFFERENT");
  return same ? 0 : 1;
}
