// SPDX-License-Identifier: Apache-2.0
#include "models/generate/sampler.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include "headgate/error.hpp"

namespace headgate::generate {
namespace {

using Logits = std::vector<float>;

struct Candidate {
  std::int32_t id;
  double probability;
};

/// Sorts everything, by the definition: probabilities of the tokens that may be drawn, which sum to 1.
std::vector<Candidate> plain_candidates(const Logits& logits, const Sampling& sampling) {
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  if (sampling.top_k > 0) ids.resize(std::min(ids.size(), static_cast<std::size_t>(sampling.top_k)));
  std::vector<Candidate> out;
  double sum = 0.0;
  for (const std::int32_t id : ids) {
    const double above = static_cast<double>(logits[static_cast<std::size_t>(id)]) -
                         static_cast<double>(logits[static_cast<std::size_t>(ids[0])]);
    out.push_back({id, std::exp(above / sampling.temperature)});
    sum += out.back().probability;
  }
  double kept = 0.0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    kept += out[i].probability;
    if (sampling.top_p < 1.0 && kept >= sampling.top_p * sum) out.resize(i + 1);
  }
  for (Candidate& candidate : out) candidate.probability /= kept;
  return out;
}

rc::Gen<Logits> any_logits() {
  const auto some = rc::gen::map(rc::gen::inRange(-4000, 4000), [](int n) { return static_cast<float>(n) * 1e-3F; });
  const auto ties = rc::gen::map(rc::gen::inRange(-2, 3), [](int n) { return static_cast<float>(n); });
  const auto far = rc::gen::element(-1e30F, -200.0F, 0.0F, 5.0F, 1e30F);
  return rc::gen::nonEmpty(rc::gen::oneOf(rc::gen::container<Logits>(some), rc::gen::container<Logits>(ties),
                                          rc::gen::container<Logits>(far)));
}

RC_GTEST_PROP(Sampler, AtTemperature0TakesTheFirstOfTheLargest, ()) {
  const Logits logits = *any_logits();
  Sampler sampler({});
  const auto largest = std::max_element(logits.begin(), logits.end());
  RC_ASSERT(sampler.next(logits) == largest - logits.begin());
}

RC_GTEST_PROP(Sampler, DrawsOnlyWhatTheDefinitionLeaves, ()) {
  const Logits logits = *any_logits();
  const Sampling sampling{.temperature = *rc::gen::element(1e-300, 0.1, 0.7, 1.0, 3.0, 1e300),
                          .top_k = *rc::gen::inRange(0, 40),
                          .top_p = *rc::gen::element(1e-9, 0.1, 0.5, 0.9, 0.999, 1.0),
                          .seed = *rc::gen::arbitrary<std::uint64_t>()};
  const std::vector<Candidate> candidates = plain_candidates(logits, sampling);
  Sampler sampler(sampling);
  for (int n = 0; n < 20; ++n) {
    const std::int32_t id = sampler.next(logits);
    const auto found =
        std::find_if(candidates.begin(), candidates.end(), [id](const Candidate& c) { return c.id == id; });
    RC_ASSERT(found != candidates.end());
    RC_ASSERT(found->probability > 0.0);
  }
}

/// Allows 5 standard deviations of each token's count. The seed is fixed, so the result is always the same.
void expect_frequencies(const Logits& logits, const Sampling& sampling) {
  constexpr int kDraws = 40000;
  Sampler sampler(sampling);
  std::map<std::int32_t, int> counts;
  for (int n = 0; n < kDraws; ++n) ++counts[sampler.next(logits)];
  int seen = 0;
  for (const Candidate& c : plain_candidates(logits, sampling)) {
    const double deviation = std::sqrt(kDraws * c.probability * (1.0 - c.probability));
    EXPECT_NEAR(counts[c.id], kDraws * c.probability, 5.0 * deviation + 1e-6) << "token " << c.id;
    seen += counts[c.id];
  }
  EXPECT_EQ(seen, kDraws);
}

TEST(Sampler, Tokens_AnyProbabilities_AreDrawnByThem) {
  Logits logits(300);
  SplitMix64 random(3);
  for (float& x : logits) x = static_cast<float>(4.0 * random.uniform());
  logits[7] = logits[200] = 5.0F;
  expect_frequencies(logits, {.temperature = 1.0, .seed = 1});
  expect_frequencies(logits, {.temperature = 0.4, .seed = 2});
  expect_frequencies(logits, {.temperature = 1.0, .top_k = 5, .seed = 3});
  expect_frequencies(logits, {.temperature = 2.0, .top_p = 0.3, .seed = 4});
  expect_frequencies(logits, {.temperature = 1.5, .top_p = 0.97, .seed = 5});  // more tokens than are sorted first
  expect_frequencies(logits, {.temperature = 1.5, .top_k = 20, .top_p = 0.6, .seed = 6});
}

TEST(Sampler, TopK_WithTopP_IsAppliedFirst) {
  // Of 0.4, 0.3, 0.2, 0.1 the first two add up to 0.7; after top_k = 2 the first one has more than half.
  const Logits logits{std::log(0.4F), std::log(0.3F), std::log(0.2F), std::log(0.1F)};
  Sampler sampler({.temperature = 1.0, .top_k = 2, .top_p = 0.55});
  for (int n = 0; n < 200; ++n) EXPECT_EQ(sampler.next(logits), 0);
}

TEST(Sampler, Tokens_SameSeed_AreTheSame) {
  const Logits logits(1000, 0.0F);
  const auto drawn = [&](std::uint64_t seed) {
    Sampler sampler({.temperature = 1.0, .seed = seed});
    std::vector<std::int32_t> out(20);
    for (std::int32_t& id : out) id = sampler.next(logits);
    return out;
  };
  EXPECT_EQ(drawn(5), drawn(5));
  EXPECT_NE(drawn(5), drawn(6));
}

void expect_refused(const std::string& message, const Sampling& sampling, const Logits& logits = {0.0F}) {
  try {
    Sampler(sampling).next(logits);
    ADD_FAILURE() << "accepted: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), message);
  }
}

TEST(Sampler, Sampler_NotFiniteOrOutOfRange_IsRefused) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::string end = ": the model gives numbers that are not finite";
  for (const double temperature : {0.0, 1.0}) {
    expect_refused("the logit of token 1 is nan" + end, {.temperature = temperature}, {0.0F, std::nanf(""), 1.0F});
    expect_refused("the logit of token 1 is nan" + end, {.temperature = temperature}, {0.0F, -std::nanf(""), 1.0F});
    expect_refused("the logit of token 2 is inf" + end, {.temperature = temperature}, {0.0F, 1.0F, kInf});
    expect_refused("the logit of token 0 is -inf" + end, {.temperature = temperature}, {-kInf, 1.0F});
  }
  expect_refused("no logits to choose a token from", {}, {});
  expect_refused("temperature is -1 but must be at least 0 and finite", {.temperature = -1.0});
  expect_refused("temperature is nan but must be at least 0 and finite", {.temperature = std::nan("")});
  expect_refused("top_k is -1 but must be at least 0", {.top_k = -1});
  expect_refused("top_p is 0 but must be above 0 and at most 1", {.top_p = 0.0});
  expect_refused("top_p is nan but must be above 0 and at most 1", {.top_p = std::nan("")});
  expect_refused("top_p is 1.5 but must be above 0 and at most 1", {.top_p = 1.5});
}

}  // namespace
}  // namespace headgate::generate
