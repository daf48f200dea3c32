// SPDX-License-Identifier: Apache-2.0
#include "tool/demo/verdict.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>

#include "models/evaluate/first_token_attention_by_trigger.hpp"
#include "models/evaluate/first_token_attention_gated_by_trigger.hpp"
#include "models/evaluate/first_token_value_norm_ratio.hpp"
#include "models/evaluate/gate_by_trigger.hpp"
#include "models/evaluate/loss.hpp"
#include "models/evaluate/loss_by_trigger.hpp"

namespace headgate::demo {

namespace {

/// Returns "Without a gate", "With a headwise gate" or "With an elementwise gate".
std::string beginning(const std::string& name, bool gated) {
  if (!gated) return "Without a gate";
  return fmt::format("With {} {} gate", name.starts_with('e') ? "an" : "a", name);
}

std::string backcopy_sentence(const std::string& begin, const Spread& runs, bool gated) {
  const metrics::FigureRow& mean = runs.mean;
  if (mean.at(metrics::kLossTrigger) >= kNotLearnt) {
    return fmt::format("{} the model has not learnt to copy (loss {:.2f} after a trigger): it needs more steps.", begin,
                       mean.at(metrics::kLossTrigger));
  }
  if (!gated) {
    return fmt::format(
        "{} {} of the attention goes to BOS where there is nothing to copy; BOS's value has {:.2f} of the norm of the "
        "others.",
        begin, percent(runs, metrics::kFirstTokenAttentionOther), mean.at(metrics::kFirstTokenValueNormRatio));
  }
  return fmt::format("{} {} goes there and passes the gate, whose scores are {:.2f} there and {:.2f} after a trigger.",
                     begin, percent(runs, metrics::kFirstTokenAttentionGatedOther), mean.at(metrics::kGateOther),
                     mean.at(metrics::kGateTrigger));
}

}  // namespace

std::string backcopy_verdict(const std::vector<NamedSpread>& models) {
  std::vector<std::string> sentences;
  for (const NamedSpread& model : models) {
    const bool gated = &model != &models.front();
    sentences.push_back(backcopy_sentence(beginning(model.name, gated), model.figures, gated));
  }
  return fmt::format("{}", fmt::join(sentences, " "));
}

std::string text_verdict(const std::vector<NamedSpread>& models, double tokens) {
  std::string out;
  for (std::size_t i = 1; i < models.size(); ++i) {
    const double more =
        models[i].figures.mean.at(metrics::kLossNats) - models.front().figures.mean.at(metrics::kLossNats);
    out += fmt::format("{} the held-out loss differs by {:+.3f} nats a byte. ", beginning(models[i].name, true), more);
  }
  return out + fmt::format("This is one seed and {:.1f} million bytes of training: an impression, not a result.",
                           1e-6 * tokens);
}

}  // namespace headgate::demo
