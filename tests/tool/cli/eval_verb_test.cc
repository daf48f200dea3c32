// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "models/decoder/tiny.hpp"
#include "models/evaluate/registry.hpp"
#include "models/families/model_file.hpp"
#include "models/families/saved_model.hpp"
#include "models/io/npy.hpp"
#include "models/train/checkpoint.hpp"
#include "tool/cli/small_verbs.hpp"

namespace headgate {
namespace {

using nlohmann::json;
using testing::expect_refused;
using testing::Outcome;
using testing::TrainVerb;

class EvalVerbTest : public ::testing::Test {
 protected:
  json evaluated(const std::string& run, std::vector<std::string> more = {}) const {
    more.push_back("--json");
    const Outcome outcome = verb.eval(run, more);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    return json::parse(outcome.out);
  }

  TrainVerb verb;
};

/// Returns the mean over queries 1 … T−1 of uniform attention to token 0.
double uniform(int T) {
  double sum = 0.0;
  for (int i = 1; i < T; ++i) sum += 1.0 / (i + 1);
  return sum / (T - 1);
}

TEST_F(EvalVerbTest, Json_EveryMetric_HasItsKeys) {
  ASSERT_EQ(verb.train("run", {"--gate", "headwise"}).status, 0);
  const json all = evaluated("run");
  const std::vector<const char*> statistics = {"first_token_attention",
                                               "first_token_attention_uniform",
                                               "sink_rate",
                                               "massive_activation",
                                               "massive_activation_token",
                                               "massive_activation_channel",
                                               "kurtosis",
                                               "kurtosis_without_first",
                                               "gate_mean",
                                               "gate_below_0.1",
                                               "gate_below_0.01",
                                               "first_token_attention_gated"};
  ASSERT_EQ(all.at("layers").size(), 2U);
  for (const char* key : statistics) {
    EXPECT_TRUE(all.at(key).is_number()) << key;
    for (const json& layer : all.at("layers")) EXPECT_TRUE(layer.at(key).is_number()) << key;
  }
  for (const json& layer : all.at("layers")) EXPECT_FALSE(layer.contains("loss_nats")) << "it costs a pass of the head";
  const double loss = all.at("loss_nats");
  EXPECT_DOUBLE_EQ(all.at("bits_per_byte").get<double>(), loss / std::log(2.0));
  EXPECT_DOUBLE_EQ(all.at("perplexity").get<double>(), std::exp(loss));
  EXPECT_DOUBLE_EQ(all.at("first_token_attention_uniform").get<double>(), uniform(16));
  // (4000 − 1) / 16 = 249 windows; 19 batches of 13 leave out the fewest.
  EXPECT_EQ(all.at("tokens"), 247 * 16);
  EXPECT_FALSE(all.contains("backcopy"));
  const json& layers = all.at("layers");
  const json& largest = layers[0].at("massive_activation") > layers[1].at("massive_activation") ? layers[0] : layers[1];
  for (const char* key : {"massive_activation", "massive_activation_token", "massive_activation_channel"}) {
    EXPECT_EQ(all.at(key), largest.at(key)) << key << " of the model is that of the layer with the maximum";
  }
  EXPECT_TRUE(all.at("massive_activation_token").is_number_integer());
}

/// Writes the bytes of the text as ids in a .npy file, and gets the log-probabilities of a run on them.
TEST_F(EvalVerbTest, TokenIds_WithLogProbabilities_AreWritten) {
  ASSERT_EQ(verb.train("run", {"--gate", "headwise"}).status, 0);
  const std::string text = testing::read_bytes(verb.text());
  verb.write_ids(std::vector<std::int64_t>(text.begin(), text.end()));
  const std::vector<std::string> command{
      "eval",     verb.path("run"),     "--token-ids", verb.path("ids.npy"), "--tokens", "32",
      "--logits", verb.path("out.npy"), "--json"};
  const Outcome outcome = testing::headgate(command);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json by_ids = json::parse(outcome.out), by_text = evaluated("run", {"--tokens", "32"});
  EXPECT_EQ(by_ids.at("loss_nats"), by_text.at("loss_nats"));
  EXPECT_TRUE(by_ids.at("bits_per_byte").is_null());
  const io::Array out = io::read_npy(verb.path("out.npy"));
  ASSERT_EQ(out.shape, (std::vector<std::int64_t>{2, 16, 256}));
  const auto* log_p = reinterpret_cast<const float*>(out.data.get());
  for (std::int64_t n = 0; n < 32; ++n) {
    double sum = 0.0;
    for (std::int64_t v = 0; v < 256; ++v) sum += std::exp(static_cast<double>(log_p[n * 256 + v]));
    EXPECT_NEAR(sum, 1.0, 1e-5) << n;
  }
  expect_refused(testing::headgate({"eval", verb.path("run"), "--token-ids", verb.path("out.npy")}), "eval",
                 "not a list of token ids");
  expect_refused(testing::headgate({"eval", verb.path("run"), verb.path("run"), "--token-ids", verb.path("ids.npy"),
                                    "--logits", verb.path("out.npy")}),
                 "eval", "--logits takes one MODEL");
}

TEST_F(EvalVerbTest, ConvertedModel_Evaluated_HasTheSameFigures) {
  ASSERT_EQ(verb.train("run", {"--gate", "elementwise"}).status, 0);
  const std::string checkpoint = verb.path("run") + "/checkpoint";
  const std::vector<std::string> fused{"convert", checkpoint, verb.path("fused"), "--layout", "per_query_head"};
  ASSERT_EQ(testing::headgate(fused).status, 0);
  EXPECT_EQ(testing::read_bytes(verb.path("fused") + "/modeling_headgate.py"),
            verb.checkpoint_file("run", "modeling_headgate.py"));
  EXPECT_EQ(evaluated("fused"), evaluated("run"));
  const std::vector<std::string> back{"convert", verb.path("fused"), verb.path("back"), "--layout", "separate"};
  ASSERT_EQ(testing::headgate(back).status, 0);
  EXPECT_EQ(testing::read_bytes(verb.path("back") + "/model.safetensors"),
            verb.checkpoint_file("run", "model.safetensors"));
  expect_refused(testing::headgate({"convert", checkpoint, verb.path("x"), "--dtype", "f64"}), "convert", "--dtype");
  expect_refused(testing::headgate({"convert", checkpoint, verb.path("x"), "--layout", "rows"}), "convert", "--layout");
}

TEST_F(EvalVerbTest, ConvertedRun_SeveralCheckpoints_IsTheNewest) {
  ASSERT_EQ(verb.train("run").status, 0);
  const Outcome outcome = testing::headgate({"convert", verb.path("run"), verb.path("model")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "headgate convert: wrote " + verb.path("model") + ": 10352 parameters in f32\n");
  EXPECT_EQ(evaluated("model"), evaluated("run"));
}

/// Returns the keys of an object, unordered.
std::set<std::string> keys_of(const json& object) {
  std::set<std::string> keys;
  for (const auto& item : object.items()) keys.insert(item.key());
  return keys;
}

/// Leaves out metrics of linear attention, which models without it do not have.
metrics::MetricList of_attention(metrics::MetricList metrics) {
  std::erase_if(
      metrics, [](const metrics::Metric* metric) { return metric->layers == metrics::MetricLayers::linear_attention; });
  return metrics;
}

TEST_F(EvalVerbTest, Json_Keys_AreThoseOfTheRegistry) {
  ASSERT_EQ(verb.train("run", {"--task", "bigram-backcopy", "--gate", "headwise"}).status, 0);
  const json all = evaluated("run", {"--tokens", "320"});
  std::set<std::string> figures, by_trigger;
  const metrics::MetricList defaults = of_attention(metrics::default_metrics());
  for (const auto* figure : metrics::figures_of(defaults, /*of_triggers=*/false)) figures.emplace(figure->key);
  for (const auto* figure : metrics::figures_of(defaults, /*of_triggers=*/true)) by_trigger.emplace(figure->key);
  EXPECT_EQ(keys_of(all.at("backcopy")), by_trigger);
  for (const metrics::Metric* metric : defaults) {
    const bool of_layers = metric->scope == metrics::Scope::layers_and_mean;
    for (const metrics::Figure& figure : metric->figures) {
      EXPECT_EQ(all.at("layers")[0].contains(std::string(figure.key)), of_layers) << figure.key;
    }
  }
  figures.insert({"layers", "backcopy", "tokens", "seq_len"});
  EXPECT_EQ(keys_of(all), figures);
}

TEST_F(EvalVerbTest, Figures_OfHeads_AreGiven) {
  ASSERT_EQ(verb.train("run", {"--gate", "headwise"}).status, 0);
  json all = evaluated("run", {"--heads"});
  std::set<std::string> figures;
  for (const auto* figure : metrics::figures_of(metrics::of_heads(of_attention(metrics::default_metrics())), false)) {
    figures.emplace(figure->key);
  }
  ASSERT_GE(figures.size(), 6U);
  for (json& layer : all.at("layers")) {
    const json heads = layer.at("heads");
    ASSERT_EQ(heads.size(), 2U);
    EXPECT_EQ(keys_of(heads[0]), figures);
    for (const std::string& key : figures) {
      EXPECT_NEAR((heads[0].at(key).get<double>() + heads[1].at(key).get<double>()) / 2, layer.at(key).get<double>(),
                  1e-12)
          << key;
    }
    layer.erase("heads");
  }
  EXPECT_EQ(all, evaluated("run"));
  const std::string table = verb.eval("run", {"--heads", "--metrics", "gate_mean"}).out;
  EXPECT_NE(table.find("\ngate_mean of each head\n layer       0       1\n     0  0."), std::string::npos) << table;
  EXPECT_NE(table.find("\n     1  0."), std::string::npos) << table;
  expect_refused(verb.eval("run", {"--heads", "--metrics", "loss"}), "eval", "--heads: none of the metrics");
  expect_refused(testing::headgate({"eval", verb.path("run"), verb.path("run"), "--text", verb.text(), "--heads"}),
                 "eval", "--heads takes one MODEL, or --json");
}

TEST_F(EvalVerbTest, GateThreshold_Given_IsComparedWithAllRows) {
  ASSERT_EQ(verb.train("run", {"--gate", "headwise"}).status, 0);
  const json plain = evaluated("run");
  EXPECT_FALSE(plain.contains("gate_threshold"));
  json none = evaluated("run", {"--gate-threshold", "1e-6"});
  const json nothing_closed = none.at("gate_threshold");
  none.erase("gate_threshold");
  EXPECT_EQ(none, plain) << "the figures are those of all rows";
  EXPECT_EQ(nothing_closed.at("threshold"), 1e-6);
  EXPECT_EQ(nothing_closed.at("closed_share"), 0.0);
  EXPECT_EQ(nothing_closed.at("with").at("loss_nats"), nothing_closed.at("without").at("loss_nats"));
  EXPECT_NEAR(nothing_closed.at("without").at("loss_nats").get<double>(), plain.at("loss_nats").get<double>(), 1e-6);
  const json all_closed = evaluated("run", {"--gate-threshold", "1"}).at("gate_threshold");
  EXPECT_EQ(all_closed.at("closed_share"), 1.0);
  EXPECT_NE(all_closed.at("with").at("loss_nats"), all_closed.at("without").at("loss_nats"));
  for (const char* pass : {"with", "without"}) {
    const json& figures = all_closed.at(pass);
    EXPECT_GT(figures.at("attention_seconds"), 0.0);
    EXPECT_GT(figures.at("seconds"), figures.at("attention_seconds"));
    EXPECT_GT(figures.at("tokens_per_second"), 0.0);
  }
  const std::string text = verb.eval("run", {"--gate-threshold", "1"}).out;
  EXPECT_NE(text.find("\ngate threshold 1: 100.0% of rows closed; loss "), std::string::npos) << text;
}

TEST_F(EvalVerbTest, GateThreshold_OtherGate_IsRefused) {
  ASSERT_EQ(verb.train("plain", {}).status, 0);
  ASSERT_EQ(verb.train("gated", {"--gate", "headwise"}).status, 0);
  expect_refused(verb.eval("plain", {"--gate-threshold", "0.1"}), "eval",
                 "plain has gate none, which does not multiply the attention output");
  expect_refused(verb.eval("gated", {"--gate-threshold", "-1"}), "eval", "--gate-threshold is -1 but must be at least");
}

TEST_F(EvalVerbTest, CacheDtype_Int8_IsComparedWithUnrounded) {
  ASSERT_EQ(verb.train("run", {"--gate", "headwise"}).status, 0);
  const json plain = evaluated("run");
  EXPECT_FALSE(plain.contains("cache"));
  json rounded = evaluated("run", {"--cache-dtype", "i8", "--threads", "2"});
  EXPECT_EQ(rounded, evaluated("run", {"--cache-dtype", "i8", "--threads", "1"}));
  const json cache = rounded.at("cache");
  rounded.erase("cache");
  EXPECT_EQ(rounded, plain) << "the figures are those of the unrounded model";
  EXPECT_EQ(keys_of(cache),
            (std::set<std::string>{"dtype", "first", "loss_nats", "unrounded_loss_nats", "kl_nats", "same_top_1"}));
  EXPECT_EQ(cache.at("dtype"), "i8");
  const double loss = plain.at("loss_nats");
  EXPECT_NEAR(cache.at("unrounded_loss_nats").get<double>(), loss, 1e-5);
  EXPECT_NEAR(cache.at("loss_nats").get<double>(), loss, 0.05);
  EXPECT_GT(cache.at("kl_nats"), 0.0);
  EXPECT_GT(cache.at("same_top_1"), 0.5);
  const std::string run = verb.path("run");
  const std::string text = verb.eval("run", {"--cache-dtype", "i8"}).out;
  EXPECT_NE(text.find("\ncache i8: loss "), std::string::npos) << text;
  const std::string both =
      testing::headgate({"eval", run, run, "--text", verb.text(), "--cache-dtype", "i8", "--tokens", "320"}).out;
  EXPECT_NE(both.find("\n" + run + "  cache i8: loss "), std::string::npos) << both;
  expect_refused(verb.eval("run", {"--cache-dtype", "f32"}), "eval", "--cache-dtype: 'f32'");

  EXPECT_EQ(cache.at("first"), 0);
  const json whole = evaluated("run", {"--cache-dtype", "i8", "--cache-first", "4"}).at("cache");
  EXPECT_EQ(whole.at("first"), 4);
  EXPECT_NE(whole.at("kl_nats"), cache.at("kl_nats"));
  const std::string said = verb.eval("run", {"--cache-dtype", "i8", "--cache-first", "4"}).out;
  EXPECT_NE(said.find("\ncache i8, first 4 not rounded: loss "), std::string::npos) << said;
  expect_refused(verb.eval("run", {"--cache-first", "4"}), "eval", "--cache-first");
  expect_refused(verb.eval("run", {"--cache-dtype", "i8", "--cache-first", "-1"}), "eval", "--cache-first");
}

TEST_F(EvalVerbTest, Activations_Int8_AreComparedWithUnrounded) {
  ASSERT_EQ(verb.train("run", {"--gate", "headwise"}).status, 0);
  const json plain = evaluated("run");
  json rounded = evaluated("run", {"--activations", "i8-tensor-keep-first,i8-token", "--activations", "i8-tensor"});
  const json found = rounded.at("activations");
  rounded.erase("activations");
  EXPECT_EQ(rounded, plain) << "the figures are those of the unrounded model";
  EXPECT_EQ(keys_of(found), (std::set<std::string>{"i8-tensor-keep-first", "i8-token", "i8-tensor"}));
  for (const json& figures : found) {
    EXPECT_EQ(keys_of(figures), (std::set<std::string>{"loss_nats", "unrounded_loss_nats", "kl_nats", "same_top_1"}));
    EXPECT_NEAR(figures.at("unrounded_loss_nats").get<double>(), plain.at("loss_nats").get<double>(), 1e-5);
    EXPECT_NEAR(figures.at("loss_nats").get<double>(), plain.at("loss_nats").get<double>(), 0.05);
    EXPECT_GT(figures.at("kl_nats"), 0.0);
  }
  EXPECT_GT(found.at("i8-tensor").at("kl_nats"), found.at("i8-token").at("kl_nats"));
  const std::string text = verb.eval("run", {"--activations", "i8-token", "--cache-dtype", "i8"}).out;
  EXPECT_NE(text.find("\ncache i8: loss "), std::string::npos) << text;
  EXPECT_NE(text.find("\nactivations i8-token (simulated): loss "), std::string::npos) << text;
}

TEST_F(EvalVerbTest, FirstToken_BehindAWindow_IsRefusedOnlyByName) {
  ASSERT_EQ(verb.train("run", {"--window", "4"}).status, 0);
  ASSERT_EQ(verb.train("full").status, 0);
  const json found = evaluated("run");
  EXPECT_TRUE(found.at("first_token_attention").is_null());
  EXPECT_TRUE(found.at("sink_rate").is_null());
  EXPECT_TRUE(found.at("kurtosis").is_number());
  EXPECT_TRUE(evaluated("run", {"--metrics", "loss,all"}).at("attention_entropy").is_number());
  const json both = evaluated("run", {verb.path("full")});
  EXPECT_TRUE(both.at(0).at("first_token_attention").is_null());
  EXPECT_TRUE(both.at(1).at("first_token_attention").is_number());
  const std::string text = verb.eval("run").out;
  EXPECT_EQ(text.find("sink"), std::string::npos) << text;
  expect_refused(verb.eval("run", {"--metrics", "loss,sink_rate"}), "eval",
                 "--seq-len 16 is more than the window of " + verb.path("run") + ", 4");
}

TEST_F(EvalVerbTest, Triggers_NoneInTheText_HaveNoFigures) {
  std::string text;
  for (int i = 0; i < 4000; ++i) text += static_cast<char>('a' + i * i % 4);  // a, b: neither t, e nor space
  testing::write_bytes(verb.text(), text);
  const Outcome trained = verb.train("run", {"--task", "bigram-backcopy", "--vocab", "264", "--eval-every", "20"});
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_NE(trained.out.find("at other tokens"), std::string::npos) << trained.out;
  EXPECT_EQ(trained.out.find("at triggers"), std::string::npos) << trained.out;
  const json found = evaluated("run", {"--tokens", "64"}).at("backcopy");
  for (const char* key : {"loss_trigger", "first_token_attention_trigger"}) {
    EXPECT_TRUE(found.at(key).is_null()) << key << ' ' << found;
  }
  for (const char* key : {"loss_other", "first_token_attention_other", "first_token_value_norm_ratio"}) {
    EXPECT_TRUE(found.at(key).is_number()) << key << ' ' << found;
  }
}

TEST_F(EvalVerbTest, Seed_SequencesNotDrawn_IsRefused) {
  ASSERT_EQ(verb.train("run", {"--vocab", "264"}).status, 0);
  expect_refused(verb.eval("run", {"--seed", "4"}), "eval",
                 "--seed 4: sequences of --task text are not drawn at random; omit it");
  const std::vector<std::string> drawn{"--task", "bigram-backcopy", "--tokens", "64", "--metrics", "loss", "--seed"};
  const auto with_seed = [&drawn](const char* seed) {
    std::vector<std::string> out = drawn;
    out.emplace_back(seed);
    return out;
  };
  EXPECT_NE(evaluated("run", with_seed("4")), evaluated("run", with_seed("5")));
  const std::string ids = verb.write_ids(std::vector<std::int32_t>(40, 7));
  expect_refused(testing::headgate({"eval", verb.path("run"), "--token-ids", ids, "--seed", "4"}), "eval",
                 "--token-ids excludes --seed");
}

TEST_F(EvalVerbTest, Activations_NotComputed_AreRefused) {
  ASSERT_EQ(verb.train("run").status, 0);
  expect_refused(verb.eval("run", {"--activations", "i8"}), "eval", "--activations: 'i8' is none of i8-token");
  expect_refused(verb.eval("run", {"--activations", "i8-token", "--precision", "bf16"}), "eval",
                 "--activations i8-token: rounds activations in f32, not in --precision bf16");
  expect_refused(verb.eval("run", {"--activations", "i8-tensor", "--part", "8"}), "eval",
                 "--activations i8-tensor: one scale for a sequence of 16 tokens needs --part 16");
  EXPECT_EQ(verb.eval("run", {"--activations", "i8-token", "--part", "8"}).status, 0);
}

TEST_F(EvalVerbTest, Against_SameTokens_IsCompared) {
  ASSERT_EQ(verb.train("run").status, 0);
  ASSERT_EQ(verb.train("other", {"--gate", "headwise", "--seed", "5"}).status, 0);
  const json plain = evaluated("run"), other = evaluated("other");
  json compared = evaluated("run", {"--against", verb.path("other")});
  const json against = compared.at("against");
  compared.erase("against");
  EXPECT_EQ(compared, plain);
  EXPECT_EQ(keys_of(against),
            (std::set<std::string>{"model", "loss_nats", "reference_loss_nats", "kl_nats", "same_top_1"}));
  EXPECT_EQ(against.at("model"), verb.path("other"));
  EXPECT_NEAR(against.at("loss_nats").get<double>(), plain.at("loss_nats").get<double>(), 1e-5);
  EXPECT_NEAR(against.at("reference_loss_nats").get<double>(), other.at("loss_nats").get<double>(), 1e-5);
  EXPECT_GT(against.at("kl_nats"), 0.0);
  const json same = evaluated("run", {"--against", verb.path("run")}).at("against");
  EXPECT_EQ(same.at("kl_nats"), 0.0);
  EXPECT_EQ(same.at("same_top_1"), 1.0);
  const std::string text = verb.eval("run", {"--against", verb.path("other")}).out;
  EXPECT_NE(text.find("\nagainst " + verb.path("other") + ": loss "), std::string::npos) << text;
}

TEST_F(EvalVerbTest, Against_OtherTokens_IsRefused) {
  ASSERT_EQ(verb.train("run").status, 0);
  ASSERT_EQ(verb.train("bos", {"--bos", "on"}).status, 0);
  expect_refused(verb.eval("run", {"--against", verb.path("bos")}), "eval", "--against " + verb.path("bos"));
  expect_refused(verb.eval("run", {"--against", verb.path("none")}), "eval", "none: does not exist");
  expect_refused(verb.eval("run", {"--against", verb.text()}), "eval", "was taken for a MODEL, but is a text");
}

TEST_F(EvalVerbTest, CacheDtype_NoLayerOfAttention_IsRefused) {
  models::DecoderConfig config = models::mixed_families().front();
  config.vocab = 256;
  config.gate = {};
  config.layer_types = {models::LayerType::linear_attention, models::LayerType::linear_attention};
  std::vector<float> parameters = testing::SavedModel(config).parameters;
  for (float& parameter : parameters) parameter *= 1e-3F;
  models::write_model(verb.path("linear"), {.config = config}, parameters, DType::f32);
  expect_refused(verb.eval("linear", {"--cache-dtype", "i8"}), "eval",
                 "--cache-dtype i8: " + verb.path("linear") + " has no layers of attention, so no keys and values");
  ASSERT_EQ(verb.train("run").status, 0);
  const Outcome both = testing::headgate({"eval", verb.path("linear"), verb.path("run"), "--text", verb.text(),
                                          "--seq-len", "7", "--tokens", "70", "--cache-dtype", "i8", "--json"});
  const json models = json::parse(both.out);
  EXPECT_FALSE(models.at(0).contains("cache"));
  EXPECT_TRUE(models.at(1).contains("cache"));
}

TEST(EvalHelp, Help_EveryMetric_NamesItsKeys) {
  std::istringstream words(testing::headgate({"eval", "--help"}).out);
  std::set<std::string> said;
  for (std::string word; words >> word;) {
    while (!word.empty() && std::string(",;)").find(word.back()) != std::string::npos) word.pop_back();
    said.insert(word);
  }
  for (const metrics::Metric* metric : metrics::all_metrics()) {
    EXPECT_TRUE(said.contains(std::string(metric->name))) << metric->name;
    for (const metrics::Figure& figure : metric->figures) {
      EXPECT_TRUE(said.contains(std::string(figure.key))) << figure.key;
    }
  }
}

TEST_F(EvalVerbTest, Metrics_Chosen_AreGiven) {
  ASSERT_EQ(verb.train("run", {"--gate", "headwise"}).status, 0);
  const json all = evaluated("run");
  json every = evaluated("run", {"--metrics", "all"});
  const json layers = evaluated("run", {"--metrics", "layer_loss"}).at("layers");
  EXPECT_EQ(layers[0].at("loss_nats"), every.at("layers")[0].at("loss_nats"));
  for (const metrics::Metric* metric : of_attention(metrics::all_metrics())) {
    if (metric->by_default) continue;
    for (const metrics::Figure& figure : metric->figures) {
      if (metric->scope != metrics::Scope::layers) {
        EXPECT_EQ(every.erase(std::string(figure.key)), 1U) << figure.key;
      }
      for (json& layer : every.at("layers")) EXPECT_EQ(layer.erase(std::string(figure.key)), 1U) << figure.key;
    }
  }
  EXPECT_EQ(every, all);
  expect_refused(verb.eval("run", {"--metrics", "decay,reach"}), "eval",
                 "--metrics decay,reach: only models with layers of linear attention have it");
  const json some = evaluated("run", {"--metrics", "sink-rate,gate_mean", "--metrics", "loss"});
  EXPECT_EQ(keys_of(some), (std::set<std::string>{"loss_nats", "bits_per_byte", "perplexity", "sink_rate", "gate_mean",
                                                  "layers", "tokens", "seq_len"}));
  EXPECT_EQ(keys_of(some.at("layers")[1]), (std::set<std::string>{"sink_rate", "gate_mean"}));
  for (const char* key : {"loss_nats", "gate_mean", "tokens"}) EXPECT_EQ(some.at(key), all.at(key)) << key;
  EXPECT_EQ(some.at("layers")[1].at("gate_mean"), all.at("layers")[1].at("gate_mean"));
  EXPECT_EQ(evaluated("run", {"--metrics", "loss_nats"}), evaluated("run", {"--metrics", "loss"})) << "a key of JSON";
  const std::string table = verb.eval("run", {"--metrics", "gate_below"}).out;
  EXPECT_NE(table.find("\n              gate    gate\n             below   below\n     layer     0.1    0.01\n"),
            std::string::npos)
      << "a heading says, downwards, what --metrics takes: " << table;
  EXPECT_EQ(table.find("perplexity"), std::string::npos) << table;
  const std::string loss = verb.eval("run", {"--metrics", "loss"}).out;
  EXPECT_NE(loss.find("perplexity"), std::string::npos) << loss;
  EXPECT_EQ(loss.find("layer"), std::string::npos) << "no table of layers without a figure of a layer: " << loss;
  expect_refused(verb.eval("run", {"--metrics", "loss,poetry"}), "eval",
                 "metrics: 'poetry' is none of loss, layer_loss, first_token_attention,");
  expect_refused(verb.eval("run", {"--metrics", "first_token_attention_other"}), "eval",
                 "only tasks with triggers have it");
}

/// Returns the headings of the first table whose rows begin with `row`, each read downwards with '_' between its words.
std::vector<std::string> headings(const std::string& text, const std::string& row) {
  std::istringstream in(text);
  std::vector<std::string> above;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("     " + row + "  ")) break;
    line.empty() ? above.clear() : above.push_back(line);
  }
  std::vector<std::string> out;
  for (std::size_t begin = 0, end = 0; end < above.back().size();
       begin = end) {  // columns end where their heading does
    end = above.back().find(' ', above.back().find_first_not_of(' ', begin));
    end = std::min(end, above.back().size());
    std::string name;
    for (const std::string& line : above) {
      std::istringstream words(begin < line.size() ? line.substr(begin, end - begin) : "");
      for (std::string word; words >> word;) name += (name.empty() ? "" : "_") + word;
    }
    if (name != "model" && name != "layer") out.push_back(name);
  }
  return out;
}

TEST_F(EvalVerbTest, MetricsByTrigger_Chosen_AreGiven) {
  ASSERT_EQ(verb.train("run", {"--task", "bigram-backcopy"}).status, 0);
  const std::vector<std::string> asked = {"--tokens", "320", "--metrics",
                                          "loss_by_trigger,first_token_value_norm_ratio"};
  const json all = evaluated("run", {"--tokens", "320"}), some = evaluated("run", asked);
  EXPECT_EQ(keys_of(some), (std::set<std::string>{"layers", "backcopy", "tokens", "seq_len"}));
  EXPECT_EQ(keys_of(some.at("backcopy")),
            (std::set<std::string>{"loss_trigger", "loss_other", "first_token_value_norm_ratio"}));
  for (const auto& item : some.at("backcopy").items()) EXPECT_EQ(item.value(), all.at("backcopy").at(item.key()));
  const std::string table = verb.eval("run", asked).out;
  const std::string run = verb.path("run");
  const std::vector<std::string> names = headings(table, run);
  EXPECT_EQ(names, (std::vector<std::string>{"loss_trigger", "loss_other", "first_token_value_norm_ratio"})) << table;
  const std::string compared = testing::headgate({"eval", run, run, "--text", verb.text(), "--tokens", "320"}).out;
  EXPECT_EQ(headings(compared, run),
            (std::vector<std::string>{"loss_nats", "first_token_attention", "first_token_attention_uniform",
                                      "sink_rate", "massive_activation", "massive_activation_token",
                                      "massive_activation_channel", "kurtosis", "kurtosis_without_first"}))
      << "no column of a gate that no model has: " << compared;
  for (const std::string& name : headings(compared, run)) {
    EXPECT_EQ(verb.eval("run", {"--tokens", "320", "--metrics", name}).status, 0) << name;
  }
}

TEST_F(EvalVerbTest, Figures_WiderThanTheirColumns_StayApart) {
  ASSERT_EQ(verb.train("run").status, 0);
  train::Checkpoint model = train::load_checkpoint(verb.path("run/checkpoint"), train::CheckpointParts::model);
  for (float& parameter : model.parameters) parameter *= 1e4F;
  models::write_model(verb.path("large"), {model.config}, model.parameters, DType::f32);
  const auto words_of_lines = [](const std::string& text) {
    std::vector<std::ptrdiff_t> out;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      out.push_back(std::distance(std::istream_iterator<std::string>(words), {}));
    }
    return out;
  };
  const std::vector<std::string> few{"--tokens", "64"};
  const Outcome small = verb.eval("run", few), large = verb.eval("large", few);
  EXPECT_EQ(large.status, 0) << "only e^loss is infinite: " << large.err;
  EXPECT_NE(large.out.find("perplexity inf"), std::string::npos) << large.out;
  EXPECT_EQ(words_of_lines(large.out), words_of_lines(small.out)) << large.out << small.out;
  EXPECT_TRUE(evaluated("large", few).at("perplexity").is_null());
  const std::string help = testing::headgate({"eval", "--help"}).out;
  EXPECT_NE(help.find("but for perplexity"), std::string::npos) << help;
  const auto compared = [this](const std::string& other) {
    return testing::headgate({"eval", verb.path("run"), verb.path(other), "--text", verb.text(), "--tokens", "64"}).out;
  };
  EXPECT_EQ(words_of_lines(compared("large")), words_of_lines(compared("run"))) << compared("large");
}

TEST_F(EvalVerbTest, GateMetrics_WithoutAGate_AreAbsent) {
  ASSERT_EQ(verb.train("run").status, 0);
  const json all = evaluated("run");
  EXPECT_TRUE(all.at("gate_mean").is_null());
  EXPECT_TRUE(all.at("layers")[0].at("gate_below_0.1").is_null());
}

TEST_F(EvalVerbTest, HeldOutText_OfARun_IsThatOfItsTraining) {
  ASSERT_EQ(verb.train("run").status, 0);
  const json log = evaluated("run", {"--held-out", "--tokens", "64", "--batch", "2", "--threads", "2"});
  std::string last;
  std::istringstream lines(testing::read_bytes(verb.path("run") + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) last = line;
  EXPECT_EQ(json::parse(last).at("eval"), log) << "the same sequences in the same batches";
}

TEST_F(EvalVerbTest, Task_OfAModel_IsKnown) {
  ASSERT_EQ(verb.train("run", {"--task", "bigram-backcopy", "--gate", "headwise"}).status, 0);
  const json backcopy = evaluated("run", {"--tokens", "320"}).at("backcopy");
  for (const char* key :
       {"first_token_attention_trigger", "first_token_attention_other", "gate_trigger", "gate_other", "loss_trigger",
        "loss_other", "first_token_value_norm_ratio", "first_token_attention_gated_other"}) {
    EXPECT_TRUE(backcopy.at(key).is_number()) << key;
  }
  EXPECT_FALSE(evaluated("run", {"--task", "text"}).contains("backcopy"));
  const Outcome table = verb.eval("run", {"--tokens", "320"});
  EXPECT_EQ(table.status, 0);
  for (const char* told : {"loss ", "layer", "trigger", "attention", "ratio"}) {
    EXPECT_NE(table.out.find(told), std::string::npos) << told;
  }
}

TEST_F(EvalVerbTest, Model_WithoutARun_IsRead) {
  ASSERT_EQ(verb.train("run").status, 0);
  std::filesystem::create_directory(verb.path("model"));
  for (const char* file : {"config.json", "model.safetensors"}) {
    testing::write_bytes(verb.path("model") + "/" + file, verb.checkpoint_file("run", file));
  }
  EXPECT_EQ(evaluated("model"), evaluated("run"));
}

TEST_F(EvalVerbTest, Arguments_AnyOrder_AreAccepted) {
  ASSERT_EQ(verb.train("run").status, 0);
  const Outcome outcome = testing::headgate(
      {"eval", "--text", verb.text(), verb.path("run"), "--json", "--text", verb.text(), "--tokens", "100000"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_GT(json::parse(outcome.out).at("tokens").get<int>(), 4000) << "both texts";
}

TEST_F(EvalVerbTest, Text_ShorterThanASequence_IsOneSequence) {
  ASSERT_EQ(verb.train("run").status, 0);
  testing::write_bytes(verb.text(), "the gate");
  EXPECT_EQ(evaluated("run").at("tokens"), 7);
  EXPECT_EQ(evaluated("run", {"--seq-len", "4"}).at("tokens"), 4);
  testing::write_bytes(verb.text(), "te");
  EXPECT_EQ(evaluated("run").at("tokens"), 1);
  expect_refused(testing::headgate({"xray", verb.path("run"), "--text", verb.text()}), "xray",
                 verb.text() + ": an X-ray of one token shows nothing");
  testing::write_bytes(verb.text(), "t");
  for (const char* name : {"eval", "xray"}) {
    expect_refused(testing::headgate({name, verb.path("run"), "--text", verb.text()}), name,
                   verb.text() + ": the text is one token: there is nothing to predict after it");
  }
}

TEST_F(EvalVerbTest, Text_GreaterThanTheDefault_IsReadInPart) {
  ASSERT_EQ(verb.train("run").status, 0);
  testing::write_bytes(verb.text(), testing::prose(70000));
  const std::vector<std::string> quick{"--metrics", "loss", "--json"};
  const auto read = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = quick;
    all.insert(all.end(), more.begin(), more.end());
    return verb.eval("run", all);
  };
  const Outcome some = read({});
  EXPECT_EQ(some.err,
            "headgate eval: reads 65536 of the text's 69984 tokens, in sequences spread evenly over it; --tokens all "
            "reads all of it\n");
  EXPECT_EQ(json::parse(some.out).at("tokens"), 65536);
  EXPECT_EQ(read({"--quiet"}).err, "");
  const Outcome all = read({"--tokens", "all"});
  EXPECT_EQ(all.err, "");
  EXPECT_EQ(json::parse(all.out).at("tokens"), 69984);
  EXPECT_EQ(read({"--tokens", "70000"}).out, all.out);
  expect_refused(read({"--tokens", "every"}), "eval",
                 "--tokens: must be a whole number from 1 to 1099511627776, or all, got every");
  expect_refused(read({"--task", "bigram-backcopy", "--tokens", "all"}), "eval", "--tokens all: the sequences of this");
}

TEST_F(EvalVerbTest, Text_AmongTheModels_IsTakenForAText) {
  ASSERT_EQ(verb.train("run").status, 0);
  for (const char* name : {"eval", "xray"}) {
    expect_refused(testing::headgate({name, verb.path("run"), verb.text()}), name,
                   verb.text() + " was taken for a MODEL, but is a text: give it as --text " + verb.text());
  }
}

/// Returns a safetensors file with every element of one f32 tensor replaced, and without its metadata, which holds a
/// checksum.
std::string with_tensor_filled(const std::string& file, const std::string& name, float value) {
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  const std::size_t data = sizeof header_bytes + header_bytes;
  json header = json::parse(file.substr(sizeof header_bytes, header_bytes));
  const json offsets = header.at(name).at("data_offsets");
  header.erase("__metadata__");
  std::string text = header.dump();
  text.resize(header_bytes, ' ');
  std::string out = file;
  out.replace(sizeof header_bytes, header_bytes, text);
  for (auto at = offsets[0].get<std::size_t>(); at < offsets[1].get<std::size_t>(); at += sizeof value) {
    std::memcpy(out.data() + data + at, &value, sizeof value);
  }
  return out;
}

TEST_F(EvalVerbTest, Figures_NotFinite_AreShown) {
  ASSERT_EQ(verb.train("run").status, 0);
  testing::write_bytes(
      verb.path("run") + "/checkpoint/model.safetensors",
      with_tensor_filled(verb.checkpoint_file("run", "model.safetensors"), "model.layers.1.mlp.up_proj.weight", 3e38F));
  const Outcome outcome = verb.eval("run", {"--json"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("the model gives numbers that are not finite, first in layer 1"), std::string::npos)
      << outcome.err;
  const json all = json::parse(outcome.out);
  EXPECT_TRUE(all.at("massive_activation").is_null());
  EXPECT_TRUE(all.at("loss_nats").is_null());
  EXPECT_TRUE(all.at("layers")[0].at("massive_activation").is_number());
  EXPECT_TRUE(all.at("layers")[1].at("massive_activation").is_null());
  EXPECT_EQ(verb.eval("run").status, 1);
}

TEST_F(EvalVerbTest, Tokens_LimitGiven_IsNotExceeded) {
  ASSERT_EQ(verb.train("run").status, 0);
  for (const int tokens : {1, 2, 15, 16, 31, 32, 100, 1000}) {
    const int got = evaluated("run", {"--tokens", std::to_string(tokens)}).at("tokens");
    EXPECT_LE(got, tokens);
    EXPECT_GE(got, tokens < 16 ? tokens : tokens / 16 * 16 * 3 / 4) << "batches of equal size leave a little over";
  }
  const json one = evaluated("run", {"--tokens", "1"});
  EXPECT_TRUE(one.at("loss_nats").is_number());
  for (const char* key : {"first_token_attention", "first_token_attention_uniform", "sink_rate"}) {
    EXPECT_TRUE(one.at(key).is_null()) << key << " of a sequence of one token";
    EXPECT_TRUE(one.at("layers")[1].at(key).is_null()) << key;
  }
  const std::string text = verb.eval("run", {"--tokens", "1"}).out;
  EXPECT_NE(text.find("\nA sequence of one token has no figures of attention: its query sees itself alone.\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find(" attention\n"), std::string::npos) << "no empty columns: " << text;
  expect_refused(verb.eval("run", {"--tokens", "3", "--seq-len", "4"}), "eval",
                 "--tokens 3 is less than a sequence of --seq-len 4");
}

/// Expects the same keys, and the same numbers but for rounding.
void expect_near(const json& got, const json& wanted, const std::string& where) {
  const json flat = got.flatten(), flat_wanted = wanted.flatten();
  EXPECT_EQ(flat.size(), flat_wanted.size()) << where;
  for (const auto& [key, value] : flat_wanted.items()) {
    ASSERT_EQ(flat.at(key).is_number(), value.is_number()) << key << where;
    if (!value.is_number()) continue;
    const double number = value;
    EXPECT_NEAR(flat.at(key).get<double>(), number, 1e-4 * std::max(1.0, std::abs(number))) << key << where;
  }
}

TEST_F(EvalVerbTest, Part_ShorterThanASequence_ChangesRoundingAlone) {
  ASSERT_EQ(verb.train("run", {"--gate", "headwise-learned_sinks"}).status, 0);
  const std::vector<std::string> same{"--metrics", "all", "--heads", "--tokens", "64", "--batch", "1"};
  const json wanted = evaluated("run", same);
  for (const char* part : {"1", "5", "16", "17"}) {
    std::vector<std::string> more = same;
    more.insert(more.end(), {"--part", part});
    expect_near(evaluated("run", more), wanted, std::string(" in parts of ") + part);
  }
  expect_refused(verb.eval("run", {"--part", "0"}), "eval", "--part");
  expect_refused(verb.eval("run", {"--part", "2x"}), "eval", "--part");
}

/// Sequences in parts are evaluated one at a time, so that no batch is left over.
TEST_F(EvalVerbTest, Precision_Bf16_ChangesTheLossByRounding) {
  ASSERT_EQ(verb.train("run", {"--gate", "headwise"}).status, 0);
  const double f32 = evaluated("run")["loss_nats"], bf16 = evaluated("run", {"--precision", "bf16"})["loss_nats"];
  EXPECT_NE(bf16, f32);
  EXPECT_NEAR(bf16, f32, 0x1p-9 * f32) << "more than one rounding of the loss itself";
  EXPECT_EQ(evaluated("run", {"--precision", "f32"})["loss_nats"], f32);
  expect_refused(verb.eval("run", {"--precision", "f16"}), "eval", "--precision");
}

TEST_F(EvalVerbTest, Part_BatchOfSeveral_EvaluatesEachSequence) {
  ASSERT_EQ(verb.train("run").status, 0);
  EXPECT_EQ(evaluated("run", {"--part", "5", "--metrics", "loss"}).at("tokens"), 249 * 16);
  EXPECT_EQ(evaluated("run", {"--part", "16", "--metrics", "loss"}).at("tokens"), 247 * 16);
}

TEST_F(EvalVerbTest, Models_Several_AreComparedOnTheSameTokens) {
  ASSERT_EQ(verb.train("plain").status, 0);
  ASSERT_EQ(verb.train("gated", {"--gate", "headwise"}).status, 0);
  const std::vector<std::string> both = {"eval", verb.path("plain"), verb.path("gated"), "--text", verb.text()};
  std::vector<std::string> command = both;
  command.emplace_back("--json");
  const Outcome outcome = testing::headgate(command);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json list = json::parse(outcome.out);
  ASSERT_EQ(list.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string run = i == 0 ? "plain" : "gated";
    json object = list[i];
    EXPECT_EQ(object.at("model"), verb.path(run));
    EXPECT_EQ(object.at("gate"), i == 0 ? "none" : "g1-headwise-sigmoid-mul");
    EXPECT_GT(object.at("parameters"), 1000);
    for (const char* key : {"model", "gate", "parameters"}) object.erase(key);
    EXPECT_EQ(object, evaluated(run)) << "as if evaluated alone";
  }
  const Outcome table = testing::headgate(both);
  for (const std::string& told : {verb.path("plain") + " ", verb.path("gated") + " ", std::string("massive")}) {
    EXPECT_NE(table.out.find(told), std::string::npos) << table.out;
  }
  std::vector<std::string> by_layer = both;
  by_layer.insert(by_layer.end(), {"--metrics", "layer_loss"});
  const std::string no_table = testing::headgate(by_layer).out;
  EXPECT_EQ(no_table.find("  -"), std::string::npos) << "a table without a number: " << no_table;
  EXPECT_NE(no_table.find("figures of layers are compared with --json"), std::string::npos) << no_table;
  ASSERT_EQ(verb.train("backcopy", {"--task", "bigram-backcopy"}).status, 0);
  expect_refused(testing::headgate({"eval", verb.path("plain"), verb.path("backcopy"), "--text", verb.text()}), "eval",
                 "--task chooses one for both");
}

TEST_F(EvalVerbTest, Directory_WithOtherFiles_SaysWhatIsLeftOut) {
  std::filesystem::create_directory(verb.path("data"));
  testing::write_bytes(verb.path("data/text"), testing::read_bytes(verb.text()));
  testing::write_bytes(verb.path("data/latin"), "caf\xE9 au lait");
  ASSERT_EQ(verb.train("data/run").status, 0);
  const Outcome outcome = testing::headgate({"eval", verb.path("data/run"), "--text", verb.path("data"), "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(json::parse(outcome.out), evaluated("data/run"));
  EXPECT_EQ(outcome.err, "left out: 1 file that is not UTF-8 text (" + verb.path("data/latin") +
                             ")\nleft out: 1 path that a run writes (" + verb.path("data/run") + ")\n");
}

TEST_F(EvalVerbTest, Arguments_Refused_AreNamedOnOneLine) {
  ASSERT_EQ(verb.train("run").status, 0);
  expect_refused(verb.eval("none"), "eval", "none: does not exist");
  std::filesystem::create_directory(verb.path("bare"));
  expect_refused(verb.eval("bare"), "eval", "bare: neither a model (no config.json) nor a run");
  testing::write_bytes(verb.path("bare/model.safetensors"), "weights");
  expect_refused(verb.eval("bare/model.safetensors"), "eval", "give the directory that holds its config.json");
  expect_refused(verb.eval("run", {"--logits", verb.path("no/l.npy")}), "eval",
                 "cannot write: there is no directory " + verb.path("no"));
  expect_refused(verb.eval("run", {"--seq-len", "17"}), "eval", "--seq-len 17 is more than the model's 16");
  expect_refused(verb.eval("run", {"--task", "bigram-backcopy", "--seq-len", "8"}), "eval", "vocabulary");
  expect_refused(verb.eval("run", {"--task", "poetry"}), "eval", "'poetry' is none of");
  expect_refused(testing::headgate({"eval", verb.path("run")}), "eval", "one of --text and --token-ids is required");
  const std::string selects = "--include selects files below a directory, and --text " + verb.text() + " is a file";
  expect_refused(verb.eval("run", {"--include", "*"}), "eval", selects);
  const std::vector<std::string> xray{"xray", verb.path("run"), "--text", verb.text(), "--include", "*"};
  expect_refused(testing::headgate(xray), "xray", selects);
  expect_refused(verb.eval("run", {"--token-ids", "x.npy"}), "eval", "--text and --token-ids are two inputs");
  testing::write_bytes(verb.path("run") + "/checkpoint/model.safetensors", "short");
  expect_refused(verb.eval("run"), "eval", "model.safetensors: ");
  ASSERT_EQ(verb.train("other").status, 0);
  testing::write_bytes(verb.text(), "");
  expect_refused(verb.eval("other"), "eval", verb.text() + ": the text is empty");
}

}  // namespace
}  // namespace headgate
