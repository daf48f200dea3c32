// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "headgate/error.hpp"
#include "library/core/count_fields.hpp"
#include "models/decoder/config_keys.hpp"
#include "models/decoder/tiny.hpp"
#include "models/families/config_file.hpp"

// Checks what holds for every row of kConfigKeys.

namespace headgate::models {
namespace {

/// A config in which any one row may change: with a gate for the rows of the gate alone.
template <class Row>
DecoderConfig start_of(const Row& row) {
  DecoderConfig config = tiny_config();
  if (row.group == OptionGroup::gate) config.gate = layers::parse_gate("g1-elementwise-sigmoid-mul");
  if constexpr (std::is_same_v<ValueOf<Row>, std::vector<LayerType>>)
    config.linear.key_heads = config.linear.value_heads = 2;
  return config;
}

/// Returns another value that the row allows while the other fields of the config stay.
template <class Row>
ValueOf<Row> another_value(const Row& row, const DecoderConfig& config) {
  using Value = ValueOf<Row>;
  const Value now = row.of(config);
  if constexpr (std::is_same_v<Value, std::vector<LayerType>>) {
    Value types(static_cast<std::size_t>(config.layers), LayerType::full_attention);
    types.back() = LayerType::linear_attention;
    return types;
  } else if constexpr (kIsList<Value>) {
    return Value(static_cast<std::size_t>(config.layers), 2.5);
  } else if constexpr (std::is_enum_v<Value>) {
    Value other = now;  // "none" only if there is no other word: other keys may need a gate
    for (const auto& word : Words<Value>::kAll) {
      if (word.value != now && (other == now || word_of(other) == "none")) other = word.value;
    }
    return other;
  } else if constexpr (std::is_integral_v<Value>) {
    return now == 0 ? Value{4} : 2 * now;
  } else {
    if (now == 0.0) return Value{1};
    return row.range.has(now / 2) ? now / 2 : now * 2;
  }
}

TEST(ConfigKeys, Rows_NamesKeysAndOptions_AreUnique) {
  std::set<std::string> names, keys, options;
  for_each_row(kConfigKeys, [&](const auto& row) {
    EXPECT_TRUE(names.insert(std::string(row.name)).second) << row.name;
    EXPECT_TRUE(keys.insert(std::string(row.key)).second) << row.key;
    EXPECT_FALSE(row.help.empty()) << row.name;
    if (row.option.empty()) return;
    EXPECT_TRUE(options.insert(std::string(row.option)).second) << row.option;
    EXPECT_EQ(row.type.empty(), row.flag.has_value()) << row.option;
  });
}

TEST(ConfigKeys, Config_EveryField_HasARow) {
  std::size_t fields = 0;
  for_each_row(kConfigKeys, [&fields](const auto&) { ++fields; });
  using headgate::testing::count_fields;
  constexpr std::size_t kParts = 4;  // fields whose own fields have rows
  EXPECT_EQ(fields, count_fields<DecoderConfig>() - kParts + count_fields<layers::GateVariant>() +
                        count_fields<SlidingLayers>() + count_fields<LinearLayers>() + count_fields<Experts>());
}

TEST(ConfigKeys, Config_EveryKey_RoundTripsThroughAFile) {
  for_each_row(kConfigKeys, [](const auto& row) {
    DecoderConfig config = start_of(row);
    row.of(config) = another_value(row, config);
    if (row.key == "num_key_value_heads") config.heads = 2 * config.kv_heads;
    if (row.key == "num_experts") config.experts.active = config.experts.ffn = 2;
    const DecoderConfig back = parse_config("config.json", write_config(config));
    EXPECT_TRUE(row.of(back) == row.of(config)) << row.key;
    EXPECT_EQ(back, config) << row.key;
  });
}

TEST(ConfigKeys, Field_Changed_IsQwen3OnlyIfItsRowSaysSo) {
  for_each_row(kConfigKeys, [](const auto& row) {
    DecoderConfig config = tiny_config();
    EXPECT_TRUE(is_qwen3(config));
    row.of(config) = another_value(row, config);
    EXPECT_EQ(is_qwen3(config), row.in_qwen3 == InQwen3::any) << row.key;
  });
}

std::string refusal(const DecoderConfig& config, NamesIn names) {
  try {
    validate(config, names);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ConfigKeys, Number_OutOfRange_IsRefusedByEveryName) {
  for_each_row(kConfigKeys, [](const auto& row) {
    using Value = ValueOf<std::remove_cvref_t<decltype(row)>>;
    if constexpr (std::is_arithmetic_v<Value>) {
      DecoderConfig config = start_of(row);
      if constexpr (std::is_integral_v<Value>) {
        row.of(config) = row.range.most + 1;
      } else {
        row.of(config) = std::nan("");
      }
      const std::string option(row.option.empty() ? row.key : row.option);
      EXPECT_TRUE(refusal(config, NamesIn::code).starts_with("config: " + std::string(row.name) + " is ")) << row.name;
      EXPECT_TRUE(refusal(config, NamesIn::file).starts_with(std::string(row.key) + " is ")) << row.name;
      EXPECT_TRUE(refusal(config, NamesIn::command_line).starts_with(option + " is ")) << row.name;
    }
  });
}

}  // namespace
}  // namespace headgate::models
