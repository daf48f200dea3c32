// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdio>
#include <string>

#include "headgate/headgate.hpp"

// Computes attention of one query and one key: the weight is 1, so y = sigmoid(z) · v. Catches an exception for bad
// arguments across the library's border.
int main() {
  const float q[] = {1.0F, 2.0F};
  const float k[] = {3.0F, 4.0F};
  const float v[] = {5.0F, -6.0F};
  const float z[] = {0.0F, 1.0F};
  float y[] = {NAN, NAN};
  const headgate::Shape shape{1, 1, 1, 2};

  headgate::AttentionInputs inputs;
  inputs.q = headgate::make_view(q, shape);
  inputs.k = headgate::make_view(k, shape);
  inputs.v = headgate::make_view(v, shape);
  inputs.gate = headgate::make_view(z, shape);
  headgate::AttentionOutputs outputs;
  outputs.y = headgate::make_view(y, shape);
  headgate::attention_forward(outputs, inputs);
  for (int d = 0; d < 2; ++d) {
    if (!(std::abs(y[d] - v[d] / (1.0F + std::exp(-z[d]))) < 1e-5F)) {
      std::fprintf(stderr, "y[%d] = %g\n", d, static_cast<double>(y[d]));
      return 1;
    }
  }

  try {
    headgate::AttentionOptions options;
    options.scale = NAN;
    headgate::attention_forward(outputs, inputs, options);
  } catch (const headgate::Error& error) {
    const bool same_version = std::string(headgate::version()) == HEADGATE_VERSION;
    return same_version && std::string(error.what()).find("scale") != std::string::npos ? 0 : 1;
  }
  std::fprintf(stderr, "a NaN scale was taken\n");
  return 1;
}
