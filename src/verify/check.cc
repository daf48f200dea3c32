// SPDX-License-Identifier: Apache-2.0
#include "verify/check.hpp"

#include <fmt/format.h>

#include <cmath>
#include <exception>

#include "core/element.hpp"
#include "headgate/runtime.hpp"
#include "verify/tolerance.hpp"

namespace headgate::verify {
namespace {

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
  } catch (const Error&) {
    return std::nullopt;
  }
  return "attention_backward took a cache: " + describe(problem.spec());
}

/// Restores the active target, and clears a forced backend.
class ImplementationGuard {
 public:
  ImplementationGuard() : before_(active_target()) {}
  ImplementationGuard(const ImplementationGuard&) = delete;
  ImplementationGuard& operator=(const ImplementationGuard&) = delete;
  ~ImplementationGuard() {
    set_target(before_);
    set_backend("");
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
      {{"y", out.y, want.y, want.magnitude.y, nullptr, nullptr, rule(out.y)},
       {"attn", out.attn, want.attn, want.magnitude.attn, nullptr, nullptr, rule(out.attn)},
       {"lse", out.lse, want.lse, want.magnitude.lse, nullptr, nullptr, rule(out.lse)},
       {"weights", out.weights, want.weights, want.magnitude.weights, nullptr, nullptr, rule(out.weights)}},
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

std::optional<std::string> check_same_bits(Case& problem, const Kernels& kernels) {
  const auto run = [&](int threads) {
    problem.options().context.threads = threads;
    problem.poison_outputs();
    problem.poison_gradients();
    kernels.forward(problem.outputs(), problem.inputs(), problem.options());
    std::vector<std::uint8_t> bytes = problem.output_bytes();
    if (problem.spec().forward_only()) return bytes;
    kernels.forward(problem.saving_outputs(), problem.inputs(), problem.backward_options());
    kernels.backward(problem.gradients(), problem.inputs(), problem.saved(), problem.incoming(),
                     problem.backward_options());
    const std::vector<std::uint8_t> gradients = problem.gradient_bytes();
    bytes.insert(bytes.end(), gradients.begin(), gradients.end());
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
    set_backend(implementation.backend);
    if (!implementation.target.empty()) set_target(implementation.target);
    if (auto mismatch = check(problem, implementation.name)) return implementation.name + ": " + *mismatch;
  }
  return std::nullopt;
}

std::vector<Implementation> implementations() {
  std::vector<Implementation> out;
  for (const std::string& backend : supported_backends()) {
    if (backend == "cpu") {
      for (const std::string& target : supported_targets()) out.push_back({target, backend, target});
    } else {
      out.push_back({backend, backend, ""});
    }
  }
  return out;
}

}  // namespace headgate::verify
