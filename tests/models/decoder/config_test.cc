// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/config.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "headgate/error.hpp"
#include "models/decoder/parameters.hpp"
#include "models/decoder/tiny.hpp"

namespace headgate::models {
namespace {

using layers::GateVariant;
using layers::parse_gate;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(GateNames, Gate_EveryVariant_RoundTripsThroughItsName) {
  for (const std::string& name : all_variants()) {
    const GateVariant variant = parse_gate(name);
    EXPECT_EQ(parse_gate(gate_name(variant)), variant) << name;
  }
}

TEST(GateNames, Gate_PartsNotGiven_HaveTheirDefaults) {
  EXPECT_EQ(gate_name(parse_gate("none")), "none");
  EXPECT_EQ(gate_name(parse_gate("headwise")), "g1-headwise-sigmoid-mul");
  EXPECT_EQ(gate_name(parse_gate("head-shared")), "g1-head_shared-sigmoid-mul");
  EXPECT_EQ(gate_name(parse_gate("add-silu")), "g1-elementwise-silu-add");
  EXPECT_EQ(gate_name(parse_gate("sigmoid2-g4")), "g4-elementwise-sigmoid2-mul");
  EXPECT_EQ(gate_name(parse_gate("ns_sigmoid")), "g1-elementwise-ns_sigmoid-mul");
  EXPECT_EQ(gate_name(parse_gate("head_rmsnorm-off_by_one")), "head_rmsnorm-off_by_one");
  EXPECT_EQ(gate_name(parse_gate("output_silu")), "output_silu");
}

TEST(GateNames, Gate_MeaninglessParts_IsRefused) {
  for (const char* name : {"", "g6", "headwise-elementwise", "none-headwise", "g5-head_shared", "headwise-head_rmsnorm",
                           "parameter-bias", "headwisee", "g1-none", "sigmoid-sigmoid2"}) {
    EXPECT_NE(error_of([name] { parse_gate(name); }), "") << name;
  }
  EXPECT_EQ(error_of([] { parse_word<layers::GateSite>("--gate-site", "g7"); }),
            "--gate-site: 'g7' is none of none, g1, g2, g3, g4, g5");
}

TEST(Config, Config_SizesThatDisagree_IsRefused) {
  const auto refused = [](const std::function<void(DecoderConfig&)>& change) {
    DecoderConfig config = tiny_config();
    change(config);
    return error_of([&config] { validate(config); });
  };
  EXPECT_EQ(refused([](DecoderConfig&) {}), "");
  EXPECT_EQ(refused([](DecoderConfig& c) { c.vocab = 0; }), "config: vocab is 0 but must be from 1 to 1048576");
  EXPECT_EQ(refused([](DecoderConfig& c) { c.heads = 3; }), "config: heads 3 is not a multiple of kv_heads 2");
  EXPECT_EQ(refused([](DecoderConfig& c) { c.head_dim = 577; }), "config: head_dim is 577 but must be from 1 to 576");
  EXPECT_EQ(refused([](DecoderConfig& c) { c.rope_fraction = 1.5; }),
            "config: rope_fraction is 1.5 but must be from 0 to 1");
  EXPECT_NE(refused([](DecoderConfig& c) { c.rope_fraction = std::nan(""); }), "");
  EXPECT_NE(refused([](DecoderConfig& c) { c.norm_eps = 0.0; }), "");
  EXPECT_NE(refused([](DecoderConfig& c) { c.rope_base = INFINITY; }), "");
  EXPECT_NE(refused([](DecoderConfig& c) { c.init_std = -1.0; }), "");
  EXPECT_NE(refused([](DecoderConfig& c) { c.gate.init_std = NAN; }), "");
  EXPECT_NE(refused([](DecoderConfig& c) { c.layers = 1025; }), "");
  EXPECT_NE(refused([](DecoderConfig& c) { c.vocab = c.dim = c.ffn = c.seq_len = 1 << 20; }), "");
}

TEST(Config, Yarn_RopeBaseOfOne_IsRefusedInWindowsToo) {
  DecoderConfig config = tiny_config();
  config.rope_scaling = layers::RopeScalingKind::yarn;
  const auto refused = [&config] { return error_of([&config] { validate(config); }); };
  EXPECT_EQ(refused(), "");
  config.sliding.rope_base = 1.0;
  EXPECT_EQ(refused(), "") << "RoPE of windows is not scaled";
  config.sliding.rope_scaled = Switch::on;
  EXPECT_EQ(refused(), "config: sliding_rope_base is 1, but rope_scaling yarn needs one above 1");
  config.sliding.rope_base = 0.0;
  EXPECT_EQ(refused(), "");
  config.rope_base = 1.0;
  EXPECT_EQ(refused(), "config: rope_base is 1, but rope_scaling yarn needs one above 1");
}

TEST(RopeFraction, RopeFraction_EveryCountOfFeatures_IsExact) {
  for (std::int64_t head_dim = 2; head_dim <= kMaxHeadDim; ++head_dim) {
    for (std::int64_t features = 0; features <= head_dim; features += 2) {
      const double fraction = rope_fraction_of(features, head_dim);
      ASSERT_EQ(rotary_dim(fraction, head_dim), features) << head_dim;
      ASSERT_EQ(rotary_dim(fraction / 2, head_dim), features / 4 * 2) << head_dim;
      ASSERT_LE(fraction, 1.0);
    }
  }
  EXPECT_EQ(rope_fraction_of(16, 32), 0.5);
}

TEST(ParameterCount, ParameterCount_TinyModel_IsTheSumByHand) {
  DecoderConfig c = tiny_config();
  const std::int64_t layer = 2 * 8                      // norms
                             + (4 + 2 + 2) * 6 * 8      // q, k, v
                             + 2 * 6                    // QK-norm
                             + 8 * 4 * 6 + 3 * 8 * 10;  // o, MLP
  EXPECT_EQ(parameter_count(c), 11 * 8 + 2 * layer + 8);
  c.embeddings = Embeddings::separate;
  c.norm_placement = NormPlacement::sandwich;
  EXPECT_EQ(parameter_count(c), 2 * 11 * 8 + 2 * (layer + 2 * 8) + 8);
}

/// Parameters that gates add, in millions, to the paper's 15B-A2B model (24 layers, 2048 wide, 32/4 heads of 128): its
/// Table 1.
TEST(ParameterCount, ParameterCount_ModelsOfThePaper_IsThatOfThePaper) {
  DecoderConfig c;
  c.vocab = 1000;
  c.dim = 2048;
  c.layers = 24;
  c.heads = 32;
  c.kv_heads = 4;
  c.head_dim = 128;
  c.ffn = 768;
  const std::int64_t baseline = parameter_count(c);
  const auto added = [&](const char* name) {
    c.gate = parse_gate(name);
    return static_cast<double>(parameter_count(c) - baseline) / 1e6;
  };
  EXPECT_NEAR(added("g1-elementwise"), 201, 0.5);
  EXPECT_NEAR(added("g2-elementwise"), 25, 0.5);
  EXPECT_NEAR(added("g3-elementwise"), 25, 0.5);
  EXPECT_NEAR(added("g4-elementwise"), 201, 0.5);
  EXPECT_NEAR(added("g5-elementwise"), 100, 1.0);
  EXPECT_NEAR(added("g1-headwise"), 1.6, 0.05);
  EXPECT_NEAR(added("g2-headwise"), 0.2, 0.01);
  EXPECT_NEAR(added("g1-head_shared"), 201, 0.5);
  EXPECT_NEAR(added("g2-head_shared"), 25, 0.5);
  EXPECT_EQ(added("output_silu"), 0.0);
}

TEST(ParameterTable, ParameterTable_EveryModel_IsDenseAndInTheOrderOfTheFusedProjection) {
  DecoderConfig c = tiny_config();
  c.gate = parse_gate("g1-elementwise-bias-learned_sinks");
  const ParameterTable table(c);
  std::int64_t next = 0;
  for (const Parameter& parameter : table.entries()) {
    EXPECT_EQ(parameter.offset, next) << parameter.name;
    next += parameter.count;
  }
  EXPECT_EQ(table.total(), next);
  const std::string attention = "model.layers.1.self_attn.";
  const auto end_of = [&](const char* name) {
    const Parameter* parameter = table.find(attention + name);
    return parameter == nullptr ? -1 : parameter->offset + parameter->count;
  };
  EXPECT_EQ(end_of("q_proj.weight"), table.find(attention + "gate_proj.weight")->offset);
  EXPECT_EQ(end_of("gate_proj.weight"), table.find(attention + "k_proj.weight")->offset);
  EXPECT_EQ(end_of("k_proj.weight"), table.find(attention + "v_proj.weight")->offset);
  EXPECT_EQ(table.find(attention + "gate_proj.bias")->shape, (std::vector<std::int64_t>{4 * 6}));
  EXPECT_EQ(table.find("lm_head.weight"), nullptr);
}

TEST(MatchParams, MatchParams_AnyGate_ComesWithinHalfAStepOfTheBaseline) {
  DecoderConfig c;
  c.dim = 192;
  c.layers = 6;
  c.heads = 6;
  c.kv_heads = 3;
  c.ffn = 512;
  const std::int64_t baseline = parameter_count(c);
  for (const std::string& name : all_variants()) {
    c.gate = parse_gate(name);
    const DecoderConfig matched = match_params(c);
    EXPECT_LE(std::abs(parameter_count(matched) - baseline), 4 * 3 * 192 * 6 / 2) << name;
    EXPECT_EQ((c.ffn - matched.ffn) % 4, 0);
  }
  c.gate = parse_gate("elementwise");
  EXPECT_EQ(match_params(c).ffn, 512 - 64);  // 6·32·192 parameters a layer over 3·192 a column
  c.ffn = 48;
  EXPECT_NE(error_of([&c] { match_params(c); }), "");
}

TEST(Initialise, Parameters_SharedByVariants_StartAtTheSameNormalNumbers) {
  DecoderConfig plain;
  plain.layers = 2;
  DecoderConfig gated = plain;
  gated.gate = parse_gate("g1-elementwise-bias");
  gated.gate.bias_init = -1.5;
  const ParameterTable plain_table(plain), gated_table(gated);
  std::vector<float> a(static_cast<std::size_t>(plain_table.total())), b(static_cast<std::size_t>(gated_table.total()));
  initialise(a.data(), plain_table, plain, 7);
  initialise(b.data(), gated_table, gated, 7);
  double sum = 0.0, square = 0.0, count = 0.0;
  for (const Parameter& parameter : plain_table.entries()) {
    const Parameter& twin = *gated_table.find(parameter.name);
    for (std::int64_t i = 0; i < parameter.count; ++i) {
      const float value = a[static_cast<std::size_t>(parameter.offset + i)];
      ASSERT_EQ(value, b[static_cast<std::size_t>(twin.offset + i)]) << parameter.name;
      if (parameter.kind == ParameterKind::norm) {
        ASSERT_EQ(value, 1.0F);
        continue;
      }
      sum += value;
      square += value * value;
      count += 1.0;
    }
  }
  EXPECT_NEAR(sum / count, 0.0, 4 * 0.02 / std::sqrt(count));
  EXPECT_NEAR(std::sqrt(square / count), 0.02, 4 * 0.02 / std::sqrt(2 * count));
  EXPECT_EQ(b[static_cast<std::size_t>(gated_table.find("model.layers.1.self_attn.gate_proj.bias")->offset)], -1.5F);
#ifdef __GLIBCXX__  // the standard library decides how normal numbers are drawn
  EXPECT_FLOAT_EQ(a[0], -0.0122257927F);
  EXPECT_FLOAT_EQ(a[1000], -0.000462235534F);
#endif
  std::vector<float> other(a.size());
  initialise(other.data(), plain_table, plain, 8);
  EXPECT_NE(a[0], other[0]);
}

TEST(Initialise, Parameters_OfDifferentTensors_HaveDifferentNumbers) {
  const DecoderConfig config = tiny_config();
  const ParameterTable table(config);
  std::vector<double> values(static_cast<std::size_t>(table.total()));
  initialise(values.data(), table, config, 7);
  std::set<double> seen;
  for (const Parameter& parameter : table.entries()) {
    if (parameter.kind == ParameterKind::norm) continue;
    for (std::int64_t i = 0; i < parameter.count; ++i) {
      EXPECT_TRUE(seen.insert(values[static_cast<std::size_t>(parameter.offset + i)]).second) << parameter.name;
    }
  }
}

TEST(Initialise, Parameters_Matrices_HaveTheTailsOfANormalDistribution) {
  DecoderConfig config = tiny_config();
  config.vocab = 20000;
  config.init_std = 0.5;
  const ParameterTable table(config);
  std::vector<double> values(static_cast<std::size_t>(table.total()));
  initialise(values.data(), table, config, 7);
  const Parameter& embedding = *table.find("model.embed_tokens.weight");
  const auto count = static_cast<double>(embedding.count);
  for (const double deviations : {0.5, 1.0, 2.0, 3.0}) {
    const auto* first = values.data() + embedding.offset;
    const auto within = static_cast<double>(std::count_if(
        first, first + embedding.count, [&](double x) { return std::abs(x) < deviations * config.init_std; }));
    const double share = std::erf(deviations / std::sqrt(2.0));
    EXPECT_NEAR(within / count, share, 4 * std::sqrt(share * (1 - share) / count)) << deviations;
  }
}

TEST(TrainingFlops, TrainingFlops_GatesAlone_AreFourPerWeightAndTwoPerGate) {
  DecoderConfig c = tiny_config();
  const double whole = training_flops(c, ParameterTable(c), 3, 5);
  const double plain = training_flops(c, ParameterTable(c).gates(), 3, 5);
  c.gate = layers::parse_gate("g1-headwise");
  const double gates = 2 * 4 * 8;
  EXPECT_DOUBLE_EQ(training_flops(c, ParameterTable(c), 3, 5), whole + 6 * gates * 15);
  EXPECT_DOUBLE_EQ(training_flops(c, ParameterTable(c).gates(), 3, 5), plain + 6 * gates * 15);
  EXPECT_LT(plain, whole);
}

TEST(TrainingFlops, TrainingFlops_Windows_CountThePairsThatTheyAllow) {
  DecoderConfig c = tiny_config();
  const std::int64_t seq = 9;
  const double whole = training_flops(c, ParameterTable(c), 3, seq);
  for (c.window = 1; c.window <= seq + 1; ++c.window) {
    for (const bool in_one_layer : {false, true}) {
      c.layer_types = {in_one_layer ? LayerType::full_attention : LayerType::sliding_attention,
                       LayerType::sliding_attention};
      double hidden = 0.0;
      for (std::int64_t query = 0; query < seq; ++query)
        hidden += static_cast<double>(std::max<std::int64_t>(query + 1 - c.window, 0));
      EXPECT_DOUBLE_EQ(training_flops(c, ParameterTable(c), 3, seq),
                       whole - 12.0 * (in_one_layer ? 1 : 2) * 4 * 6 * 3 * hidden);
    }
  }
}

TEST(TrainingFlops, TrainingFlops_AnyConfig_AreSixPerWeightAndTwelvePerPair) {
  DecoderConfig c = tiny_config();
  const double matrices = 11 * 8 + 2 * ((4 + 2 + 2) * 6 * 8 + 8 * 4 * 6 + 3 * 8 * 10);
  const double pairs = 3 * 15;  // 5 queries, each with its own key and those before it
  EXPECT_DOUBLE_EQ(training_flops(c, ParameterTable(c), 3, 5), 6 * matrices * 15 + 12 * 2 * 4 * 6 * pairs);
}

}  // namespace
}  // namespace headgate::models
