// SPDX-License-Identifier: Apache-2.0
// Gated attention of six tokens, forward and backward. docs/tutorials/first-attention.md explains each step.
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <vector>

#include "headgate/headgate.hpp"

namespace hg = headgate;

int main() {
  // One sequence of six tokens, two heads, four features of a head: (B,H,T,D).
  constexpr std::size_t kHeads = 2, kTokens = 6, kFeatures = 4;
  const hg::Shape vectors{1, kHeads, kTokens, kFeatures};
  const hg::Shape numbers{1, kHeads, kTokens, 1};  // one number for each head and token

  // In a model, projections of the tokens give q, k, v and the gate's logits z.
  const auto wave = [](std::size_t count, float step) {
    std::vector<float> x(count);
    for (std::size_t i = 0; i < count; ++i) x[i] = std::sin(step * static_cast<float>(i + 1));
    return x;
  };
  const std::size_t size = kHeads * kTokens * kFeatures;
  auto q = wave(size, 0.7F), k = wave(size, 1.3F), v = wave(size, 0.4F);
  std::vector<float> z(kHeads * kTokens, 2.0F);                       // head 0 is open: sigmoid(2) = 0.88
  for (std::size_t t = 0; t < kTokens; ++t) z[kTokens + t] = -20.0F;  // head 1 is closed

  // Views name memory and its shape; nothing is copied.
  hg::AttentionInputs in;
  in.q = hg::make_view(q.data(), vectors);
  in.k = hg::make_view(k.data(), vectors);
  in.v = hg::make_view(v.data(), vectors);
  in.gate = hg::make_view(z.data(), numbers);

  // Forward: y = sigmoid(z) * softmax(q k^T / sqrt(D)) v. Token t sees tokens 0 ... t.
  std::vector<float> y(size), lse(kHeads * kTokens);
  hg::AttentionOutputs out;
  out.y = hg::make_view(y.data(), vectors);
  out.lse = hg::make_view(lse.data(), numbers);  // log of the softmax's sum, which the backward pass needs
  hg::AttentionOptions options;
  options.causality = hg::Causality::causal;
  try {
    hg::attention_forward(out, in, options);
  } catch (const hg::Error& error) {  // one line that names the argument and its sizes
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }

  // Backward: the gradients of a loss, here the sum of y, whose derivative dy is 1 everywhere.
  const std::vector<float> dy(size, 1.0F);
  std::vector<float> dq(size), dk(size), dv(size), dz(z.size());
  hg::AttentionIncoming incoming;
  incoming.dy = hg::make_view(dy.data(), vectors);
  hg::AttentionGradients gradients;
  gradients.dq = hg::make_view(dq.data(), vectors);
  gradients.dk = hg::make_view(dk.data(), vectors);
  gradients.dv = hg::make_view(dv.data(), vectors);
  gradients.dgate = hg::make_view(dz.data(), numbers);
  hg::attention_backward(gradients, in, {out.y, out.lse, {}}, incoming, options);

  const auto largest = [](const std::vector<float>& x, std::size_t head) {
    const std::size_t part = x.size() / kHeads;
    float most = 0.0F;
    for (std::size_t i = head * part; i < (head + 1) * part; ++i) most = std::fmax(most, std::abs(x[i]));
    return static_cast<double>(most);
  };
  std::printf("head  gate  max |y|  max |dq|  max |dv|  max |dz|\n");
  for (std::size_t h = 0; h < kHeads; ++h) {
    const double gate = 1.0 / (1.0 + std::exp(-static_cast<double>(z[h * kTokens])));
    std::printf("%4zu  %4.2f  %7.4f  %8.4f  %8.4f  %8.4f\n", h, gate, largest(y, h), largest(dq, h), largest(dv, h),
                largest(dz, h));
  }

  // Check the gradient: move z of the last token of head 0 a little, and see how much the loss moves.
  const auto loss = [&y] {
    double sum = 0.0;
    for (const float value : y) sum += static_cast<double>(value);
    return sum;
  };
  constexpr float kStep = 0.01F;
  const std::size_t last = kTokens - 1;
  z[last] += kStep;
  hg::attention_forward(out, in, options);
  const double above = loss();
  z[last] -= 2 * kStep;
  hg::attention_forward(out, in, options);
  const double slope = (above - loss()) / (2.0 * static_cast<double>(kStep));
  std::printf("dz of head 0, token %zu: %.4f; by differences %.4f\n", last, static_cast<double>(dz[last]), slope);
  return std::abs(slope - static_cast<double>(dz[last])) < 1e-3 && largest(dq, 1) < 1e-6 ? 0 : 1;
}
