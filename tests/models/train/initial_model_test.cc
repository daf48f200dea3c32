// SPDX-License-Identifier: Apache-2.0
#include "models/train/initial_model.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "headgate/error.hpp"
#include "models/families/saved_model.hpp"
#include "models/io/scratch.hpp"
#include "models/train/choices.hpp"

namespace headgate::train {
namespace {

using models::DecoderConfig;
using testing::SavedModel;
using testing::small_config;

template <class Call>
std::string reason(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

class InitialModelTest : public ::testing::Test {
 protected:
  /// Writes a model and returns its path.
  std::string written(const DecoderConfig& config) {
    const SavedModel model(config);
    models::write_model(scratch / "model", {config}, model.parameters, DType::f32);
    return scratch / "model";
  }

  testing::Scratch scratch;
};

TEST_F(InitialModelTest, Parameters_WithAGate_AreTheModelsAndZeros) {
  const SavedModel model(small_config());
  const InitialModel init(written(model.config));
  EXPECT_EQ(init.config(), model.config);
  EXPECT_EQ(init.parameters(model.config), model.parameters);
  DecoderConfig gated = model.config;
  gated.gate = layers::parse_gate("g2-elementwise-sigmoid2");
  const std::vector<float> parameters = init.parameters(gated);
  const models::ParameterTable table(gated);
  ASSERT_EQ(std::ssize(parameters), table.total());
  for (const models::Parameter& parameter : table.entries()) {
    const models::Parameter* own = model.table.find(parameter.name);
    EXPECT_EQ(own == nullptr, models::is_gate(parameter.kind)) << parameter.name;
    for (std::int64_t i = 0; i < parameter.count; ++i) {
      const float expected = own == nullptr ? 0.0F : model.parameters[static_cast<std::size_t>(own->offset + i)];
      ASSERT_EQ(parameters[static_cast<std::size_t>(parameter.offset + i)], expected) << parameter.name;
    }
  }
}

TEST_F(InitialModelTest, Model_WithExperts_IsRefused) {
  DecoderConfig config = small_config();
  config.experts.count = 4;
  config.experts.active = 2;
  config.experts.ffn = 8;
  const std::string path = written(config);
  EXPECT_EQ(reason([&] { InitialModel{path}; }),
            "--init " + path + " cannot be trained: it has experts, which have no backward pass");
}

TEST_F(InitialModelTest, File_AbsentOrDamaged_IsRefusedByName) {
  EXPECT_TRUE(reason([&] { InitialModel(scratch / "none"); }).starts_with("--init: " + (scratch / "none") + ": "));
  const std::string path = written(small_config()), weights = path + "/model.safetensors";
  const std::string good = testing::read_bytes(weights);
  testing::write_bytes(weights, good.substr(0, good.size() - 5));
  EXPECT_TRUE(reason([&] { InitialModel{path}; }).starts_with("--init: " + weights + ": "));
  std::string bad = good;
  bad.back() ^= 1;
  testing::write_bytes(weights, bad);
  const InitialModel init(path);
  EXPECT_TRUE(reason([&] { init.parameters(init.config()); }).starts_with("--init: " + weights + ": "));
}

TEST(MakeConfigFrom, GateAdded_IdentityOnly_IsAccepted) {
  for (const std::string gate : {"headwise-sigmoid2", "g2-elementwise-silu-add", "g5-elementwise-identity-add-bias",
                                 "head_shared-sigmoid2", "elementwise-sigmoid2-parameter"}) {
    ModelChoices choices;
    choices.gate = gate;
    const DecoderConfig config = make_config_from(choices, small_config(), "M");
    EXPECT_EQ(layers::gate_name(config.gate), layers::gate_name(layers::parse_gate(gate)));
    EXPECT_EQ(config.gate.init_std, 0.0);
    EXPECT_EQ(make_config_from(choices, config, "M"), config) << "the gate may be named again";
  }
  for (const std::string gate :
       {"headwise", "headwise-ns_sigmoid", "silu", "identity-mul", "softplus-add", "sigmoid2-add", "sigmoid-bias"}) {
    ModelChoices choices;
    choices.gate = gate;
    const std::string refused = reason([&] { make_config_from(choices, small_config(), "M"); });
    EXPECT_TRUE(
        refused.ends_with("with --init: it does not start as the identity; those of sigmoid2-mul, silu-add, "
                          "identity-add do"))
        << gate << ": " << refused;
  }
  ModelChoices choices;
  choices.gate = "headwise-sigmoid2";
  choices.keys.of<&layers::GateVariant::bias_init>() = 0.5;
  EXPECT_EQ(reason([&] { make_config_from(choices, small_config(), "M"); }),
            "--gate-bias 0.5 with --init: the gate would not start as the identity");
  choices.keys.of<&layers::GateVariant::bias_init>() = 0.0;
  EXPECT_EQ(make_config_from(choices, small_config(), "M").gate.bias, layers::GateBias::learned);
  choices.keys.of<&layers::GateVariant::init_std>() = 0.02;
  EXPECT_EQ(reason([&] { make_config_from(choices, small_config(), "M"); }),
            "--gate-init-std 0.02 with --init: the gate would not start as the identity");
}

TEST(MakeConfigFrom, Options_ThatContradictTheModel_AreRefusedByName) {
  DecoderConfig model = small_config();
  const auto refused = [&model](const auto& choose) {
    ModelChoices choices;
    choose(choices);
    return reason([&] { make_config_from(choices, model, "M"); });
  };
  EXPECT_EQ(refused([](ModelChoices& c) { c.keys.of<&DecoderConfig::dim>() = 64; }), "--dim 64: M has 8");
  EXPECT_EQ(refused([](ModelChoices& c) { c.keys.of<&DecoderConfig::dim>() = 8; }), "") << "as the model has it";
  EXPECT_EQ(refused([](ModelChoices& c) { c.keys.of<&DecoderConfig::qk_norm>() = models::QkNorm::none; }),
            "--qk-norm off: M has on");
  EXPECT_EQ(refused([](ModelChoices& c) { c.keys.of<&DecoderConfig::qkv_bias>() = models::QkvBias::learned; }),
            "--qkv-bias: M has none");
  EXPECT_EQ(refused([](ModelChoices& c) { c.keys.of<&layers::GateVariant::sinks>() = layers::SinkKind::learned; }),
            "--sinks learned: M has none");
  EXPECT_EQ(refused([](ModelChoices& c) { c.gate = "headwise-sigmoid2-learned_sinks"; }),
            "--gate headwise-sigmoid2-learned_sinks with --init: its sinks or control are not those of M and would "
            "change it from the start");
  EXPECT_EQ(refused([](ModelChoices& c) { c.keys.of<&layers::GateVariant::op>() = GateOp::add; }),
            "--gate-op needs --gate");
  EXPECT_EQ(refused([](ModelChoices& c) { c.config_file = "c.json"; }), "--config c.json: --init M has a config");
  EXPECT_EQ(refused([](ModelChoices& c) { c.match_params = true; }),
            "--match-params would change --ffn, which is 12 in M");
  EXPECT_EQ(refused([](ModelChoices& c) { c.layer_types = "1:1"; }), "--layer-types 1:1: M has other layers");
  model.gate = layers::parse_gate("headwise");
  EXPECT_EQ(refused([](ModelChoices& c) { c.gate = "headwise"; }), "");
  EXPECT_EQ(refused([](ModelChoices& c) { c.gate = "none"; }), "--gate none: M has the gate g1-headwise-sigmoid-mul");
  EXPECT_EQ(refused([](ModelChoices& c) { c.gate = "elementwise-sigmoid2"; }),
            "--gate g1-elementwise-sigmoid2-mul: M has the gate g1-headwise-sigmoid-mul");
  EXPECT_EQ(refused([](ModelChoices& c) { c.keys.of<&layers::GateVariant::fn>() = GateFn::silu; }),
            "--gate-fn silu: M has sigmoid");
  model.gate = {};
  model.layer_types.assign(static_cast<std::size_t>(model.layers), models::LayerType::linear_attention);
  model.linear.key_heads = model.linear.value_heads = 1;
  EXPECT_EQ(refused([](ModelChoices& c) { c.gate = "headwise-sigmoid2"; }),
            fmt::format("--gate g1-headwise-sigmoid2-mul acts on layers of attention, but all {} layers are linear "
                        "attention",
                        model.layers));
}

TEST(SequenceLengthFrom, Length_OfAModel_IsAtMostItsPositions) {
  DecoderConfig model = small_config();
  ModelChoices choices;
  EXPECT_EQ(sequence_length_from(choices, Task::text, model, "M"), 16) << "all positions";
  model.seq_len = 8192;
  EXPECT_EQ(sequence_length_from(choices, Task::text, model, "M"), task_model(Task::text).seq_len);
  choices.keys.of<&DecoderConfig::seq_len>() = 8192;
  EXPECT_EQ(sequence_length_from(choices, Task::text, model, "M"), 8192);
  EXPECT_EQ(make_config_from(choices, model, "M").seq_len, 8192);
  choices.keys.of<&DecoderConfig::seq_len>() = 64;
  EXPECT_EQ(make_config_from(choices, model, "M").seq_len, 8192) << "positions stay";
  choices.keys.of<&DecoderConfig::seq_len>() = 8193;
  EXPECT_EQ(reason([&] { sequence_length_from(choices, Task::text, model, "M"); }),
            "--seq-len 8193: M has 8192 positions");
}

}  // namespace
}  // namespace headgate::train
