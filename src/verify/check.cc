// SPDX-License-Identifier: Apache-2.0
#include "verify/check.hpp"

#include <fmt/format.h>

#include <cmath>
#include <exception>

#include "library/core/element.hpp"
#include "verify/tolerance.hpp"

namespace headgate::verify {
namespace {

/// Checks that the backward pass throws for this problem, which has a paged or int8 KV cache. Returns a mismatch if it
/// does not throw.
/// Passes all required tensors, so that the KV cache is the only reason to throw.
std::optional<std::string> refusal(const Case& problem, const Kernels& kernels) {
  const AttentionSaved saved = problem.saved();
  try {
    kernels.backward({}, problem.inputs(), saved, {.dy = saved.y}, problem.backward_options());
  } catch (const std::exception&) {
    return std::nullopt;
  }
  return "attention_backward took a cache: " + describe(problem.spec());
}

/// Checks a forward pass that computes only lse and max_logit. If the seed is odd, omits v.
std::optional<std::string> check_lse_alone(Case& problem, const Kernels& kernels, WorstError* worst) {
  const CaseSpec& spec = problem.spec();
  const TensorView lse = problem.saving_outputs().lse, max_logit = problem.saving_outputs().max_logit;
  AttentionInputs inputs = problem.inputs();
  if (spec.seed % 2 != 0) inputs.v = inputs.v_scale = inputs.v_first = {};
  problem.poison_outputs();
  if (auto error = thrown_by("attention_forward of lse", describing(problem), [&] {
        kernels.forward({.lse = lse, .max_logit = max_logit}, inputs, problem.options());
      })) {
    return error;
  }
  const reference::Forward& want = problem.expected_forward();
  const Case::MaxLogits logits = problem.expected_max_logits();
  return mismatch_in({{"lse alone", lse, want.lse, want.magnitude.lse, &want.inherited.lse, nullptr,
                       Tolerance::of(spec.dtype, lse.dtype, spec.D + spec.S)},
                      {"max_logit without y", max_logit, logits.value, logits.magnitude, nullptr, nullptr,
                       Tolerance::of(spec.dtype, max_logit.dtype, spec.D + spec.S)}},
                     problem, worst);
}

}  // namespace

std::optional<std::string> check_forward_case(Case& problem, const Kernels& kernels, WorstError* worst) {
  const CaseSpec& spec = problem.spec();
  const AttentionOutputs out = problem.outputs();
  problem.poison_outputs();
  problem.poison_gradients();
  if (auto error = thrown_by("attention_forward", describing(problem),
                             [&] { kernels.forward(out, problem.inputs(), problem.options()); })) {
    return error;
  }
  const reference::Forward& want = problem.expected_forward();
  const Case::MaxLogits logits = problem.expected_max_logits();
  const auto rule = [&spec](const TensorView& view) { return Tolerance::of(spec.dtype, view.dtype, spec.D + spec.S); };
  if (auto mismatch = mismatch_in(
          {{"y", out.y, want.y, want.magnitude.y, &want.inherited.y, nullptr, rule(out.y)},
           {"attn", out.attn, want.attn, want.magnitude.attn, &want.inherited.attn, nullptr, rule(out.attn)},
           {"lse", out.lse, want.lse, want.magnitude.lse, &want.inherited.lse, nullptr, rule(out.lse)},
           {"weights", out.weights, want.weights, want.magnitude.weights, &want.inherited.weights, nullptr,
            rule(out.weights)},
           {"max_logit", out.max_logit, logits.value, logits.magnitude, nullptr, nullptr, rule(out.max_logit)}},
          problem, worst)) {
    return mismatch;
  }
  const bool needs_y = problem.options().gate_threshold > 0.0 || !kernels.computes_lse_alone;
  return needs_y ? std::nullopt : check_lse_alone(problem, kernels, worst);
}

std::optional<std::string> check_backward_case(Case& problem, const Kernels& kernels, WorstError* worst) {
  const CaseSpec& spec = problem.spec();
  if (spec.forward_only()) return refusal(problem, kernels);
  const AttentionGradients& out = problem.gradients();
  problem.poison_outputs();
  problem.poison_gradients();
  if (auto error = thrown_by("attention_forward", describing(problem), [&] {
        kernels.forward(problem.saving_outputs(), problem.inputs(), problem.backward_options());
      })) {
    return error;
  }
  if (auto error = thrown_by("attention_backward", describing(problem), [&] {
        kernels.backward(out, problem.inputs(), problem.saved(), problem.incoming(), problem.backward_options());
      })) {
    return error;
  }
  const reference::Backward& want = problem.expected_backward();
  const reference::BackwardArrays& m = want.magnitude;
  const reference::BackwardArrays& saved = want.inherited;
  const reference::BackwardArrays& like = want.like_terms;
  const std::int64_t row = spec.D + spec.Dv + spec.S;
  const auto rule = [&](const TensorView& view, std::int64_t terms) {
    return Tolerance::of(spec.dtype, view.dtype, terms).with_saved_lse(spec.dtype, problem.saved().lse.dtype);
  };
  const std::int64_t column = row + spec.group * spec.T;
  const std::int64_t everything = row + spec.B * spec.Hq() * spec.T;
  return mismatch_in(
      {{"dq", out.dq, want.dq, m.dq, &saved.dq, &like.dq, rule(out.dq, row)},
       {"dk", out.dk, want.dk, m.dk, &saved.dk, &like.dk, rule(out.dk, column)},
       {"dv", out.dv, want.dv, m.dv, &saved.dv, &like.dv, rule(out.dv, column)},
       {"dgate", out.dgate, want.dgate, m.dgate, &saved.dgate, &like.dgate, rule(out.dgate, row)},
       {"dbias", out.dbias, want.dbias, m.dbias, &saved.dbias, &like.dbias, rule(out.dbias, everything)},
       {"dsinks", out.dsinks, want.dsinks, m.dsinks, &saved.dsinks, &like.dsinks, rule(out.dsinks, everything)}},
      problem, worst);
}

namespace {

/// Checks topk_index. Each listed key must be in range, visible and listed once. No key with a larger weight may be
/// missing, and topk_weight must match. Unused entries must be −1.
std::optional<std::string> check_top_keys(const Case& problem, const reference::Forward& want, const Tolerance& rule) {
  const AttentionStatistics& out = problem.statistics();
  const TensorView& index = out.topk_index;
  if (!index.present()) return std::nullopt;
  const auto [B, Hq, T, K] = index.shape;
  const std::int64_t columns = problem.spec().S;
  for (std::int64_t row = 0; row < B * Hq * T; ++row) {
    const std::int64_t b = row / T / Hq, h = row / T % Hq, i = row % T;
    const auto [first, S] = problem.columns_of_query(i);
    const double* p = want.weights.data() + row * columns + first;
    const double* forward_magnitude = want.magnitude.weights.data() + row * columns + first;
    const double subtracted = reference::subtracted_from_scores(want.lse[static_cast<std::size_t>(row)]);
    const auto magnitude = [&](std::int64_t j) { return forward_magnitude[j] + p[j] * subtracted; };
    const auto wrong = [&](std::int64_t n, const std::string& what) {
      return fmt::format("topk_index[{},{},{},{}] = {:.0f}, {}: {}", b, h, i, n, load(index, b, h, i, n), what,
                         describe(problem.spec()));
    };
    if (std::isnan(want.lse[static_cast<std::size_t>(row)])) continue;
    std::vector<char> left(static_cast<std::size_t>(S), 1);
    for (std::int64_t n = 0; n < K; ++n) {
      const auto j = static_cast<std::int64_t>(load(index, b, h, i, n));
      if (j < -1 || j >= S) return wrong(n, "which is no key");
      if (j >= 0 && (left[static_cast<std::size_t>(j)] == 0 || magnitude(j) == 0.0)) {
        return wrong(n, "which is hidden or stands there before");
      }
      const double weight = j < 0 ? 0.0 : p[j];
      const double error = rule(weight, j < 0 ? 0.0 : magnitude(j));
      if (out.topk_weight.present() && !(std::abs(load(out.topk_weight, b, h, i, n) - weight) <= error)) {
        return wrong(n, fmt::format("whose weight is {:.9g} and not {:.9g} ± {:.3g}", weight,
                                    load(out.topk_weight, b, h, i, n), error));
      }
      if (j >= 0) left[static_cast<std::size_t>(j)] = 0;
      for (std::int64_t other = 0; other < S; ++other) {
        if (left[static_cast<std::size_t>(other)] == 0 || p[other] - weight <= error + rule(p[other], magnitude(other)))
          continue;
        return wrong(n, fmt::format("but key {} has weight {:.9g}, more than {:.9g}", other, p[other], weight));
      }
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> check_statistics_case(Case& problem, const Kernels& kernels, WorstError* worst) {
  const CaseSpec& spec = problem.spec();
  problem.poison_outputs();
  problem.poison_gradients();
  problem.poison_statistics();
  const ConstTensorView lse = problem.saved().lse;
  if (auto error = thrown_by("attention_forward", describing(problem),
                             [&] { kernels.forward(problem.saving_outputs(), problem.inputs(), problem.options()); })) {
    return error;
  }
  if (auto error = thrown_by("attention_statistics", describing(problem), [&] {
        kernels.statistics(problem.statistics(), problem.inputs(), lse, problem.selection(), problem.options());
      })) {
    return error;
  }
  const reference::Statistics& want = problem.expected_statistics();
  const auto rule = [&](DType output, std::int64_t terms) {
    return Tolerance::of(spec.dtype, output, terms).with_saved_lse(spec.dtype, lse.dtype);
  };
  std::vector<Comparison> comparisons;
  for (std::size_t n = 0; n < kStatisticsOutputs.size(); ++n) {
    const StatisticsOutput& output = kStatisticsOutputs[n];
    const TensorView& actual = problem.statistics().*output.member;
    if (!actual.present() || output.is_index()) continue;
    const std::int64_t terms = spec.D + spec.S + (output.third == StatisticsDim::one ? spec.T : 0);
    const reference::StatisticsArray& expected = want.outputs[n];
    comparisons.push_back({output.name, actual, expected.value, expected.magnitude, nullptr, &expected.like_terms,
                           rule(actual.dtype, terms)});
  }
  if (auto mismatch = mismatch_in(comparisons, problem, worst)) return mismatch;
  return check_top_keys(problem, problem.expected_before_dropout(), rule(spec.statistics.dtype, spec.D + spec.S));
}

std::optional<std::string> check_same_bits(Case& problem, const Kernels& kernels) {
  return thread_mismatch(problem, [&] {
    problem.poison_outputs();
    problem.poison_gradients();
    kernels.forward(problem.outputs(), problem.inputs(), problem.options());
    std::vector<std::uint8_t> bytes = problem.output_bytes();
    kernels.forward(problem.saving_outputs(), problem.inputs(), problem.backward_options());
    if (!problem.spec().forward_only()) {
      kernels.backward(problem.gradients(), problem.inputs(), problem.saved(), problem.incoming(),
                       problem.backward_options());
      const std::vector<std::uint8_t> gradients = problem.gradient_bytes();
      bytes.insert(bytes.end(), gradients.begin(), gradients.end());
    }
    problem.poison_statistics();
    kernels.statistics(problem.statistics(), problem.inputs(), problem.saved().lse, problem.selection(),
                       problem.options());
    const std::vector<std::uint8_t> statistics = problem.statistics_bytes();
    bytes.insert(bytes.end(), statistics.begin(), statistics.end());
    return bytes;
  });
}

std::optional<std::string> check_on_every_target(
    const CaseSpec& spec,
    const std::function<std::optional<std::string>(Case& problem, const std::string& target)>& check) {
  return check_on_implementations<Case>(spec, check);
}

}  // namespace headgate::verify
