// SPDX-License-Identifier: Apache-2.0
#include "library/core/words.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <string>

#include "headgate/error.hpp"
#include "models/decoder/config.hpp"
#include "models/layers/gate_variant.hpp"

namespace headgate {
namespace {

/// Enumerators count from 0, so a table with as many values as rows, all below its size, has every value.
template <typename Enum>
void expect_every_value_has_a_word(Enum last) {
  std::set<Enum> values;
  std::set<std::string> words;
  for (const Word<Enum>& row : Words<Enum>::kAll) {
    EXPECT_TRUE(values.insert(row.value).second) << row.word << " stands for a value that has a word";
    EXPECT_TRUE(words.insert(std::string(row.word)).second) << row.word << " stands twice";
    EXPECT_EQ(word_of(row.value), row.word);
    EXPECT_EQ(parse_word<Enum>("word", row.word), row.value);
    std::string hyphened(row.word);
    for (char& letter : hyphened) letter = letter == '_' ? '-' : letter;
    EXPECT_EQ(parse_word<Enum>("word", hyphened), row.value);
  }
  EXPECT_EQ(*values.rbegin(), last);
  EXPECT_EQ(values.size(), static_cast<std::size_t>(last) + 1);
  EXPECT_THROW(parse_word<Enum>("word", ""), Error);
  EXPECT_THROW(parse_word<Enum>("word", "no such word"), Error);
}

TEST(Words, Enums_EveryValue_HasAWord) {
  expect_every_value_has_a_word(layers::GateSite::g5);
  expect_every_value_has_a_word(layers::GateGrain::head_shared);
  expect_every_value_has_a_word(layers::GateSource::parameter);
  expect_every_value_has_a_word(layers::GateBias::learned);
  expect_every_value_has_a_word(layers::OutputControl::silu);
  expect_every_value_has_a_word(layers::SinkKind::off_by_one);
  expect_every_value_has_a_word(layers::NormKind::zero_centred);
  expect_every_value_has_a_word(layers::QkNorm::all_heads);
  expect_every_value_has_a_word(layers::Activation::gelu_tanh);
  expect_every_value_has_a_word(models::NormPlacement::post);
  expect_every_value_has_a_word(models::LayerType::linear_attention);
  expect_every_value_has_a_word(layers::ExpertRouter::sigmoid);
  expect_every_value_has_a_word(models::Switch::on);
  expect_every_value_has_a_word(models::Embeddings::separate);
}

}  // namespace
}  // namespace headgate
