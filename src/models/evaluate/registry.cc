// SPDX-License-Identifier: Apache-2.0
#include "models/evaluate/registry.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

#include "library/core/check.hpp"
#include "library/core/format.hpp"
#include "library/core/nearest_word.hpp"
#include "library/core/words.hpp"
#include "models/evaluate/attention_entropy.hpp"
#include "models/evaluate/beta.hpp"
#include "models/evaluate/decay.hpp"
#include "models/evaluate/first_token_attention.hpp"
#include "models/evaluate/first_token_attention_by_trigger.hpp"
#include "models/evaluate/first_token_attention_gated.hpp"
#include "models/evaluate/first_token_attention_gated_by_trigger.hpp"
#include "models/evaluate/first_token_attention_uniform.hpp"
#include "models/evaluate/first_token_value_norm_ratio.hpp"
#include "models/evaluate/gate_below.hpp"
#include "models/evaluate/gate_by_trigger.hpp"
#include "models/evaluate/gate_mean.hpp"
#include "models/evaluate/hidden_first_token.hpp"
#include "models/evaluate/int8_hidden.hpp"
#include "models/evaluate/int8_keys.hpp"
#include "models/evaluate/int8_values.hpp"
#include "models/evaluate/kurtosis.hpp"
#include "models/evaluate/layer_loss.hpp"
#include "models/evaluate/loss.hpp"
#include "models/evaluate/loss_by_trigger.hpp"
#include "models/evaluate/massive_activation.hpp"
#include "models/evaluate/output_gate.hpp"
#include "models/evaluate/reach.hpp"
#include "models/evaluate/sink_attention.hpp"
#include "models/evaluate/sink_rate.hpp"
#include "models/evaluate/state_rank.hpp"

namespace headgate::metrics {

namespace {

constexpr std::array kAll{
    &kLoss,
    &kLayerLoss,
    &kFirstTokenAttentionMetric,
    &kFirstTokenAttentionUniformMetric,
    &kFirstTokenAttentionGatedMetric,
    &kSinkRateMetric,
    &kSinkAttentionMetric,
    &kAttentionEntropyMetric,
    &kMassiveActivationMetric,
    &kKurtosisMetric,
    &kInt8HiddenMetric,
    &kInt8KeysMetric,
    &kInt8ValuesMetric,
    &kGateMeanMetric,
    &kGateBelow,
    &kDecay,
    &kBeta,
    &kOutputGate,
    &kHiddenFirstTokenMetric,
    &kReachMetric,
    &kStateRankMetric,
    &kFirstTokenAttentionByTrigger,
    &kGateByTrigger,
    &kLossByTrigger,
    &kFirstTokenValueNormRatioMetric,
    &kFirstTokenAttentionGatedByTrigger,
};

constexpr std::string_view kEveryMetric = "all";

template <class Which>
MetricList those(const Which& which) {
  MetricList out;
  std::copy_if(kAll.begin(), kAll.end(), std::back_inserter(out), which);
  return out;
}

/// Returns the metric called `name`. If there is none, returns the first metric that computes a number with this key.
/// Returns null if there is none either.
const Metric* find_metric(std::string_view name) {
  const auto called = [name](const Metric* metric) { return is_word(name, metric->name); };
  const auto prints = [name](const Metric* metric) {
    return std::any_of(metric->figures.begin(), metric->figures.end(),
                       [name](const Figure& figure) { return is_word(name, figure.key); });
  };
  auto found = std::find_if(kAll.begin(), kAll.end(), called);
  if (found == kAll.end()) found = std::find_if(kAll.begin(), kAll.end(), prints);
  return found == kAll.end() ? nullptr : *found;
}

[[noreturn]] void refuse_metric(std::string_view name) {
  std::vector<std::string_view> known{kEveryMetric};
  for (const Metric* metric : kAll) {
    known.push_back(metric->name);
    for (const Figure& figure : metric->figures) known.push_back(figure.key);
  }
  throw Error(fmt::format("metrics: '{}' is none of {}, {}{}", name, metric_names(all_metrics()), kEveryMetric,
                          did_you_mean(name, known)));
}

}  // namespace

std::vector<std::string_view> split_at_commas(std::string_view text) {
  std::vector<std::string_view> out;
  for (std::size_t at = 0; at != std::string_view::npos;) {
    at = text.find(',');
    out.push_back(text.substr(0, at));
    if (at != std::string_view::npos) text.remove_prefix(at + 1);
  }
  return out;
}

MetricList all_metrics() { return {kAll.begin(), kAll.end()}; }

MetricList default_metrics() {
  return those([](const Metric* metric) { return metric->by_default; });
}

std::string metric_names(const MetricList& metrics) { return comma_separated(metrics, &Metric::name); }

bool names_each_metric(const std::vector<std::string>& words) {
  return !words.empty() && std::none_of(words.begin(), words.end(), [](const std::string& word) {
    const auto names = split_at_commas(word);
    return std::find(names.begin(), names.end(), kEveryMetric) != names.end();
  });
}

MetricList parse_metrics(const std::vector<std::string>& words) {
  if (words.empty()) return default_metrics();
  MetricList wanted;
  for (const std::string& word : words) {
    for (const std::string_view name : split_at_commas(word)) {
      if (name == kEveryMetric) {
        wanted.insert(wanted.end(), kAll.begin(), kAll.end());
        continue;
      }
      const Metric* found = find_metric(name);
      if (found == nullptr) refuse_metric(name);
      wanted.push_back(found);
    }
  }
  return those(
      [&wanted](const Metric* metric) { return std::find(wanted.begin(), wanted.end(), metric) != wanted.end(); });
}

MetricList that_apply(const MetricList& metrics, bool has_triggers) {
  MetricList out;
  for (const Metric* metric : metrics) {
    if (has_triggers || metric->scope != Scope::triggers) out.push_back(metric);
  }
  return out;
}

MetricList of_heads(const MetricList& metrics) {
  MetricList out;
  std::copy_if(metrics.begin(), metrics.end(), std::back_inserter(out),
               [](const Metric* metric) { return metric->of_heads; });
  return out;
}

std::vector<const Figure*> figures_of(const MetricList& metrics, bool of_triggers) {
  std::vector<const Figure*> out;
  for (const Metric* metric : metrics) {
    if ((metric->scope == Scope::triggers) != of_triggers) continue;
    for (const Figure& figure : metric->figures) {
      const auto same = [&figure](const Figure* other) { return other->key == figure.key; };
      if (std::none_of(out.begin(), out.end(), same)) out.push_back(&figure);
    }
  }
  return out;
}

}  // namespace headgate::metrics
