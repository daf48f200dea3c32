// SPDX-License-Identifier: Apache-2.0
#include "verify/check.hpp"

#include <fmt/format.h>

#include <cmath>
#include <exception>

#include "headgate/runtime.hpp"
#include "library/core/element.hpp"
#include "verify/tolerance.hpp"

namespace headgate::verify {
namespace {

/// The vector target that has products of native16.
constexpr const char* kNative16Target = "avx3";

/// One output beside the oracle's answer.
struct Comparison {
  const char* name;
  TensorView actual;
  const std::vector<double>& expected;
  const std::vector<double>& magnitude;
  const std::vector<double>* inherited;   // null: nothing
  const std::vector<double>* like_terms;  // null: nothing
  Tolerance tolerance;
};

/// First element out of tolerance, or never written.
std::optional<std::string> compare(const Comparison& c, const CaseSpec& spec, WorstError* worst) {
  if (!c.actual.present()) return std::nullopt;
  const Shape& n = c.actual.shape;
  std::size_t at = 0;
  for (std::int64_t b = 0; b < n[0]; ++b) {
    for (std::int64_t h = 0; h < n[1]; ++h) {
      for (std::int64_t i = 0; i < n[2]; ++i) {
        for (std::int64_t d = 0; d < n[3]; ++d, ++at) {
          const double actual = load(c.actual, b, h, i, d);
          const double inherited = c.inherited != nullptr ? (*c.inherited)[at] : 0.0;
          const double like_terms = c.like_terms != nullptr ? (*c.like_terms)[at] : 0.0;
          const double tolerance = c.tolerance(c.expected[at], c.magnitude[at], inherited, like_terms);
          const double ratio = error_ratio(actual, c.expected[at], tolerance, c.actual.dtype);
          const bool poison = is_poison(c.actual, offset_of(c.actual, b, h, i, d));
          if (worst != nullptr && ratio > worst->ratio) *worst = {ratio, fmt::format("{}: {}", c.name, describe(spec))};
          if (ratio <= 1.0 && !poison) continue;
          return fmt::format("{}[{},{},{},{}] = {:.9g}{}, expected {:.9g} ± {:.3g}: {}", c.name, b, h, i, d, actual,
                             poison ? " (never written)" : "", c.expected[at], tolerance, describe(spec));
        }
      }
    }
  }
  return std::nullopt;
}

std::optional<std::string> first_mismatch(const std::vector<Comparison>& comparisons, const Case& problem,
                                          WorstError* worst) {
  for (const Comparison& c : comparisons) {
    if (auto mismatch = compare(c, problem.spec(), worst)) return mismatch;
  }
  if (const auto name = problem.spilled()) {
    return fmt::format("{}: bytes outside the tensor were written: {}", *name, describe(problem.spec()));
  }
  return std::nullopt;
}

template <typename Run>
std::optional<std::string> thrown_by(const char* name, const Case& problem, const Run& run) {
  try {
    run();
  } catch (const std::exception& error) {
    return fmt::format("{} threw \"{}\": {}", name, error.what(), describe(problem.spec()));
  }
  return std::nullopt;
}

/// The backward pass must say that it does not take such a problem.
std::optional<std::string> refusal(const Case& problem, const Kernels& kernels) {
  try {
    kernels.backward({}, problem.inputs(), {}, {}, problem.options());
  } catch (const std::exception&) {
    return std::nullopt;
  }
  return "attention_backward took a cache: " + describe(problem.spec());
}

/// Restores the active target, and clears a forced backend and forced products.
class ImplementationGuard {
 public:
  ImplementationGuard() : before_(active_target()) {}
  ImplementationGuard(const ImplementationGuard&) = delete;
  ImplementationGuard& operator=(const ImplementationGuard&) = delete;
  ~ImplementationGuard() {
    set_target(before_);
    set_backend("");
    set_native16_products("");
  }

 private:
  std::string before_;
};

}  // namespace

std::optional<std::string> check_forward_case(Case& problem, const Kernels& kernels, WorstError* worst) {
  const CaseSpec& spec = problem.spec();
  const AttentionOutputs out = problem.outputs();
  problem.poison_outputs();
  problem.poison_gradients();
  if (auto error =
          thrown_by("attention_forward", problem, [&] { kernels.forward(out, problem.inputs(), problem.options()); })) {
    return error;
  }
  const reference::Forward& want = problem.expected_forward();
  const auto rule = [&spec](const TensorView& view) { return Tolerance::of(spec.dtype, view.dtype, spec.D + spec.S); };
  return first_mismatch(
      {{"y", out.y, want.y, want.magnitude.y, &want.inherited.y, nullptr, rule(out.y)},
       {"attn", out.attn, want.attn, want.magnitude.attn, &want.inherited.attn, nullptr, rule(out.attn)},
       {"lse", out.lse, want.lse, want.magnitude.lse, &want.inherited.lse, nullptr, rule(out.lse)},
       {"weights", out.weights, want.weights, want.magnitude.weights, &want.inherited.weights, nullptr,
        rule(out.weights)}},
      problem, worst);
}

std::optional<std::string> check_backward_case(Case& problem, const Kernels& kernels, WorstError* worst) {
  const CaseSpec& spec = problem.spec();
  if (spec.forward_only()) return refusal(problem, kernels);
  const AttentionGradients& out = problem.gradients();
  problem.poison_outputs();
  problem.poison_gradients();
  if (auto error = thrown_by("attention_forward", problem, [&] {
        kernels.forward(problem.saving_outputs(), problem.inputs(), problem.backward_options());
      })) {
    return error;
  }
  if (auto error = thrown_by("attention_backward", problem, [&] {
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
  return first_mismatch(
      {{"dq", out.dq, want.dq, m.dq, &saved.dq, &like.dq, rule(out.dq, row)},
       {"dk", out.dk, want.dk, m.dk, &saved.dk, &like.dk, rule(out.dk, column)},
       {"dv", out.dv, want.dv, m.dv, &saved.dv, &like.dv, rule(out.dv, column)},
       {"dgate", out.dgate, want.dgate, m.dgate, &saved.dgate, &like.dgate, rule(out.dgate, row)},
       {"dbias", out.dbias, want.dbias, m.dbias, &saved.dbias, &like.dbias, rule(out.dbias, everything)},
       {"dsinks", out.dsinks, want.dsinks, m.dsinks, &saved.dsinks, &like.dsinks, rule(out.dsinks, everything)}},
      problem, worst);
}

namespace {

/// The keys of each row: in range, visible, each once, with the weights beside them, −1 where there are no more.
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
    const double start = reference::start_of_scores(want.lse[static_cast<std::size_t>(row)]);
    const auto magnitude = [&](std::int64_t j) { return forward_magnitude[j] + p[j] * start; };
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
  if (auto error = thrown_by("attention_forward", problem,
                             [&] { kernels.forward(problem.saving_outputs(), problem.inputs(), problem.options()); })) {
    return error;
  }
  if (auto error = thrown_by("attention_statistics", problem, [&] {
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
  if (auto mismatch = first_mismatch(comparisons, problem, worst)) return mismatch;
  return check_top_keys(problem, problem.expected_forward(), rule(spec.statistics.dtype, spec.D + spec.S));
}

std::optional<std::string> check_same_bits(Case& problem, const Kernels& kernels) {
  const auto run = [&](int threads) {
    problem.options().context.threads = threads;
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
  };
  const bool same = run(1) == run(3);
  problem.options().context.threads = problem.spec().threads;
  if (same) return std::nullopt;
  return "1 thread and 3 threads differ: " + describe(problem.spec());
}

std::optional<std::string> check_on_every_target(
    const CaseSpec& spec,
    const std::function<std::optional<std::string>(Case& problem, const std::string& target)>& check) {
  const ImplementationGuard guard;
  Case problem(spec);
  for (const Implementation& implementation : implementations()) {
    if (!implementation.takes(spec)) continue;
    set_backend(implementation.backend);
    set_native16_products(implementation.products);
    if (!implementation.target.empty()) set_target(implementation.target);
    if (auto mismatch = check(problem, implementation.name)) return implementation.name + ": " + *mismatch;
  }
  return std::nullopt;
}

bool Implementation::takes(const CaseSpec& spec) const {
  if (spec.precision == Precision::native16) return products.empty() == supported_native16_products().empty();
  // Exact calls take dot products for some scores of bf16 (library/attention/cpu/x86/dot_scores-inl.hpp).
  return products.empty() || (products == "avx512_bf16" && spec.dtype == DType::bf16);
}

std::vector<Implementation> implementations() {
  std::vector<Implementation> out;
  for (const std::string& backend : supported_backends()) {
    if (backend != "cpu") {
      out.push_back({backend, backend, "", ""});
      continue;
    }
    for (const std::string& target : supported_targets()) {
      out.push_back({target, backend, target, ""});
      if (target != kNative16Target) continue;
      for (const std::string& products : supported_native16_products()) {
        out.push_back({fmt::format("{} {}", target, products), backend, target, products});
      }
    }
  }
  return out;
}

}  // namespace headgate::verify
