// SPDX-License-Identifier: Apache-2.0
// One forward pass: y = sigmoid(z) ∘ softmax(q kᵀ / √D) v, causal.
#include <cmath>
#include <cstdio>
#include <vector>

#include "headgate/headgate.hpp"

int main() {
  const headgate::Shape shape{2, 8, 100, 64};  // (B,H,T,D), contiguous
  const std::size_t n = 2 * 8 * 100 * 64;
  std::vector<float> q(n), k(n), v(n), z(n), y(n);
  for (std::size_t i = 0; i < n; ++i) {
    q[i] = std::sin(0.1F * static_cast<float>(i));
    k[i] = std::cos(0.3F * static_cast<float>(i));
    v[i] = std::sin(0.7F * static_cast<float>(i));
    z[i] = std::cos(0.9F * static_cast<float>(i));
  }

  headgate::AttentionInputs in;
  in.q = headgate::make_view(q.data(), shape);
  in.k = headgate::make_view(k.data(), shape);
  in.v = headgate::make_view(v.data(), shape);
  in.gate = headgate::make_view(z.data(), shape);  // logits; without this, there is no gate
  headgate::AttentionOutputs out;
  out.y = headgate::make_view(y.data(), shape);
  headgate::AttentionOptions options;
  options.causality = headgate::Causality::causal;
  try {
    headgate::attention_forward(out, in, options);
  } catch (const headgate::Error& error) {  // its message is one line that names the argument
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }

  // The first query sees only the first key. Its weight is 1, so y = sigmoid(z) ∘ v.
  for (std::size_t d = 0; d < 64; ++d) {
    const float expected = v[d] / (1.0F + std::exp(-z[d]));
    if (!(std::abs(y[d] - expected) < 1e-6F)) {
      std::fprintf(stderr, "y[%zu] is %g, not %g\n", d, static_cast<double>(y[d]), static_cast<double>(expected));
      return 1;
    }
  }
  std::printf("y[0..3] = %.4f %.4f %.4f\n", static_cast<double>(y[0]), static_cast<double>(y[1]),
              static_cast<double>(y[2]));
  return 0;
}
