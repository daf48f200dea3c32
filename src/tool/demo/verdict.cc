// SPDX-License-Identifier: Apache-2.0
#include "tool/demo/verdict.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstddef>

#include "models/evaluate/first_token_attention_by_trigger.hpp"
#include "models/evaluate/first_token_attention_gated_by_trigger.hpp"
#include "models/evaluate/first_token_value_norm_ratio.hpp"
#include "models/evaluate/gate_by_trigger.hpp"
#include "models/evaluate/loss.hpp"
#include "models/evaluate/loss_by_trigger.hpp"

namespace headgate::demo {

namespace {

/// Returns how a sentence begins: "Without a gate,", "With a headwise gate," or "With an elementwise gate,".
std::string beginning(const std::string& name, bool gated) {
  if (!gated) return "Without a gate,";
  return fmt::format("With {} {} gate,", name.starts_with('e') ? "an" : "a", name);
}

/// Returns a sentence about one model. Compares it with no other model: one that has not learnt to copy has no
/// attention values to compare.
std::string backcopy_sentence(const std::string& begin, const Spread& runs, bool gated) {
  const metrics::FigureRow& mean = runs.mean;
  if (!mean.find(metrics::kLossTrigger)) {
    return fmt::format("{} nothing is measured: the held-out sequences have no trigger (t, e or space).", begin);
  }
  if (mean.at(metrics::kLossTrigger) >= kNotLearnt) {
    return fmt::format("{} the model has not learnt to copy (loss {:.2f} after a trigger): it needs more steps.", begin,
                       mean.at(metrics::kLossTrigger));
  }
  const metrics::Figure& share = gated ? metrics::kFirstTokenAttentionGatedOther : metrics::kFirstTokenAttentionOther;
  const std::string where = fmt::format("{} of the attention goes to BOS{} where there is nothing to copy",
                                        percent(runs, share), gated ? " and passes the gate" : "");
  if (!gated) {
    return fmt::format("{} {}; the norm of BOS's value is {:.2f} times that of the others.", begin, where,
                       mean.at(metrics::kFirstTokenValueNormRatio));
  }
  return fmt::format("{} {}; the mean gate score is {:.2f} there and {:.2f} after a trigger.", begin, where,
                     mean.at(metrics::kGateOther), mean.at(metrics::kGateTrigger));
}

/// Returns the end of a sentence that begins with "the held-out loss".
/// `more`: the loss minus the loss without a gate, in nats per byte.
std::string loss_difference(double more) {
  if (!std::isfinite(more)) return "is not finite";
  const std::string size = fmt::format("{:.3f}", std::abs(more));
  if (size == "0.000") return "equals that without a gate to three decimals";
  return fmt::format("is {} nats a byte {} than without a gate", size, more > 0.0 ? "higher" : "lower");
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
    out += fmt::format("{} the held-out loss {}. ", beginning(models[i].name, true), loss_difference(more));
  }
  return out + fmt::format("This is one seed and {:.1f} million bytes of training: an impression, not a result.",
                           1e-6 * tokens);
}

}  // namespace headgate::demo
