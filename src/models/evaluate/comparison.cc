// SPDX-License-Identifier: Apache-2.0
#include "models/evaluate/comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace headgate::train {
namespace {

using nlohmann::ordered_json;

const ComparedRow& row_of(Compared what) {
  return *std::find_if(kComparedRows.begin(), kComparedRows.end(),
                       [what](const ComparedRow& row) { return row.value == what; });
}

constexpr std::array kMembers{&Divergence::loss_nats, &Divergence::reference_loss_nats, &Divergence::kl_nats,
                              &Divergence::same_top_1};

}  // namespace

void DivergenceSums::join(const DivergenceSums& other) {
  targets += other.targets;
  for (const auto member : kMembers) sums.*member += other.sums.*member;
}

void DivergenceSums::add(View<const float, 1> p, View<const float, 1> q, std::int32_t target) {
  targets += 1.0;
  sums.loss_nats -= q(target);
  sums.reference_loss_nats -= p(target);
  std::int64_t top = 0, other_top = 0;
  for (std::int64_t v = 0; v < p.shape[0]; ++v) {
    const double log_p = p(v), log_q = q(v);
    if (const double weight = std::exp(log_p); weight > 0.0) sums.kl_nats += weight * (log_p - log_q);
    if (log_p > p(top)) top = v;
    if (log_q > q(other_top)) other_top = v;
  }
  if (top == other_top) sums.same_top_1 += 1.0;
}

Divergence DivergenceSums::means() const {
  Divergence out;
  for (const auto member : kMembers) out.*member = sums.*member / targets;
  return out;
}

void add_comparisons(ordered_json& out, const std::vector<Comparison>& comparisons) {
  for (const Comparison& comparison : comparisons) {
    const ComparedRow& row = row_of(comparison.what);
    ordered_json& object = out[std::string(row.key)];
    ordered_json& figures = row.name_key.empty() ? object[comparison.name] : object;
    if (!row.name_key.empty()) figures[std::string(row.name_key)] = comparison.name;
    if (comparison.what == Compared::cache) figures["first"] = comparison.first;
    figures["loss_nats"] = comparison.figures.loss_nats;
    figures[std::string(row.reference_key)] = comparison.figures.reference_loss_nats;
    figures["kl_nats"] = comparison.figures.kl_nats;
    figures["same_top_1"] = comparison.figures.same_top_1;
  }
}

std::string comparison_line(const Comparison& comparison, const std::string& name) {
  const ComparedRow& row = row_of(comparison.what);
  const Divergence& found = comparison.figures;
  const std::string first = comparison.first > 0 ? fmt::format(", first {} not rounded", comparison.first) : "";
  return fmt::format("{} {}{}{}: loss {:.4f} ({} {:.4f}); KL {:.3g} nats a token; {:.2f}% the same top token", row.text,
                     name, row.note, first, found.loss_nats, row.reference, found.reference_loss_nats, found.kl_nats,
                     100.0 * found.same_top_1);
}

}  // namespace headgate::train
