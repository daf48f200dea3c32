// SPDX-License-Identifier: Apache-2.0
#include "tool/bench/linear_attention.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "headgate/linear_attention_statistics.hpp"
#include "library/core/linear_words.hpp"
#include "library/core/precision_words.hpp"
#include "tool/bench/job.hpp"
#include "tool/bench/workload.hpp"
#include "verify/linear_attention_case.hpp"
#include "verify/tolerance.hpp"

namespace headgate::bench {
namespace {

using verify::BetaInput;
using verify::DecayInput;
using verify::LinearCaseSpec;

// Guaranteed rates. kForwardFloor and kBackwardFloor are shares of the FMA peak (peak rate of fused multiply-adds).
// kPerFeatureFloor is the rate with one decay per feature, as a share of the rate with one decay per head.
constexpr double kForwardFloor = 0.55, kBackwardFloor = 0.40;
constexpr double kPerFeatureFloor = 0.70;

/// Returns the FLOPs of the recurrence. A multiply-add counts 2.
/// For each token, the forward pass has these steps, each of one multiply-add per element of the state S:
/// - The delta rule, if there is one, reads S.
/// - S is updated.
/// - Each head of y that belongs to S reads S.
/// The backward pass has the four scans of docs/reference/math.md, section 11.3.
double flops_of(const LinearCaseSpec& s, BenchOp op) {
  const double states = static_cast<double>(s.B * s.T * s.Hv),
               readers = static_cast<double>(s.Ho()) / static_cast<double>(s.Hv);
  const double delta = s.has_delta() ? 1.0 : 0.0;
  const double passes = op == BenchOp::forward ? 1.0 + delta + readers : 4.0 + 4.0 * delta + 3.0 * readers;
  return 2.0 * passes * states * static_cast<double>(s.D * s.Dv);
}

nlohmann::ordered_json facts_of(const LinearCaseSpec& s, const std::string& op) {
  nlohmann::ordered_json facts = {{"op", op},
                                  {"rule", word_of(s.rule)},
                                  {"B", s.B},
                                  {"Hq", s.Hq},
                                  {"Hk", s.Hk},
                                  {"Hv", s.Hv},
                                  {"T", s.T},
                                  {"D", s.D},
                                  {"Dv", s.Dv},
                                  {"dtype", dtype_name(s.dtype)},
                                  {"decay", word_of(s.decay)}};
  if (s.precision != Precision::exact) facts["precision"] = word_of(s.precision);
  return facts;
}

class LinearAttentionJob : public BenchJob {
 public:
  LinearAttentionJob(BenchOp op, const LinearCaseSpec& spec)
      : op_(op),
        problem_(spec, verify::Placement::aligned,
                 op == BenchOp::forward ? verify::Passes::forward : verify::Passes::forward_and_backward) {}

  void run() override {
    if (op_ == BenchOp::forward) {
      linear_attention_forward(problem_.outputs(), problem_.inputs(), problem_.options());
    } else {
      linear_attention_backward(problem_.gradients(), problem_.inputs(), problem_.incoming(), problem_.options());
    }
  }
  double flops() const override { return flops_of(problem_.spec(), op_); }
  DType compute_dtype() const override { return verify::compute_dtype(problem_.spec().dtype); }

  nlohmann::ordered_json facts() const override {
    return facts_of(problem_.spec(), fmt::format("linear_{}", word_of(op_)));
  }

 private:
  BenchOp op_;
  verify::LinearCase problem_;
};

/// Computes the statistic `reach`, which needs every attention weight but stores no weights.
/// Counts 4·D FLOPs for each visible (query, token) pair: two multiply-adds for each of D features.
class LinearReachJob : public BenchJob {
 public:
  explicit LinearReachJob(const LinearCaseSpec& spec)
      : problem_(spec, verify::Placement::aligned, verify::Passes::forward),
        reach_(static_cast<std::size_t>(spec.B * spec.Ho() * spec.T)) {}

  void run() override {
    const LinearCaseSpec& s = problem_.spec();
    LinearAttentionStatistics outputs;
    outputs.reach = make_view(reach_.data(), {s.B, s.Ho(), s.T, 1});
    linear_attention_statistics(outputs, problem_.inputs(), problem_.options());
  }
  double flops() const override {
    const LinearCaseSpec& s = problem_.spec();
    const auto T = static_cast<double>(s.T);
    return 4.0 * static_cast<double>(s.B * s.Ho() * s.D) * T * (T + 1.0) / 2.0;
  }
  DType compute_dtype() const override { return verify::compute_dtype(problem_.spec().dtype); }
  nlohmann::ordered_json facts() const override { return facts_of(problem_.spec(), "linear_reach"); }

 private:
  verify::LinearCase problem_;
  std::vector<float> reach_;
};

JobFactory linear_job(BenchOp op, const LinearCaseSpec& spec) {
  return [op, spec](int threads) {
    LinearCaseSpec with_threads = spec;
    with_threads.threads = threads;
    return std::make_unique<LinearAttentionJob>(op, with_threads);
  };
}

/// Returns the spec of a Gated DeltaNet layer: heads of `dim` features in (B,T,H,D) memory order, with L2-normalised q
/// and k.
LinearCaseSpec layer(std::int64_t heads, std::int64_t tokens, std::int64_t dim) {
  LinearCaseSpec spec;
  spec.Hq = spec.Hk = spec.Hv = heads;
  spec.T = tokens;
  spec.D = spec.Dv = dim;
  spec.layout = verify::Layout::bthd;
  spec.l2_norm = 1e-6;
  spec.decay = DecayInput::headwise;
  spec.decay_f32 = true;
  spec.beta = BetaInput::headwise;
  return spec;
}

/// Returns the spec of decoding one token with `heads` heads and a state that is updated in place.
LinearCaseSpec decoding(std::int64_t heads) {
  LinearCaseSpec spec = layer(heads, 1, 128);
  spec.state = DType::f32;
  spec.in_place = true;
  return spec;
}

}  // namespace

std::vector<BenchGroup> linear_attention_groups(int threads) {
  constexpr std::int64_t kHeads = 16, kTokens = 2048;
  std::vector<BenchGroup> groups;
  for (const BenchOp op : {BenchOp::forward, BenchOp::backward}) {
    const double floor = op == BenchOp::forward ? kForwardFloor : kBackwardFloor;
    BenchGroup kinds;
    for (const std::int64_t dim : {128, 64}) {
      const LinearCaseSpec spec = layer(kHeads, kTokens, dim);
      kinds.cases.push_back({fmt::format("linear/{}/D{}", word_of(op), dim), linear_job(op, spec), 0,
                             dim == 128 ? std::optional(floor) : std::nullopt});
    }
    LinearCaseSpec spec = layer(kHeads, kTokens, 128);
    spec.dtype = DType::bf16;
    kinds.cases.push_back({fmt::format("linear/{}/D128/bf16", word_of(op)), linear_job(op, spec), 0, floor});
    spec.precision = Precision::native16;
    kinds.ratios.push_back({kinds.cases.size(), kinds.cases.size() - 1, {}});
    kinds.cases.push_back({fmt::format("linear/{}/D128/native16", word_of(op)), linear_job(op, spec), 0, {}});
    spec = layer(kHeads, kTokens, 128);
    spec.decay = DecayInput::per_feature;
    kinds.ratios.push_back({kinds.cases.size(), 0, kPerFeatureFloor});
    kinds.cases.push_back({fmt::format("linear/{}/D128/per-feature", word_of(op)), linear_job(op, spec), 0, {}});
    groups.push_back(std::move(kinds));
    if (threads == 1) continue;
    BenchGroup one_head;
    for (const int used : {1, 2}) {
      one_head.cases.push_back({fmt::format("linear/{}/one-head/threads-{}", word_of(op), used),
                                linear_job(op, layer(1, kTokens, 128)),
                                used,
                                {}});
    }
    one_head.ratios.push_back({1, 0, kTwoCoresFloor});
    groups.push_back(std::move(one_head));
  }
  const auto reach = [spec = layer(kHeads, kTokens, 128)](int used) {
    LinearCaseSpec with_threads = spec;
    with_threads.threads = used;
    return std::make_unique<LinearReachJob>(with_threads);
  };
  groups.push_back({{{"linear/reach/D128", reach, 0, {}}}, {}});
  for (const std::int64_t heads : {16, 32, 256}) {
    groups.push_back(
        {{{fmt::format("linear/decode/heads{}", heads), linear_job(BenchOp::forward, decoding(heads)), 0, {}}}, {}});
  }
  return groups;
}

}  // namespace headgate::bench
