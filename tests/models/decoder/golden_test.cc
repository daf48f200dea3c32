// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "models/decoder/plain_decoder.hpp"
#include "models/decoder/tiny.hpp"
#include "models/io/npy.hpp"
#include "models/layers/adamw.hpp"
#include "models/layers/support.hpp"
#include "support/test_runs.hpp"

// Compares the first step's gradients and the losses of ten steps with PyTorch's, on the same weights
// (golden/make_golden.py). Tolerances use the magnitudes of the formulas, and count the golden file's own roundings in
// f64.

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

/// Applies AdamW as the trainer does: only matrices decay.
void step_all(std::vector<double>& w, std::vector<double>& m, std::vector<double>& v, const std::vector<double>& g,
              const Decoder<double>& decoder, std::int64_t step) {
  for (const Parameter& parameter : decoder.table().entries()) {
    const auto part = [&parameter](auto& numbers) {
      return view_of(numbers, numbers.size()).range(0, parameter.offset, parameter.count);
    };
    layers::adamw_step(part(w), part(m), part(v), part(g),
                       {.lr = 1e-2, .weight_decay = decays(parameter.kind) ? 0.1 : 0.0, .step = step},
                       decoder.context());
  }
}

/// Takes ten steps, whose gradients `move` may change. Returns the losses before each step.
template <class Move>
std::vector<double> train(Decoder<double>& decoder, std::vector<double> w, const TinyBatch& batch, const Move& move) {
  std::vector<double> losses, m(w.size()), v(w.size());
  for (std::size_t step = 0; step < kSteps; ++step) {
    std::vector<double> g(w.size());
    losses.push_back(decoder.loss_and_gradients(g.data(), w.data(), batch.tokens.data(), batch.targets.data()));
    move(g, w, step);
    step_all(w, m, v, g, decoder, static_cast<std::int64_t>(step) + 1);
  }
  return losses;
}

class Golden : public testing::TestWithParam<std::filesystem::path> {
 protected:
  Golden() : golden(read(GetParam())) {
    config.gate = layers::parse_gate(GetParam().stem().string());
    parameters = large_parameters(ParameterTable(config), 17);
  }
  PlainGradients formulas(const std::vector<double>& at) const {
    return differentiate_plainly(config, at, kTinyBatch, batch.tokens.data(), batch.targets.data());
  }
  /// Returns the golden numbers with the magnitudes and terms of the formulas.
  std::vector<layers::Number> golden_gradients() const {
    std::vector<layers::Number> out = formulas(parameters).gradients;
    for (std::size_t i = 0; i < out.size(); ++i) out[i].value = golden[kSteps + i];
    return out;
  }

  DecoderConfig config = tiny_config();
  const TinyBatch batch{config, kTinyBatch, 5};
  std::vector<double> golden;  // ten losses, then the first step's gradients
  std::vector<double> parameters;
};

TEST_P(Golden, Gradients_F64_AreThoseOfPyTorch) {
  ASSERT_EQ(golden.size(), kSteps + parameters.size());
  Decoder<double> decoder(config, kTinyBatch, Purpose::train);
  std::vector<double> g(parameters.size());
  decoder.loss_and_gradients(g.data(), parameters.data(), batch.tokens.data(), batch.targets.data());
  layers::expect_within("gradient", g, golden_gradients());
}

/// Tests f32, in which models are trained. Rounding the parameters adds one relative error to each product.
TEST_P(Golden, Gradients_F32_AreThoseOfPyTorch) {
  Decoder<float> decoder(config, kTinyBatch, Purpose::train);
  const std::vector<float> w = layers::as<float>(parameters);
  std::vector<float> g(w.size());
  const double loss = decoder.loss_and_gradients(g.data(), w.data(), batch.tokens.data(), batch.targets.data());
  layers::Number first = formulas(parameters).loss;
  first.value = golden[0];
  layers::expect_within("loss", static_cast<float>(loss), first);
  layers::expect_within("gradient", g, golden_gradients());
}

/// Each gradient may differ by its tolerance, and later losses by the effect of that. The effect is measured by
/// trainings whose gradients all move by their tolerance, up or down at random.
TEST_P(Golden, Training_SeveralSteps_FollowsPyTorch) {
  constexpr std::uint64_t kTrainings = 4;
  Decoder<double> decoder(config, kTinyBatch, Purpose::train);
  std::vector<layers::Number> loss;
  std::vector<std::vector<double>> tolerances;
  const std::vector<double> losses =
      train(decoder, parameters, batch, [&](const auto& /*g*/, const std::vector<double>& w, std::size_t /*step*/) {
        const PlainGradients of_step = formulas(w);
        loss.push_back(of_step.loss);
        tolerances.emplace_back();
        for (const layers::Number& g : of_step.gradients) {
          tolerances.back().push_back(layers::tolerance_of(DType::f64, g));
        }
      });
  std::vector<double> drift(kSteps, 0.0);
  for (std::uint64_t seed = 1; seed <= kTrainings; ++seed) {
    Draws draws(seed);
    const std::vector<double> moved =
        train(decoder, parameters, batch, [&](std::vector<double>& g, const auto& /*w*/, std::size_t step) {
          for (std::size_t i = 0; i < g.size(); ++i) g[i] += (draws.bits() % 2 == 0 ? 1.0 : -1.0) * tolerances[step][i];
        });
    for (std::size_t step = 0; step < kSteps; ++step) {
      ASSERT_FALSE(std::isnan(moved[step])) << "step " << step;
      drift[step] = std::max(drift[step], std::abs(moved[step] - losses[step]));
    }
  }
  for (std::size_t step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(losses[step], golden[step], drift[step] + layers::tolerance_of(DType::f64, loss[step]))
        << "step " << step;
    EXPECT_LT(drift[step], 1e-6) << "the rule says nothing any more";
  }
}

INSTANTIATE_TEST_SUITE_P(PyTorch, Golden, testing::ValuesIn(items_to_test(golden_files())),
                         [](const testing::TestParamInfo<std::filesystem::path>& file) {
                           std::string name = file.param.stem().string();
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace headgate::models
