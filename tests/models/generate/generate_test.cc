// SPDX-License-Identifier: Apache-2.0
#include "models/generate/generate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "headgate/error.hpp"
#include "models/generate/small_model.hpp"

namespace headgate::generate {
namespace {

using Ids = std::vector<std::int32_t>;

/// Generates with a model of bytes.
class GenerateTest : public ::testing::Test, protected testing::SmallModel {
 protected:
  explicit GenerateTest(std::int64_t vocab = 256) : SmallModel(vocab, 1200) {}

  Generated run(models::CachedDecoder& model, const GenerateOptions& options, const GenerateHooks& hooks = {}) const {
    return generate(model, *tokenizer, prompt, options, hooks);
  }
  /// Returns the token of the largest logit after each token of `ids`, in one call.
  Ids most_likely(const Ids& ids) const {
    models::CachedDecoder model = decoder();
    const auto tokens = static_cast<std::int64_t>(ids.size());
    std::vector<float> logits(static_cast<std::size_t>(tokens * config.vocab));
    const View<float, 3> view(logits.data(), {1, tokens, config.vocab});
    model.append_all(view, {ids.data(), {1, tokens}});
    Ids out;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const float* row = view.at(0, t);
      out.push_back(static_cast<std::int32_t>(std::max_element(row, row + config.vocab) - row));
    }
    return out;
  }

  std::unique_ptr<tokenize::Tokenizer> tokenizer = tokenize::byte_tokenizer();
  Ids prompt{3, 1, 4, 1, 5};
};

TEST_F(GenerateTest, Token_TemperatureZero_IsTheMostLikely) {
  models::CachedDecoder model = decoder();
  const Generated result = run(model, {.max_tokens = 30});
  EXPECT_EQ(result.stop, StopReason::max_tokens);
  EXPECT_EQ(result.prompt_tokens, 5);
  EXPECT_EQ(result.steps, 29);
  EXPECT_EQ(model.length(), 34);
  EXPECT_GT(result.step_bytes, 29.0 * static_cast<double>(model.weight_bytes()));
  ASSERT_EQ(result.ids.size(), 30U);
  Ids all = prompt;
  all.insert(all.end(), result.ids.begin(), result.ids.end() - 1);
  const Ids expected = most_likely(all);
  EXPECT_EQ(result.ids, Ids(expected.begin() + 4, expected.end()));
}

TEST_F(GenerateTest, Prompt_InParts_GivesTheSameText) {
  for (int i = 0; i < 1100; ++i) prompt.push_back((i * i) % 251);
  models::CachedDecoder model = decoder();
  int calls = 0;
  GenerateHooks hooks;
  hooks.text = [&](std::string_view bytes) {
    calls += bytes.empty() ? 1 : 0;
    return true;
  };
  const Generated result = run(model, {.max_tokens = 1}, hooks);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(result.prompt_tokens, 1105);
  EXPECT_EQ(result.ids, Ids{most_likely(prompt).back()});
  models::CachedDecoder stopped = decoder();
  hooks.text = [](std::string_view) { return false; };
  const Generated nothing = run(stopped, {}, hooks);
  EXPECT_EQ(nothing.stop, StopReason::interrupted);
  EXPECT_EQ(nothing.prompt_tokens, 512);
  EXPECT_EQ(nothing.ids, Ids());
}

TEST_F(GenerateTest, EndToken_Drawn_StopsAndIsNoText) {
  models::CachedDecoder free_model = decoder();
  const Ids ids = run(free_model, {.max_tokens = 12}).ids;
  const auto first = std::find(ids.begin(), ids.end(), ids[8]);
  models::CachedDecoder model = decoder();
  std::string text;
  GenerateHooks hooks;
  hooks.text = [&](std::string_view bytes) {
    text += bytes;
    return true;
  };
  int choices = 0;
  hooks.logits = [&](std::span<const float> logits) {
    EXPECT_EQ(static_cast<std::int64_t>(logits.size()), config.vocab);
    EXPECT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(), ids[static_cast<std::size_t>(choices)]);
    ++choices;
  };
  const Generated result = run(model, {.max_tokens = 12, .end_ids = {ids[8]}}, hooks);
  EXPECT_EQ(result.stop, StopReason::end_token);
  EXPECT_EQ(result.ids, Ids(ids.begin(), first + 1));
  EXPECT_EQ(choices, static_cast<int>(result.ids.size()));
  EXPECT_EQ(text, tokenizer->decode(Ids(ids.begin(), first)));
}

TEST_F(GenerateTest, StopText_Reached_EndsTheTextBeforeIt) {
  models::CachedDecoder free_model = decoder();
  const Ids ids = run(free_model, {.max_tokens = 12}).ids;
  const auto bytes_of = [&](std::size_t from, std::size_t to) {
    return tokenizer->decode(
        Ids(ids.begin() + static_cast<std::ptrdiff_t>(from), ids.begin() + static_cast<std::ptrdiff_t>(to)));
  };
  std::string text;
  GenerateHooks hooks;
  hooks.text = [&](std::string_view bytes) {
    text += bytes;
    return true;
  };
  models::CachedDecoder model = decoder();
  const std::string stop = bytes_of(0, 12).substr(5, 3);
  const Generated result = run(model, {.max_tokens = 12, .stop_texts = {"never", stop}}, hooks);
  EXPECT_EQ(result.stop, StopReason::stop_text);
  EXPECT_LT(result.ids.size(), 12U);
  EXPECT_EQ(text, bytes_of(0, 12).substr(0, bytes_of(0, 12).find(stop)));
  text.clear();
  models::CachedDecoder other = decoder();
  EXPECT_EQ(run(other, {.max_tokens = 12, .stop_texts = {bytes_of(0, 12) + "more"}}, hooks).stop,
            StopReason::max_tokens);
  EXPECT_EQ(text, bytes_of(0, 12)) << "what was withheld is text after all";
  models::CachedDecoder unused = decoder();
  EXPECT_THROW(run(unused, {.stop_texts = {""}}), Error);
}

TEST_F(GenerateTest, Generation_CapacityUsedUp_Stops) {
  models::CachedDecoder model = decoder(8);
  const Generated result = run(model, {});
  EXPECT_EQ(result.stop, StopReason::capacity);
  EXPECT_EQ(model.length(), 8);
  EXPECT_EQ(result.ids.size(), 4U);  // the last token was chosen but not appended
}

TEST_F(GenerateTest, Generation_HookReturnsFalse_Stops) {
  models::CachedDecoder model = decoder();
  GenerateHooks hooks;
  int calls = 0;
  hooks.text = [&](std::string_view) { return ++calls < 3; };
  const Generated result = run(model, {}, hooks);
  EXPECT_EQ(result.stop, StopReason::interrupted);
  EXPECT_EQ(result.ids.size(), 3U);
}

TEST_F(GenerateTest, Text_SameSeed_IsTheSame) {
  const auto drawn = [&](std::uint64_t seed) {
    models::CachedDecoder model = decoder();
    return run(model, {.sampling = {.temperature = 1.0, .top_k = 50, .seed = seed}, .max_tokens = 20}).ids;
  };
  EXPECT_EQ(drawn(1), drawn(1));
  EXPECT_NE(drawn(1), drawn(2));
}

TEST_F(GenerateTest, Guesses_OfAnyLayers_ChangeNoToken) {
  using enum models::LayerType;
  config.linear = {.key_heads = 1, .value_heads = 2, .key_dim = 4, .value_dim = 4, .kernel = 3};
  config.window = 5;
  std::int64_t guessed = 0, right = 0;
  for (const std::vector<models::LayerType>& types : {std::vector{full_attention, full_attention},
                                                      {linear_attention, full_attention},
                                                      {sliding_attention, linear_attention}}) {
    config.layer_types = types;
    for (const float scale : {1.0F, 0.1F}) {  // with small numbers a model repeats itself
      parameters = random_parameters(config);
      for (float& each : parameters) each *= scale;
      const auto text_with = [&](std::int64_t drafts, std::int64_t capacity, const GenerateOptions& options) {
        models::CachedDecoder model(config, parameters.data(),
                                    {.weights = DType::f32, .capacity = capacity, .keep = drafts});
        GenerateOptions with = options;
        with.drafts = drafts;
        const Generated result = run(model, with);
        guessed += result.guessed;
        right += result.guessed_right;
        return std::tuple(result.ids, result.stop, result.steps, model.length());
      };
      const Ids ids = std::get<0>(text_with(0, 60, {.max_tokens = 40}));
      for (const GenerateOptions& options :
           {GenerateOptions{.max_tokens = 40}, GenerateOptions{.end_ids = {ids[20]}},
            GenerateOptions{.stop_texts = {tokenizer->decode(Ids(ids.begin() + 18, ids.begin() + 21))}},
            GenerateOptions{.sampling = {.temperature = 0.7, .seed = 4}, .max_tokens = 40}, GenerateOptions{}}) {
        const auto expected = text_with(0, 60, options);
        for (const std::int64_t drafts : {1, 4}) EXPECT_EQ(text_with(drafts, 60, options), expected);
      }
    }
  }
  EXPECT_GT(right, 100);
  EXPECT_GT(guessed, right) << "some guesses are refused";
  models::CachedDecoder model = decoder();
  EXPECT_THROW(run(model, {.drafts = -1}), Error);
}

/// Passes of 33 tokens and more are computed in bf16: those of prompts, not those of guesses.
TEST_F(GenerateTest, Guesses_ManyWithPrecisionBf16_LeaveLogitsUnrounded) {
  config.embeddings = models::Embeddings::separate;
  parameters = random_parameters(config);
  const models::ParameterTable table(config);
  const auto values = [&](const std::string& name) {
    const auto& all = table.entries();
    const auto found = std::find_if(all.begin(), all.end(), [&](const auto& each) { return each.name == name; });
    return parameters.begin() + found->offset;
  };
  for (const models::Parameter& p : table.entries()) {
    for (std::int64_t i = p.offset; i < p.offset + p.count; ++i) parameters[static_cast<std::size_t>(i)] *= 0.4F;
  }
  std::fill_n(values("model.norm.weight"), config.dim, 1.0F);
  // After token t comes t + 1: the row of the output matrix is the embedding of t, whose length is 1.
  const auto embedding = values("model.embed_tokens.weight"), head = values("lm_head.weight");
  for (std::int64_t id = 0; id < config.vocab; ++id) {
    const auto row = embedding + id * config.dim;
    const float length = std::sqrt(std::inner_product(row, row + config.dim, row, 0.0F));
    std::transform(row, row + config.dim, head + (id + 1) % config.vocab * config.dim, [&](float& x) {
      x /= length;
      return x;
    });
  }
  prompt.resize(100);
  std::iota(prompt.begin(), prompt.end(), 0);
  prompt.insert(prompt.end(), {0, 1, 2});
  const auto logits_with = [&](std::int64_t drafts) {
    models::CachedDecoder model(config, parameters.data(),
                                {.weights = DType::f32, .precision = models::ModelPrecision::bf16, .keep = drafts});
    std::vector<float> all;
    GenerateHooks hooks;
    hooks.logits = [&](std::span<const float> logits) { all.insert(all.end(), logits.begin(), logits.end()); };
    const Generated result = run(model, {.max_tokens = 80, .drafts = drafts}, hooks);
    EXPECT_GE(result.guessed_right, std::min<std::int64_t>(drafts, 60));
    return all;
  };
  const std::vector<float> wanted = logits_with(0), got = logits_with(64);
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t n = 0; n < got.size(); ++n) ASSERT_NEAR(got[n], wanted[n], 1e-4) << n;
}

TEST_F(GenerateTest, Prompt_TooLong_IsRefused) {
  models::CachedDecoder model = decoder(4);
  EXPECT_THROW(run(model, {}), Error);
  prompt = {};
  EXPECT_THROW(run(model, {}), Error);
  prompt = {1};
  EXPECT_THROW(run(model, {.max_tokens = 0}), Error);
  EXPECT_THROW(run(model, {.sampling = {.top_p = 2.0}}), Error);
  EXPECT_EQ(model.length(), 0);
}

TEST_F(GenerateTest, Logits_NotFinite_AreRefused) {
  std::fill(parameters.begin(), parameters.end(), std::numeric_limits<float>::quiet_NaN());
  models::CachedDecoder model = decoder();
  EXPECT_THROW(run(model, {}), Error);
}

class MoreRowsThanTokens : public GenerateTest {
 protected:
  MoreRowsThanTokens() : GenerateTest(4000) {}
};

TEST_F(MoreRowsThanTokens, Rows_BeyondTheTokens_AreNotChosen) {
  models::CachedDecoder model = decoder();
  const Generated result = run(model, {.sampling = {.temperature = 2.0}, .max_tokens = 50});
  EXPECT_EQ(result.ids.size(), 50U);
  EXPECT_LT(*std::max_element(result.ids.begin(), result.ids.end()), 256);
}

class FewerRowsThanTokens : public GenerateTest {
 protected:
  FewerRowsThanTokens() : GenerateTest(100) {}
};

TEST_F(FewerRowsThanTokens, Prompt_TokenBeyondTheRows_IsRefused) {
  models::CachedDecoder model = decoder();
  EXPECT_EQ(run(model, {.max_tokens = 5}).ids.size(), 5U);
  prompt = {100};
  EXPECT_THROW(run(model, {}), Error);
}

}  // namespace
}  // namespace headgate::generate
