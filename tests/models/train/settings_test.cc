// SPDX-License-Identifier: Apache-2.0
#include "models/train/settings.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "headgate/error.hpp"

namespace headgate::train {
namespace {

using nlohmann::json;

TrainerState sample() {
  TrainerState state;
  state.settings.paths = {"a.txt", "dir"};
  state.settings.include = {"*.md", "docs/*"};
  state.settings.task = Task::bigram_backcopy;
  state.settings.schedule = {Decay::linear, 0.1 + 0.2, 1.0 / 3.0, 7, 20};
  state.settings.beta2 = 0.999;
  state.settings.seed = std::numeric_limits<std::uint64_t>::max();
  state.step = 12;
  state.data_fingerprint = 0xFEDCBA9876543210U;
  state.spikes = 2;
  state.inside_spike = true;
  state.recent_losses = {1.0 / 7.0, 5e-324, 1e300};
  return state;
}

/// Returns the state's text with one key changed.
std::string with(const std::string& key, const json& value) {
  json state = json::parse(write_state(sample()));
  state[key] = value;
  return state.dump();
}

std::string refusal(const std::string& text) {
  try {
    read_state(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Settings, State_WrittenAndRead_IsBitwiseIdentical) {
  const TrainerState state = sample();
  const std::string text = write_state(state);
  const TrainerState back = read_state(text);
  EXPECT_EQ(write_state(back), text);
  EXPECT_EQ(back.settings.schedule.peak, state.settings.schedule.peak);
  EXPECT_EQ(back.settings.schedule.decay, Decay::linear);
  EXPECT_EQ(back.settings.task, Task::bigram_backcopy);
  EXPECT_EQ(back.settings.paths, state.settings.paths);
  EXPECT_EQ(back.settings.include, state.settings.include);
  EXPECT_EQ(back.settings.seed, state.settings.seed);
  EXPECT_EQ(back.data_fingerprint, state.data_fingerprint);
  EXPECT_EQ(back.recent_losses, state.recent_losses);
  EXPECT_TRUE(back.inside_spike);
}

TEST(Settings, State_WithoutPatterns_HasNone) {
  json state = json::parse(write_state(sample()));
  state.erase("include");
  EXPECT_TRUE(read_state(state.dump()).settings.include.empty());
}

/// Each key with a letter more is unknown, also where the key itself may be absent.
TEST(Settings, State_UnknownKey_IsRefusedByName) {
  const json state = json::parse(write_state(sample()));
  for (const auto& item : state.items()) {
    json changed = state;
    changed[item.key() + "x"] = item.value();
    EXPECT_EQ(refusal(changed.dump()), "trainer state: unknown key \"" + item.key() + "x\"");
  }
}

TEST(Settings, State_Contradictory_IsRefused) {
  EXPECT_TRUE(refusal("").starts_with("trainer state: not JSON: ")) << refusal("");
  EXPECT_NE(refusal("[1]").find("not a JSON object"), std::string::npos);
  EXPECT_NE(refusal("{}").find("no key \"format\""), std::string::npos);
  EXPECT_EQ(refusal(with("step", "12")), "trainer state: \"step\" is not a whole number in range");
  EXPECT_EQ(refusal(with("step", 1.5)), "trainer state: \"step\" is not a whole number in range");
  EXPECT_EQ(refusal(with("seed", -1)), "trainer state: \"seed\" is not a whole number in range");
  EXPECT_EQ(refusal(with("threads", 1LL << 40)), "trainer state: \"threads\" is not a whole number in range");
  EXPECT_EQ(refusal(with("lr", nullptr)), "trainer state: \"lr\" is not a number");
  EXPECT_EQ(refusal(with("inside_spike", 1)), "trainer state: \"inside_spike\" is not true or false");
  EXPECT_EQ(refusal(with("data", {1})), "trainer state: \"data\" is not a string");
  EXPECT_EQ(refusal(with("include", "*.md")), "trainer state: \"include\" is not a list");
  EXPECT_EQ(refusal(with("step", -1)), "trainer state: \"step\" is -1");
  EXPECT_NE(refusal(with("task", "poetry")).find("poetry"), std::string::npos);
  EXPECT_NE(refusal(with("format", "headgate-trainer-9")).find("headgate-trainer-9"), std::string::npos);
}

TEST(Settings, State_DuplicateKey_IsRefused) {
  std::string appended = write_state(sample());
  appended.erase(appended.find_last_of('}'));
  EXPECT_EQ(refusal(appended + ", \"lr\": 123.0}"), "trainer state: duplicate key 'lr'");
}

TEST(Settings, Value_OutOfRange_IsNamed) {
  for (const auto& [key, value] : std::initializer_list<std::pair<const char*, json>>{{"seq_len", 0},
                                                                                      {"batch", 0},
                                                                                      {"accumulate", -3},
                                                                                      {"steps", 0},
                                                                                      {"warmup", -1},
                                                                                      {"lr", -1.0},
                                                                                      {"lr_floor", 1.5},
                                                                                      {"weight_decay", -0.1},
                                                                                      {"beta1", 1.0},
                                                                                      {"beta2", 1.0},
                                                                                      {"eps", 0.0},
                                                                                      {"clip", -1.0},
                                                                                      {"threads", 0}}) {
    EXPECT_TRUE(refusal(with(key, value)).starts_with(std::string(key) + " is ")) << refusal(with(key, value));
  }
  EXPECT_NE(refusal(with("batch", 1 << 30)).find("tokens a step"), std::string::npos);
}

}  // namespace
}  // namespace headgate::train
