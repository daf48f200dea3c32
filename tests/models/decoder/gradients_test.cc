// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "models/decoder/plain_decoder.hpp"
#include "models/decoder/tiny.hpp"
#include "models/layers/support.hpp"
#include "support/test_runs.hpp"

// Compares the gradients of whole decoders: each entry with the formulas, differentiated step by step, in f64 and f32;
// and each tensor with central differences of the loss.

namespace headgate::models {
namespace {

/// Holds a decoder of T with its loss and gradients at one set of parameters.
template <typename T>
class Checked {
 public:
  Checked(const DecoderConfig& config, const std::vector<double>& values, const TinyBatch& batch,
          Purpose purpose = Purpose::train)
      : decoder_(config, kTinyBatch, purpose), batch_(batch), values_(values), gradients_(values.size()) {
    loss_ = decoder_.loss_and_gradients(gradients_.data(), layers::as<Wide<T>>(values).data(), batch_.tokens.data(),
                                        batch_.targets.data());
  }

  double loss() const { return loss_; }
  const std::vector<Wide<T>>& gradients() const { return gradients_; }

  /// Returns the loss at the parameters moved by step · direction, which starts at `first`.
  double loss_at(std::size_t first, const std::vector<double>& direction, double step) {
    std::vector<double> moved = values_;
    for (std::size_t i = 0; i < direction.size(); ++i) moved[first + i] += step * direction[i];
    return decoder_.loss(layers::as<Wide<T>>(moved).data(), batch_.tokens.data(), batch_.targets.data());
  }

 private:
  Decoder<T> decoder_;
  const TinyBatch& batch_;
  std::vector<double> values_;
  std::vector<Wide<T>> gradients_;
  double loss_ = 0.0;
};

/// Checks the loss, and the errors of each tensor's gradient together, against what roundings of every result to bf16
/// would make of them. A magnitude is the standard deviation that relative roundings of size 1 cause.
void check_bf16(const Checked<BFloat16>& checked, const ParameterTable& table, const PlainGradients& expected) {
  constexpr double kRounding = 0x1p-9, kDeviations = 3.0;
  EXPECT_NEAR(checked.loss(), expected.loss.value, kDeviations * kRounding * expected.loss.magnitude);
  for (const Parameter& parameter : table.entries()) {
    double error = 0.0, deviation = 0.0;
    for (std::int64_t i = parameter.offset; i < parameter.offset + parameter.count; ++i) {
      const layers::Number& exact = expected.gradients[static_cast<std::size_t>(i)];
      error = std::hypot(error, static_cast<double>(checked.gradients()[static_cast<std::size_t>(i)]) - exact.value);
      deviation = std::hypot(deviation, kRounding * exact.magnitude);
    }
    EXPECT_LE(error, kDeviations * deviation) << parameter.name;
  }
}

/// Checks all entries of a tensor at once, along random signs. Differences depend on no formula but the loss.
void check_differences(Checked<double>& checked, const Parameter& parameter, const PlainGradients& expected) {
  Draws draws(static_cast<std::uint64_t>(parameter.offset));
  std::vector<double> signs;
  for (std::int64_t i = 0; i < parameter.count; ++i) signs.push_back(draws.bits() % 2 == 0 ? 1.0 : -1.0);
  const auto first = static_cast<std::size_t>(parameter.offset);
  const layers::Slope slope =
      layers::central_difference([&](double step) { return checked.loss_at(first, signs, step); }, expected.loss);
  double along = 0.0;
  layers::Number bound;
  for (std::size_t i = 0; i < signs.size(); ++i) {
    along += checked.gradients()[first + i] * signs[i];
    bound += expected.gradients[first + i] * signs[i];
  }
  EXPECT_NEAR(along, slope.value, slope.tolerance + layers::tolerance_of(DType::f64, bound)) << parameter.name;
}

void check_config(const DecoderConfig& config) {
  const ParameterTable table(config);
  const std::vector<double> values = single_precision(large_parameters(table, 17));
  const TinyBatch batch(config, kTinyBatch, 5);
  const PlainGradients expected =
      differentiate_plainly(config, values, kTinyBatch, batch.tokens.data(), batch.targets.data());
  double loosest = 0.0;
  for (const layers::Number& g : expected.gradients) {
    loosest = std::max(loosest, layers::tolerance_of(DType::f64, g));
  }
  EXPECT_LT(loosest, 1e-10) << "a tolerance that says nothing";
  Checked<double> checked(config, values, batch);
  layers::expect_within("f64 gradient", checked.gradients(), expected.gradients);
  layers::expect_within("f32 gradient", Checked<float>(config, values, batch).gradients(), expected.gradients);
  check_bf16({config, values, batch}, table, expected);
  for (const Parameter& parameter : table.entries()) {
    double largest = 0.0;
    for (std::int64_t i = 0; i < parameter.count; ++i) {
      largest = std::max(largest, std::abs(checked.gradients()[static_cast<std::size_t>(parameter.offset + i)]));
    }
    EXPECT_GT(largest, 1e-6) << parameter.name << " has no gradient";
    check_differences(checked, parameter, expected);
    if (testing::Test::HasFailure()) return;
  }
}

/// Checks that a backward pass for the gates alone computes their gradients, and none of another matrix.
template <typename T>
void check_gates_alone(const DecoderConfig& config) {
  const ParameterTable table(config);
  const std::vector<double> values = single_precision(large_parameters(table, 17));
  const TinyBatch batch(config, kTinyBatch, 5);
  const Checked<T> gates(config, values, batch, Purpose::train_gates), all(config, values, batch);
  EXPECT_EQ(gates.loss(), all.loss());
  for (const Parameter& parameter : table.entries()) {
    const auto first = static_cast<std::ptrdiff_t>(parameter.offset);
    const std::span<const Wide<T>> some(gates.gradients().data() + first, static_cast<std::size_t>(parameter.count));
    const std::span<const Wide<T>> others(all.gradients().data() + first, some.size());
    const auto size = [](Wide<T> gradient) { return std::abs(gradient); };
    const auto largest = static_cast<double>(size(std::ranges::max(others, {}, size)));
    if (is_gate(parameter.kind)) {
      // Both passes read the same activations, but their products may add in another order.
      const double tolerance = 256.0 * std::numeric_limits<Wide<T>>::epsilon() * largest;
      for (std::size_t i = 0; i < some.size(); ++i) ASSERT_NEAR(some[i], others[i], tolerance) << parameter.name;
      EXPECT_GT(largest, 0.0) << parameter.name;
    } else if (is_matrix(parameter.kind)) {
      EXPECT_EQ(std::ranges::max(some, {}, size), Wide<T>(0)) << parameter.name;
    }
  }
}

class GateGradients : public testing::TestWithParam<std::string> {};

/// Disables QK-norm, which cancels a headwise gate's effect on q and k.
TEST_P(GateGradients, Gradients_EveryGate_MatchDifferences) {
  DecoderConfig config = tiny_config();
  config.qk_norm = QkNorm::none;
  config.gate = layers::parse_gate(GetParam());
  check_config(config);
}

TEST_P(GateGradients, Gradients_SandwichNormsAndQkNorm_MatchDifferences) {
  DecoderConfig config = tiny_config();
  config.layers = 1;
  config.norm_placement = NormPlacement::sandwich;
  config.gate = layers::parse_gate(GetParam());
  // A norm after the gate cancels a factor that is common to a head.
  const bool normed = config.gate.site >= layers::GateSite::g3;
  if (normed && config.gate.grain == layers::GateGrain::headwise) config.gate.op = GateOp::add;
  check_config(config);
}

TEST_P(GateGradients, Gradients_GatesAlone_AreThoseOfAll) {
  DecoderConfig config = tiny_config();
  config.gate = layers::parse_gate(GetParam());
  check_gates_alone<double>(config);
  check_gates_alone<float>(config);
  check_gates_alone<BFloat16>(config);
}

INSTANTIATE_TEST_SUITE_P(Variants, GateGradients, testing::ValuesIn(items_to_test(all_variants())), name_of_variant);

TEST(DecoderGradients, Gradients_ZeroCentredNormsAndPartialRope_MatchDifferences) {
  DecoderConfig config = tiny_config();
  config.norm = layers::NormKind::zero_centred;
  config.rope_fraction = 0.5;
  config.rope_base = 100.0;
  check_config(config);
}

TEST(DecoderGradients, Gradients_BiasesWindowAndScaledRope_MatchDifferences) {
  for (const DecoderConfig& config : other_families()) check_config(config);
}

TEST(DecoderGradients, Gradients_MixedLayers_MatchDifferences) {
  for (const DecoderConfig& config : mixed_families()) check_config(config);
}

TEST(DecoderGradients, Gradients_GatesOfMixedLayersAlone_AreThoseOfAll) {
  for (const DecoderConfig& config : mixed_families()) check_gates_alone<double>(config);
}

TEST(DecoderGradients, Decoder_ModelWithExperts_IsNotTrained) {
  for (const DecoderConfig& config : expert_families()) {
    EXPECT_THROW((Decoder<float>(config, kTinyBatch, Purpose::train)), Error);
  }
}

TEST(DecoderGradients, Gradients_NoRopeAndSeparateEmbeddings_MatchDifferences) {
  DecoderConfig config = tiny_config();
  config.rope_fraction = 0.0;
  config.embeddings = Embeddings::separate;
  check_config(config);
}

TEST(DecoderGradients, Gradients_OneHeadOneLayerOneFeature_MatchDifferences) {
  DecoderConfig config = tiny_config();
  config.layers = 1;
  config.heads = config.kv_heads = 1;
  config.head_dim = 1;
  config.qk_norm = QkNorm::none;
  config.gate = layers::parse_gate("g1-headwise");
  check_config(config);
}

void check_sums(const std::string& gate) {
  DecoderConfig config = tiny_config();
  config.gate = layers::parse_gate(gate);
  Decoder<double> decoder(config, kTinyBatch, Purpose::train);
  const std::vector<double> values = large_parameters(decoder.table(), 3);
  std::vector<double> sum(values.size(), 0.0);
  std::vector<layers::Number> expected(values.size());
  for (const double scale : {0.5, 0.25}) {
    const TinyBatch batch(config, kTinyBatch, scale == 0.5 ? 1 : 2);
    decoder.loss_and_gradients(sum.data(), values.data(), batch.tokens.data(), batch.targets.data(), scale);
    const PlainGradients of_batch =
        differentiate_plainly(config, values, kTinyBatch, batch.tokens.data(), batch.targets.data());
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += scale * of_batch.gradients[i];
  }
  layers::expect_within("sum of two batches, " + gate, sum, expected);
}

TEST(DecoderGradients, Gradients_SeveralBatches_AddUpByTheirScale) {
  for (const char* gate : {"g1-elementwise-bias-ns_sigmoid", "g1-headwise-learned_sinks", "g2-head_shared-parameter",
                           "head_rmsnorm", "g5-elementwise"}) {
    check_sums(gate);
  }
}

}  // namespace
}  // namespace headgate::models
