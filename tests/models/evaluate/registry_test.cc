// SPDX-License-Identifier: Apache-2.0
#include "models/evaluate/registry.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <span>
#include <string>

#include "headgate/error.hpp"

namespace headgate::metrics {
namespace {

std::string names_of(const MetricList& metrics) {
  std::string out;
  for (const Metric* metric : metrics) out += std::string(metric->name) + ' ';
  return out;
}

TEST(Registry, Metrics_Names_AreUnique) {
  std::set<std::string_view> names;
  for (const Metric* metric : all_metrics()) {
    EXPECT_TRUE(names.insert(metric->name).second) << metric->name;
    EXPECT_NE(metric->name, "all");
    EXPECT_EQ(metric->name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789"), std::string_view::npos)
        << metric->name;
    EXPECT_FALSE(metric->figures.empty()) << metric->name;
    EXPECT_TRUE(metric->sums.f32 != nullptr && metric->sums.f64 != nullptr) << metric->name;
  }
}

/// Figures of the whole model, of a layer, and by trigger are three objects of JSON.
TEST(Registry, Metrics_KeysOfAnObject_AreUnique) {
  for (const Scope object : {Scope::model, Scope::layers, Scope::triggers}) {
    std::set<std::string_view> keys;
    for (const Metric* metric : all_metrics()) {
      const bool of_both = metric->scope == Scope::layers_and_mean && object != Scope::triggers;
      if (metric->scope != object && !of_both) continue;
      for (const Figure& figure : metric->figures) {
        EXPECT_TRUE(keys.insert(figure.key).second) << figure.key;
        EXPECT_TRUE(figure.key != "layers" && figure.key != "backcopy" && figure.key != "tokens" &&
                    figure.key != "gate_threshold" && figure.key != "cache" && figure.key != "seq_len" &&
                    figure.key != "text_bytes" && figure.key != "heads")
            << figure.key;
      }
    }
  }
}

TEST(Registry, Heading_OfEveryColumn_SelectsItsMetric) {
  for (const bool of_triggers : {false, true}) {
    for (const Figure* figure : figures_of(all_metrics(), of_triggers)) {
      const MetricList selected = parse_metrics({std::string(figure->heading())});
      ASSERT_EQ(selected.size(), 1U) << figure->key;
      const std::span<const Figure> figures = selected.front()->figures;
      const auto is_it = [figure](const Figure& each) { return each.key == figure->key; };
      EXPECT_TRUE(std::any_of(figures.begin(), figures.end(), is_it)) << figure->key;
    }
  }
}

TEST(Registry, MetricsByTrigger_EveryFigure_HasAColumn) {
  for (const Figure* figure : figures_of(all_metrics(), /*of_triggers=*/true)) {
    EXPECT_NE(figure->decimals, kNoColumn) << figure->key;
  }
}

TEST(Registry, Figure_OfTheModelAndItsLayers_IsDescribedOnce) {
  const std::vector<const Figure*> figures = figures_of(all_metrics(), /*of_triggers=*/false);
  const auto losses =
      std::count_if(figures.begin(), figures.end(), [](const Figure* figure) { return figure->key == "loss_nats"; });
  EXPECT_EQ(losses, 1);
  for (const Figure* figure : figures_of(all_metrics(), /*of_triggers=*/true)) {
    EXPECT_EQ(std::count(figures.begin(), figures.end(), figure), 0) << figure->key;
  }
}

TEST(ParseMetrics, Names_AnyOrder_AreAccepted) {
  EXPECT_EQ(parse_metrics({}), default_metrics());
  EXPECT_EQ(parse_metrics({"all"}), all_metrics());
  EXPECT_EQ(parse_metrics({"loss,all"}), all_metrics());
  EXPECT_EQ(names_of(parse_metrics({"gate_mean,loss"})), "loss gate_mean ") << "in the order of the registry";
  EXPECT_EQ(names_of(parse_metrics({"gate-mean", "sink_rate,gate_mean"})), "sink_rate gate_mean ");
}

TEST(ParseMetrics, KeyOfAFigure_InPlaceOfAName_SelectsItsMetric) {
  for (const Metric* metric : all_metrics()) {
    for (const Figure& figure : metric->figures) {
      const MetricList found = parse_metrics({std::string(figure.key)});
      ASSERT_EQ(found.size(), 1U) << figure.key;
      const auto& figures = found.front()->figures;
      const auto prints = [&figure](const Figure& own) { return own.key == figure.key; };
      EXPECT_TRUE(std::any_of(figures.begin(), figures.end(), prints)) << figure.key;
    }
  }
  EXPECT_EQ(names_of(parse_metrics({"loss_nats"})), "loss ") << "of the model, not that of its layers";
  EXPECT_EQ(names_of(parse_metrics({"gate_below_0.1,perplexity"})), "loss gate_below ");
}

TEST(ParseMetrics, Name_Mistyped_IsGuessed) {
  try {
    parse_metrics({"loss,sink_rat"});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what()).ends_with("; did you mean sink_rate?")) << error.what();
  }
}

TEST(ParseMetrics, Name_Unknown_ListsTheKnownOnes) {
  for (const char* word : {"poetry", "loss,poetry", "poetry,loss"}) {
    try {
      parse_metrics({"loss", word});
      ADD_FAILURE() << word;
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_TRUE(message.starts_with("metrics: 'poetry' is none of loss, layer_loss, ")) << message;
      EXPECT_TRUE(message.ends_with(", all")) << message;
      for (const Metric* metric : all_metrics()) EXPECT_NE(message.find(metric->name), std::string::npos);
    }
  }
  EXPECT_THROW(parse_metrics({"loss,"}), Error);
  EXPECT_THROW(parse_metrics({""}), Error);
}

TEST(ThatApply, MetricsByTrigger_TaskWithoutTriggers_AreLeftOut) {
  EXPECT_EQ(that_apply(all_metrics(), /*has_triggers=*/true), all_metrics());
  for (const Metric* metric : that_apply(all_metrics(), /*has_triggers=*/false)) {
    EXPECT_NE(metric->scope, Scope::triggers) << metric->name;
  }
  EXPECT_TRUE(that_apply(parse_metrics({"first_token_attention_by_trigger"}), /*has_triggers=*/false).empty());
}

/// Returns a row of the tables in docs/reference/training.md, "Figures of an evaluation".
std::string documented(const Metric& metric) {
  std::string keys;
  for (const Figure& figure : metric.figures) keys += (keys.empty() ? "`" : ", `") + std::string(figure.key) + '`';
  return "| `" + std::string(metric.name) + "` | " + keys + " | " + std::string(metric.definition) + " |";
}

TEST(Registry, Metrics_OfTheRegistry_AreThoseOfTheDocument) {
  std::ifstream in(HEADGATE_DOCS "/reference/training.md");
  ASSERT_TRUE(in.is_open());
  std::vector<std::string> rows;
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("## ")) inside = line.find("Figures of an evaluation") != std::string::npos;
    if (inside && line.starts_with("| `")) rows.push_back(line);
  }
  std::vector<std::string> wanted;
  for (const Metric* metric : all_metrics()) wanted.push_back(documented(*metric));
  EXPECT_EQ(rows, wanted);
}

}  // namespace
}  // namespace headgate::metrics
