// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/npy.hpp"
#include "layers/adamw.hpp"
#include "models/tiny.hpp"

// Ten steps of training and the first step's gradients against PyTorch's, on the same weights: golden/make_golden.py.

namespace headgate::models {
namespace {

constexpr std::size_t kSteps = 10;

std::vector<std::filesystem::path> golden_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(HEADGATE_GOLDEN_DIR)) {
    if (entry.path().extension() == ".npy") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<double> read(const std::filesystem::path& path) {
  const io::Array array = io::read_npy(path.string());
  EXPECT_EQ(array.dtype, DType::f64);
  const auto* data = reinterpret_cast<const double*>(array.data.get());
  return {data, data + array.numel()};
}

/// AdamW as the trainer uses it: decay on matrices alone.
void step_all(std::vector<double>& w, std::vector<double>& m, std::vector<double>& v, const std::vector<double>& g,
              const ParameterTable& table, std::int64_t step) {
  for (const Parameter& parameter : table.entries()) {
    const std::int64_t at = parameter.offset;
    layers::adamw_step(w.data() + at, m.data() + at, v.data() + at, g.data() + at, parameter.count,
                       {.lr = 1e-2, .weight_decay = decays(parameter.kind) ? 0.1 : 0.0, .step = step});
  }
}

class Golden : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(Golden, TrainsAsPyTorchDoes) {
  DecoderConfig config = tiny_config();
  config.gate = layers::parse_gate(GetParam().stem().string());
  Decoder<double> decoder(config, kTinyBatch, Purpose::train);
  const std::vector<double> expected = read(GetParam());
  std::vector<double> w = large_parameters(decoder.table(), 17), m(w.size()), v(w.size());
  ASSERT_EQ(expected.size(), kSteps + w.size());
  const TinyBatch batch(config, kTinyBatch, 5);
  for (std::size_t step = 0; step < kSteps; ++step) {
    std::vector<double> g(w.size());
    const double loss = decoder.loss_and_gradients(g.data(), w.data(), batch.tokens.data(), batch.targets.data());
    EXPECT_NEAR(loss, expected[step], 1e-9 * expected[step]) << "step " << step;
    for (std::size_t i = 0; step == 0 && i < g.size(); ++i) {
      ASSERT_NEAR(g[i], expected[kSteps + i], 1e-11 + 1e-10 * std::abs(expected[kSteps + i])) << "gradient " << i;
    }
    step_all(w, m, v, g, decoder.table(), static_cast<std::int64_t>(step) + 1);
  }
}

/// The same in f32, as models are trained.
TEST_P(Golden, HasTheSameGradientsInSinglePrecision) {
  DecoderConfig config = tiny_config();
  config.gate = layers::parse_gate(GetParam().stem().string());
  Decoder<float> decoder(config, kTinyBatch, Purpose::train);
  const std::vector<double> expected = read(GetParam());
  const std::vector<double> exact = large_parameters(decoder.table(), 17);
  const std::vector<float> w(exact.begin(), exact.end());
  const TinyBatch batch(config, kTinyBatch, 5);
  std::vector<float> g(w.size());
  const double loss = decoder.loss_and_gradients(g.data(), w.data(), batch.tokens.data(), batch.targets.data());
  EXPECT_NEAR(loss, expected[0], 1e-5 * expected[0]);
  double largest = 0.0, worst = 0.0;
  for (std::size_t i = 0; i < g.size(); ++i) {
    largest = std::max(largest, std::abs(expected[kSteps + i]));
    worst = std::max(worst, std::abs(static_cast<double>(g[i]) - expected[kSteps + i]));
  }
  EXPECT_LT(worst, 2e-5 * largest);
}

INSTANTIATE_TEST_SUITE_P(PyTorch, Golden, testing::ValuesIn(golden_files()),
                         [](const testing::TestParamInfo<std::filesystem::path>& file) {
                           std::string name = file.param.stem().string();
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace headgate::models
