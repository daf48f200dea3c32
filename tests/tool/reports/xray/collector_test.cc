// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/xray/collector.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "models/decoder/plain_decoder.hpp"
#include "models/decoder/tiny.hpp"
#include "models/decoder/weights.hpp"
#include "models/evaluate/gates.hpp"
#include "models/evaluate/layer_heads.hpp"
#include "models/layers/support.hpp"
#include "support/test_runs.hpp"
#include "tool/reports/xray/decoded.hpp"
#include "tool/reports/xray/ranks.hpp"

// What the page shows, against whole attention matrices and gates of the plain decoder.

namespace headgate::xray {
namespace {

using models::BatchShape;
using models::DecoderConfig;

constexpr BatchShape kShape{1, 7};
constexpr double kByte = 0.51 / 255.0;  // a rounding, and errors of f32

struct Collected {
  std::vector<float> parameters;
  models::PlainRun plain;
  std::vector<LayerRecord> layers;
  LargestActivation largest;
};

/// Gathers the text at once, or in parts.
Collected collect(const DecoderConfig& config, std::int64_t part = 0) {
  models::Decoder<float> decoder(config, kShape, models::Purpose::evaluate, {},
                                 {.tokens = part, .stores_delta_inputs = true});
  const std::vector<double> values = models::large_parameters(decoder.table(), 41);
  const std::vector<float> parameters = layers::as<float>(values);
  const models::TinyBatch batch(config, kShape, 3);
  Collector collector(config, parameters.data(), kShape.seq, decoder.part_shape().seq, 96, {});
  decoder.loss(parameters.data(), batch.tokens.data(), batch.targets.data(), &collector);
  const std::vector<double> same(parameters.begin(), parameters.end());
  return {parameters, models::run_plainly(config, same.data(), kShape, batch.tokens.data(), batch.targets.data()),
          collector.layers(), collector.largest_activation()};
}

double root(std::uint8_t byte) { return static_cast<double>(byte) / 255.0; }

/// What query i gives to key j: softmax weights, or of linear attention shares |a| / Σ|a|.
double weight_of(const models::PlainLayer& layer, std::int64_t h, std::int64_t i, std::int64_t j) {
  const bool linear = layer.weights.empty();
  const double* row = (linear ? layer.rule_weights : layer.weights).data() + (h * kShape.seq + i) * kShape.seq;
  if (!linear) return row[j];
  double sum = 0.0;
  for (std::int64_t k = 0; k <= i; ++k) sum += std::abs(row[k]);
  return std::abs(row[j]) / sum;
}

/// Checks a head's map, what each token receives from the queries that see it, and how far queries look.
void check_head(const HeadRecord& head, const models::PlainLayer& layer, std::int64_t h, std::int64_t window) {
  const std::vector<std::uint8_t> map = decoded(head.map), received = decoded(head.received);
  ASSERT_EQ(map.size(), static_cast<std::size_t>(kShape.seq * (kShape.seq + 1) / 2));
  ASSERT_EQ(received.size(), static_cast<std::size_t>(kShape.seq));
  std::size_t at = 0;
  double distances = 0.0;
  for (std::int64_t i = 0; i < kShape.seq; ++i) {
    double all = 0.0, far = 0.0;
    for (std::int64_t j = 0; j <= i; ++j) {
      const double w = weight_of(layer, h, i, j);
      EXPECT_NEAR(root(map[at++]), std::sqrt(w), kByte);
      all += w;
      far += w * static_cast<double>(i - j);
    }
    distances += far / all;
  }
  EXPECT_NEAR(head.mean_distance, distances / static_cast<double>(kShape.seq - 1), 1e-4);
  for (std::int64_t j = 0; j < kShape.seq; ++j) {
    double sum = 0.0, count = 0.0;
    for (std::int64_t i = j; i < kShape.seq; ++i) {
      if (window > 0 && i - j >= window) continue;
      sum += weight_of(layer, h, i, j);
      count += 1.0;
    }
    EXPECT_NEAR(root(received[static_cast<std::size_t>(j)]), std::sqrt(sum / count), kByte);
  }
  ASSERT_EQ(head.top_keys.size(), static_cast<std::size_t>(kShape.seq));
  EXPECT_NEAR(std::sqrt(head.top_keys.front().second),
              root(received[static_cast<std::size_t>(head.top_keys.front().first)]), kByte);
  EXPECT_TRUE(std::is_sorted(head.top_keys.begin(), head.top_keys.end(),
                             [](const auto& a, const auto& b) { return a.second > b.second; }));
}

void check_attention(const DecoderConfig& config, const Collected& got) {
  ASSERT_EQ(got.layers.size(), static_cast<std::size_t>(config.layers));
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const auto at = static_cast<std::size_t>(layer);
    const bool linear = metrics::is_linear(config, layer);
    const auto D = static_cast<double>(linear ? config.linear.value_dim : config.head_dim);
    ASSERT_EQ(std::ssize(got.layers[at].heads), metrics::heads_of_layer(config, layer));
    for (std::int64_t h = 0; h < metrics::heads_of_layer(config, layer); ++h) {
      const HeadRecord& head = got.layers[at].heads[static_cast<std::size_t>(h)];
      check_head(head, got.plain.layers[at], h, models::layer_config(config, layer).window);
      ASSERT_EQ(head.value_output_rank.has_value(), !linear);
      if (!linear) {
        EXPECT_GE(*head.value_output_rank, 1.0);
        EXPECT_LE(*head.value_output_rank, D);
      }
      EXPECT_GE(head.written_rank, 1.0);
      EXPECT_LE(head.written_rank, std::min(D, static_cast<double>(kShape.seq)) + 1e-9);
    }
  }
}

/// Output gates of linear attention by their magnitude.
void check_output_gates(const DecoderConfig& config, const Collected& got, std::int64_t layer) {
  const LayerRecord& record = got.layers[static_cast<std::size_t>(layer)];
  const std::vector<double>& plain = got.plain.layers[static_cast<std::size_t>(layer)].output_gates;
  const std::int64_t H = config.linear.value_heads, D = config.linear.value_dim;
  ASSERT_TRUE(record.gate.has_value());
  for (std::int64_t h = 0; h < H; ++h) {
    const HeadRecord& head = record.heads[static_cast<std::size_t>(h)];
    const std::vector<std::uint8_t> bytes = decoded(head.gate.value());
    std::int64_t counted = 0;
    for (const std::int64_t count : head.gate_histogram.value()) counted += count;
    EXPECT_EQ(counted, kShape.seq * D);
    for (std::int64_t t = 0; t < kShape.seq; ++t) {
      double sum = 0.0;
      for (std::int64_t d = 0; d < D; ++d) sum += std::abs(plain[static_cast<std::size_t>((t * H + h) * D + d)]);
      EXPECT_NEAR(root(bytes[static_cast<std::size_t>(t)]), std::min(1.0, sum / static_cast<double>(D)), kByte);
    }
  }
}

/// Gates of [0,1] at every token; of a head that owns some, and of the layer.
void check_gates(const DecoderConfig& config, const Collected& got) {
  for (std::size_t layer = 0; layer < got.layers.size(); ++layer) {
    const auto index = static_cast<std::int64_t>(layer);
    const std::int64_t width = metrics::gate_width(config, index), owners = metrics::gate_owners(config, index);
    if (metrics::is_linear(config, index)) continue;
    const std::int64_t heads = metrics::heads_of_layer(config, index);
    const LayerRecord& record = got.layers[layer];
    ASSERT_EQ(record.gate.has_value(), width > 0);
    for (std::int64_t h = 0; h < heads; ++h) {
      const HeadRecord& head = record.heads[static_cast<std::size_t>(h)];
      ASSERT_EQ(head.gate.has_value(), owners > 0);
      ASSERT_EQ(head.gate_histogram.has_value(), owners > 0);
      if (owners == 0) continue;
      const std::int64_t features = width / owners, first = h * owners / heads * features;
      const std::vector<std::uint8_t> bytes = decoded(*head.gate);
      GateHistogram histogram{};
      for (std::int64_t t = 0; t < kShape.seq; ++t) {
        double sum = 0.0;
        for (std::int64_t x = first; x < first + features; ++x) {
          const double g = got.plain.layers[layer].gates[static_cast<std::size_t>(t * width + x)];
          sum += g;
          const double bin = std::clamp(std::floor(20.0 * g), 0.0, 19.0);
          ++histogram[static_cast<std::size_t>(bin)];
        }
        const double mean = std::clamp(sum / static_cast<double>(features), 0.0, 1.0);
        EXPECT_NEAR(root(bytes[static_cast<std::size_t>(t)]), mean, kByte);
      }
      EXPECT_EQ(*head.gate_histogram, histogram);
    }
  }
}

/// Columns of a head, of a matrix by its name in a layer: (rows, D) of o_proj, or the transpose of rows of v_proj.
View<const float, 2> head_of(const DecoderConfig& config, const Collected& got, std::size_t layer, bool of_output,
                             std::int64_t head) {
  const auto weights = models::WeightLayout(config).layer(static_cast<std::int64_t>(layer), got.parameters.data());
  const std::int64_t D = config.head_dim;
  if (of_output) return weights.attention.out.range(1, head * D, D);
  const View<const float, 2>& in = weights.attention.in;
  const View<const float, 2> rows = in.range(0, in.shape[0] - (config.kv_heads - head) * D, D);
  return {rows.data, {rows.shape[1], D}, {rows.strides[1], rows.strides[0]}};
}

/// Ranks without a gate, from the weights and the plain decoder's attention and values.
void check_ranks(const DecoderConfig& config, const Collected& got) {
  const std::int64_t D = config.head_dim, queries = config.heads / config.kv_heads;
  for (std::size_t layer = 0; layer < got.layers.size(); ++layer) {
    for (std::int64_t h = 0; h < config.heads; ++h) {
      const HeadRecord& head = got.layers[layer].heads[static_cast<std::size_t>(h)];
      const View<const float, 2> output = head_of(config, got, layer, true, h);
      const View<const float, 2> value = head_of(config, got, layer, false, h / queries);
      double wanted = 0.0, sum = 0.0;  // of the squares of the entries of W_v W_o, and of its singular values
      for (std::int64_t i = 0; i < value.shape[0]; ++i) {
        for (std::int64_t j = 0; j < output.shape[0]; ++j) {
          double entry = 0.0;
          for (std::int64_t d = 0; d < D; ++d) {
            entry += static_cast<double>(value(i, d)) * static_cast<double>(output(j, d));
          }
          wanted += entry * entry;
        }
      }
      for (const double x : head.value_output_singular_values) sum += x * x;
      EXPECT_NEAR(sum, wanted, 1e-9 * wanted);
      EXPECT_EQ(head.value_output_rank, effective_rank(head.value_output_singular_values));

      std::vector<float> read(static_cast<std::size_t>(kShape.seq * D));
      for (std::int64_t i = 0; i < kShape.seq; ++i) {
        for (std::int64_t d = 0; d < D; ++d) {
          double o = 0.0;
          for (std::int64_t j = 0; j <= i; ++j) {
            const models::PlainLayer& plain = got.plain.layers[layer];
            o += plain.weights[static_cast<std::size_t>((h * kShape.seq + i) * kShape.seq + j)] *
                 plain.values[static_cast<std::size_t>((j * config.kv_heads + h / queries) * D + d)];
          }
          read[static_cast<std::size_t>(i * D + d)] = static_cast<float>(o);
        }
      }
      const double rank =
          effective_rank(singular_values(gram_of_columns(view_of(read, kShape.seq, D)), gram_of_columns(output)));
      EXPECT_NEAR(head.written_rank, rank, 1e-3 * rank);
    }
  }
}

TEST(Collector, Ranks_OfWeightsAndHeadOutputs_MatchFormulas) {
  const DecoderConfig config = models::tiny_config();
  check_ranks(config, collect(config));
}

class EveryVariant : public testing::TestWithParam<std::string> {};

TEST_P(EveryVariant, Report_EveryGate_MatchesFormulas) {
  DecoderConfig config = models::tiny_config();
  config.gate = layers::parse_gate(GetParam());
  const Collected got = collect(config);
  check_attention(config, got);
  check_gates(config, got);
}

INSTANTIATE_TEST_SUITE_P(Gates, EveryVariant, testing::ValuesIn(items_to_test(models::all_variants())),
                         models::name_of_variant);

TEST(Collector, Report_LayersThatDiffer_MatchesFormulas) {
  for (const DecoderConfig& config : models::mixed_families()) {
    const Collected got = collect(config);
    check_attention(config, got);
    if (config.gate != layers::GateVariant{}) check_gates(config, got);
    for (std::int64_t layer = 0; layer < config.layers; ++layer) {
      if (metrics::is_linear(config, layer)) check_output_gates(config, got, layer);
    }
  }
}

/// Parts of one token, with a shorter last one, of the whole text, and longer than it.
TEST(Collector, Report_TextInParts_MatchesFormulas) {
  std::vector<DecoderConfig> configs = models::mixed_families();
  for (const DecoderConfig& config : models::other_families()) configs.push_back(config);
  for (const char* gate : {"none", "g1-headwise-learned_sinks", "g1-head_shared", "g5-elementwise"}) {
    configs.push_back(models::tiny_config());
    configs.back().gate = layers::parse_gate(gate);
  }
  for (const DecoderConfig& config : configs) {
    const Collected whole = collect(config);
    for (const std::int64_t part : {1, 3, 7, 9}) {
      SCOPED_TRACE(testing::Message() << "gate " << layers::gate_name(config.gate) << ", parts of " << part);
      const Collected got = collect(config, part);
      check_attention(config, got);
      if (config.gate != layers::GateVariant{}) check_gates(config, got);
      for (std::int64_t layer = 0; layer < config.layers; ++layer) {
        if (metrics::is_linear(config, layer)) check_output_gates(config, got, layer);
      }
      if (config == models::tiny_config()) check_ranks(config, got);
      for (std::size_t layer = 0; layer < whole.layers.size(); ++layer) {
        for (std::size_t h = 0; h < whole.layers[layer].heads.size(); ++h) {
          const HeadRecord &one = whole.layers[layer].heads[h], &other = got.layers[layer].heads[h];
          EXPECT_NEAR(other.written_rank, one.written_rank, 1e-3);
          EXPECT_EQ(other.value_output_singular_values, one.value_output_singular_values);
        }
      }
    }
  }
}

TEST(Collector, LargestActivation_TextAtOnceOrInParts_IsThatOfTheResidualStream) {
  const DecoderConfig config = models::tiny_config();
  for (const std::int64_t part : {0, 3}) {
    const Collected got = collect(config, part);
    double largest = 0.0;
    for (const models::PlainLayer& layer : got.plain.layers) {
      for (const double x : layer.output) largest = std::max(largest, std::abs(x));
    }
    const auto& [value, layer, token, channel] = got.largest;
    EXPECT_NEAR(value, largest, 1e-4 * largest);
    const std::vector<double>& output = got.plain.layers.at(static_cast<std::size_t>(layer)).output;
    EXPECT_EQ(std::abs(output.at(static_cast<std::size_t>(token * config.dim + channel))), largest);
  }
}

TEST(Collector, Report_BiasesWindowAndScaledRope_MatchesFormulas) {
  for (const DecoderConfig& config : models::other_families()) check_attention(config, collect(config));
}

}  // namespace
}  // namespace headgate::xray
