// SPDX-License-Identifier: Apache-2.0
#include "models/generate/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "library/core/check.hpp"

namespace headgate::generate {
namespace {

/// Returns the id of the largest logit. Of equal logits, returns the smallest id. Throws Error if a logit is not
/// finite.
std::int32_t most_likely(std::span<const float> logits) {
  std::size_t best = 0;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    const float logit = logits[id];
    require(std::isfinite(logit), "the logit of token {} is {}: the model gives numbers that are not finite", id,
            std::isnan(logit) ? std::abs(logit) : logit);  // shows NaN without its sign, which has no meaning
    if (logit > logits[best]) best = id;
  }
  return static_cast<std::int32_t>(best);
}

}  // namespace

void check_sampling(const Sampling& s) {
  require(std::isfinite(s.temperature) && s.temperature >= 0.0, "temperature is {} but must be at least 0 and finite",
          s.temperature);
  require(s.top_k >= 0, "top_k is {} but must be at least 0", s.top_k);
  require(s.top_p > 0.0 && s.top_p <= 1.0, "top_p is {} but must be above 0 and at most 1", s.top_p);
}

Sampler::Sampler(const Sampling& sampling) : sampling_(sampling), random_(sampling.seed) { check_sampling(sampling); }

/// Moves the most likely tokens of kept_[from, end) to kept_[from, to), sorted by descending likelihood. Equally likely
/// tokens are sorted by id, so the order depends only on the logits.
void Sampler::sort_most_likely(std::span<const float> logits, std::size_t from, std::size_t to) {
  const auto more_likely = [logits](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b);
  };
  const auto at = [this](std::size_t i) { return kept_.begin() + static_cast<std::ptrdiff_t>(i); };
  if (to < kept_.size()) std::nth_element(at(from), at(to), kept_.end(), more_likely);
  std::sort(at(from), at(to), more_likely);
}

double Sampler::keep_nucleus(std::span<const float> logits, double total) {
  // Number of tokens in the first sort. Sorting more is rarely necessary, because few tokens usually hold most of the
  // probability.
  constexpr std::size_t kFirst = 64;
  std::size_t sorted = 0;
  double sum = 0.0;
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    if (i == sorted) {
      sorted = std::min(kept_.size(), std::max(kFirst, 4 * sorted));
      sort_most_likely(logits, i, sorted);
    }
    sum += weights_[static_cast<std::size_t>(kept_[i])];
    if (sum < sampling_.top_p * total) continue;
    kept_.resize(i + 1);
    break;
  }
  return sum;
}

std::int32_t Sampler::next(std::span<const float> logits) {
  require(!logits.empty(), "no logits to choose a token from");
  const std::int32_t best = most_likely(logits);
  if (sampling_.temperature == 0.0) return best;
  kept_.resize(logits.size());
  std::iota(kept_.begin(), kept_.end(), 0);
  const auto k = static_cast<std::size_t>(sampling_.top_k);
  if (k > 0 && k < kept_.size()) {
    sort_most_likely(logits, 0, k);
    kept_.resize(k);
  }
  const auto largest = static_cast<double>(logits[static_cast<std::size_t>(best)]);
  weights_.resize(logits.size());
  double sum = 0.0;
  for (const std::int32_t id : kept_) {
    const auto i = static_cast<std::size_t>(id);
    weights_[i] = std::exp((static_cast<double>(logits[i]) - largest) / sampling_.temperature);
    sum += weights_[i];
  }
  if (sampling_.top_p < 1.0) sum = keep_nucleus(logits, sum);
  double left = random_.uniform() * sum;
  std::int32_t chosen = best;
  for (const std::int32_t id : kept_) {
    const double weight = weights_[static_cast<std::size_t>(id)];
    if (weight > 0.0)
      chosen = id;  // rounding may leave `left` ≥ 0 at the end: then the last token with a weight is chosen
    left -= weight;
    if (left < 0.0) break;
  }
  return chosen;
}

}  // namespace headgate::generate
