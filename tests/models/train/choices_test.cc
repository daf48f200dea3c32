// SPDX-License-Identifier: Apache-2.0
#include "models/train/choices.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <string>
#include <type_traits>

#include "headgate/error.hpp"
#include "library/core/count_fields.hpp"
#include "models/layers/gate_variant.hpp"

namespace headgate::train {
namespace {

using models::DecoderConfig;

/// Returns another value that the row allows.
template <class Row>
ValueOf<Row> another_value(const Row& row, const TrainSettings& settings) {
  using Value = ValueOf<Row>;
  if constexpr (kIsList<Value>) {
    return {"another"};
  } else if constexpr (std::is_same_v<Value, std::string>) {
    return "another";
  } else if constexpr (std::is_enum_v<Value>) {
    return Words<Value>::kAll.back().value;
  } else if constexpr (std::is_integral_v<Value>) {
    return row.of(settings) + 1;
  } else {
    return row.of(settings) / 2;
  }
}

TrainSettings sample() {
  TrainSettings settings = task_settings(Task::text);
  settings.paths = {"text"};
  settings.threads = 1;
  return settings;
}

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(SettingRows, Rows_NamesKeysAndOptions_AreUnique) {
  std::set<std::string> keys, options;
  for_each_row(kSettings, [&](const auto& row) {
    EXPECT_TRUE(keys.insert(std::string(row.key)).second) << row.key;
    EXPECT_FALSE(row.help.empty()) << row.key;
    if (row.option.empty()) return;
    EXPECT_TRUE(options.insert(std::string(row.option)).second) << row.option;
  });
  for_each_row(models::kConfigKeys, [&](const auto& row) {
    if (row.option.empty()) return;
    EXPECT_TRUE(options.insert(std::string(row.option)).second) << row.option;
  });
}

TEST(SettingRows, Settings_EveryField_HasARow) {
  std::size_t fields = 0;
  for_each_row(kSettings, [&fields](const auto&) { ++fields; });
  EXPECT_EQ(fields, headgate::testing::count_fields<TrainSettings>() - 1 + headgate::testing::count_fields<Schedule>());
}

TEST(SettingRows, Settings_EveryField_RoundTripsThroughAState) {
  for_each_row(kSettings, [](const auto& row) {
    TrainerState state;
    state.settings = sample();
    row.of(state.settings) = another_value(row, state.settings);
    const TrainerState back = read_state(write_state(state));
    EXPECT_TRUE(row.of(back.settings) == row.of(state.settings)) << row.key;
  });
}

TEST(Resuming, Resume_FixedSettingChanged_IsRefused) {
  const TrainSettings run = sample();
  for_each_row(kSettings, [&run](const auto& row) {
    if (row.option.empty()) return;
    RunChoices choices;
    choices.for_each([&](const auto& given_row, auto& slot) {
      if constexpr (std::is_same_v<decltype(given_row), decltype(row)>) {
        if (given_row.key == row.key) slot = another_value(row, run);
      }
    });
    ASSERT_TRUE(choices.any()) << row.key;
    const std::string refused = refusal([&] {
      const TrainSettings now = resumed_settings(choices, run);
      EXPECT_FALSE(row.of(now) == row.of(run)) << row.key;
    });
    if (row.on_resume == OnResume::may_change) {
      EXPECT_EQ(refused, "") << row.key;
    } else {
      EXPECT_TRUE(refused.starts_with(std::string(row.option) + " ")) << refused;
      EXPECT_TRUE(refused.ends_with(", and cannot change on --resume") || refused.ends_with("omit it on --resume"))
          << refused;
    }
  });
  RunChoices same;
  same.of<&TrainSettings::batch>() = run.batch;
  same.of<&Schedule::decay>() = run.schedule.decay;
  EXPECT_EQ(resumed_settings(same, run).batch, run.batch) << "a value that is the run's may be given again";
}

TEST(MakeConfig, Sizes_NotGiven_FollowThoseGiven) {
  ModelChoices choices;
  EXPECT_FALSE(choices.any());
  EXPECT_EQ(make_config(choices, Task::text), task_model(Task::text));
  EXPECT_EQ(make_config(choices, Task::bigram_backcopy), task_model(Task::bigram_backcopy));
  EXPECT_EQ(make_config(choices, Task::text, Bos::on).vocab, kVocabWithBos);
  EXPECT_EQ(make_config(choices, Task::text, Bos::on, 290).vocab, 296) << "a multiple of 8";
  EXPECT_EQ(make_config(choices, Task::text, Bos::off, 4000).vocab, 4000);
  choices.keys.of<&DecoderConfig::dim>() = 96;
  choices.keys.of<&DecoderConfig::heads>() = 6;
  const DecoderConfig config = make_config(choices, Task::text);
  EXPECT_EQ(config.kv_heads, 3);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.ffn, 288);
  EXPECT_EQ(config.layers, task_model(Task::text).layers);
  choices.keys.of<&DecoderConfig::dim>() = 97;
  EXPECT_EQ(refusal([&] { make_config(choices, Task::text); }),
            "--dim 97 is not a multiple of --heads 6: give --head-dim");
  choices.keys.of<&DecoderConfig::dim>() = 1 << 21;
  EXPECT_TRUE(refusal([&] {
                choices.keys.of<&DecoderConfig::head_dim>() = 16;
                make_config(choices, Task::text);
              }).starts_with("--dim is 2097152 but must be "));
}

TEST(ParseLayerTypes, Pattern_RatioOrWords_RepeatsOverAllLayers) {
  using enum models::LayerType;
  using Types = std::vector<models::LayerType>;
  EXPECT_EQ(parse_layer_types("3:1", 6), (Types{linear_attention, linear_attention, linear_attention, full_attention,
                                                linear_attention, linear_attention}));
  EXPECT_EQ(parse_layer_types("0:2", 3), (Types{full_attention, full_attention, full_attention}));
  EXPECT_EQ(parse_layer_types("sliding,gated_delta,attention", 4),
            (Types{sliding_attention, linear_attention, full_attention, sliding_attention}));
  for (const char* pattern :
       {"", "0:0", "3:", ":1", "3:1:2", "-1:2", "3:99999", "delta", "attention,,sliding", "3:1,"}) {
    EXPECT_NE(refusal([&] { parse_layer_types(pattern, 4); }).find("neither N:M, such as 3:1, nor a list of"),
              std::string::npos)
        << pattern;
  }
}

TEST(MakeConfig, LayerTypes_WithLinearAttention_HasTheHeadsOfAttention) {
  ModelChoices choices;
  choices.layer_types = "1:1";
  choices.keys.of<&DecoderConfig::layers>() = 4;
  choices.keys.of<&DecoderConfig::dim>() = 48;
  choices.keys.of<&DecoderConfig::heads>() = 6;
  const DecoderConfig config = make_config(choices, Task::text);
  EXPECT_EQ(std::ssize(config.layer_types), 4);
  EXPECT_EQ(config.linear.key_heads, 6);
  EXPECT_EQ(config.linear.value_heads, 6);
  EXPECT_EQ(config.linear.key_dim, 8);
  EXPECT_EQ(config.linear.value_dim, 8);
  choices.layer_types = "sliding,attention";
  choices.keys.of<&DecoderConfig::window>() = 8;
  EXPECT_EQ(make_config(choices, Task::text).linear, models::LinearLayers{});
}

TEST(MakeConfig, LayerTypes_NoneWithTheWindow_AreRefused) {
  ModelChoices choices;
  choices.layer_types = "attention";
  EXPECT_TRUE(make_config(choices, Task::text).layer_types.empty());
  choices.keys.of<&DecoderConfig::window>() = 8;
  EXPECT_EQ(refusal([&] { make_config(choices, Task::text); }),
            "--window 8: --layer-types attention has no layer of sliding attention; write sliding for those with the "
            "window");
  choices.layer_types = "3:1";
  EXPECT_TRUE(refusal([&] { make_config(choices, Task::text); }).starts_with("--window 8: --layer-types 3:1 has no"));
  choices.layer_types = "sliding";
  EXPECT_EQ(make_config(choices, Task::text).window, 8);
}

TEST(MakeConfig, PartsOfAttention_WithoutALayerOfAttention_AreRefused) {
  const std::string reason = " acts on layers of attention, but all 3 layers are linear attention";
  ModelChoices choices;
  choices.layer_types = "3:1";
  choices.keys.of<&DecoderConfig::layers>() = 3;
  EXPECT_EQ(std::ssize(make_config(choices, Task::text).layer_types), 3);
  for (const char* gate :
       {"g1-elementwise-sigmoid-mul", "g5-headwise-silu-add-bias", "head_rmsnorm", "learned_sinks"}) {
    choices.gate = gate;
    EXPECT_EQ(refusal([&] { make_config(choices, Task::text); }), "--gate " + choices.gate + reason);
  }
  choices.gate = "";
  choices.keys.of<&DecoderConfig::qkv_bias>() = models::QkvBias::learned;
  EXPECT_EQ(refusal([&] { make_config(choices, Task::text); }), "--qkv-bias" + reason);
  choices.gate = "headwise";
  choices.keys.of<&DecoderConfig::layers>() = 4;
  EXPECT_EQ(refusal([&] { make_config(choices, Task::text); }), "");
}

TEST(RequireOptionsOf, PartsOfAGate_ThatTheModelLacks_AreRefused) {
  using layers::GateVariant;
  const auto refused = [](const ModelChoices& choices, const DecoderConfig& model) {
    return refusal([&] { require_options_of(choices, model, "run"); });
  };
  const DecoderConfig plain = task_model(Task::text);
  DecoderConfig gated = plain;
  gated.gate = layers::parse_gate("headwise");
  ModelChoices choices;
  choices.keys.of<&GateVariant::bias_init>() = 0.0;
  EXPECT_EQ(refused(choices, plain), "--gate-bias needs --gate");
  EXPECT_EQ(refused(choices, gated), "--gate g1-headwise-sigmoid-mul-bias: run has the gate g1-headwise-sigmoid-mul");
  gated.gate.bias = layers::GateBias::learned;
  EXPECT_EQ(refused(choices, gated), "");
  choices = {};
  choices.keys.of<&GateVariant::fn>() = plain.gate.fn;
  EXPECT_EQ(refused(choices, plain), "--gate-fn needs --gate");
}

TEST(MakeConfig, PartsOfAGate_WithoutAGate_AreRefused) {
  using layers::GateVariant;
  ModelChoices choices;
  choices.keys.of<&GateVariant::op>() = GateOp::add;
  EXPECT_EQ(refusal([&] { make_config(choices, Task::text); }), "--gate-op needs --gate");
  choices.gate = "headwise";
  EXPECT_EQ(layers::gate_name(make_config(choices, Task::text).gate), "g1-headwise-sigmoid-add");
  choices.keys.of<&GateVariant::bias_init>() = 0.5;
  EXPECT_EQ(layers::gate_name(make_config(choices, Task::text).gate), "g1-headwise-sigmoid-add-bias");
  choices.keys = {};
  choices.gate = "none";
  choices.keys.of<&GateVariant::site>() = layers::GateSite::g2;
  EXPECT_NE(refusal([&] { make_config(choices, Task::text); }), "");
  choices.gate = "";
  EXPECT_EQ(layers::gate_name(make_config(choices, Task::text).gate), "g2-elementwise-sigmoid-mul");
}

TEST(DefaultText, DefaultText_TasksThatDiffer_NamesThem) {
  EXPECT_EQ(default_text(row_of<kSettings, &Schedule::steps>(), task_settings), "1000");
  EXPECT_EQ(default_text(row_of<kSettings, &TrainSettings::batch>(), task_settings), "text 16, bigram-backcopy 32");
  EXPECT_EQ(default_text(row_of<kSettings, &TrainSettings::threads>(), task_settings), "all cores");
  EXPECT_EQ(default_text(row_of<models::kConfigKeys, &DecoderConfig::qk_norm>(), task_model), "on");
}

}  // namespace
}  // namespace headgate::train
