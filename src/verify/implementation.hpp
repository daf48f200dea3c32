// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace headgate::verify {

struct CaseSpec;
struct ConvolutionCaseSpec;
struct LinearCaseSpec;
struct NormCaseSpec;

/// What a problem can be run on: a backend and, for the CPU backend, each vector target that this CPU supports, and
/// once more with each that it has for native16.
struct Implementation {
  std::string name;      ///< the target's where there is one, else the backend's; and the products
  std::string backend;   ///< as set_backend takes it
  std::string target;    ///< as set_target takes it; empty where the backend has none
  std::string products;  ///< as set_native16_products takes it; empty: without them

  /// Whether the problem runs there: one of native16 on products, where the CPU has any.
  bool takes(const CaseSpec& spec) const;
  /// Linear attention, the short convolution and the gated norm have no backends and products of their own.
  bool takes(const LinearCaseSpec& /*spec*/) const { return runs_linear(); }
  bool takes(const ConvolutionCaseSpec& /*spec*/) const { return runs_linear(); }
  bool takes(const NormCaseSpec& /*spec*/) const { return runs_linear(); }
  bool runs_linear() const { return !target.empty() && products.empty(); }

  /// Makes it what calls run on.
  void activate() const;
};
std::vector<Implementation> implementations();

/// Restores the active target, and clears a forced backend and forced products.
class ImplementationGuard {
 public:
  ImplementationGuard();
  ImplementationGuard(const ImplementationGuard&) = delete;
  ImplementationGuard& operator=(const ImplementationGuard&) = delete;
  ~ImplementationGuard();

 private:
  std::string before_;
};

/// Calls check(problem, name) for every implementation that takes the spec, with one problem and one answer of the
/// oracle. Returns the first mismatch, which begins with the implementation's name.
template <typename Problem, typename Spec, typename Check>
std::optional<std::string> check_on_implementations(const Spec& spec, const Check& check) {
  const ImplementationGuard guard;
  Problem problem(spec);
  for (const Implementation& implementation : implementations()) {
    if (!implementation.takes(spec)) continue;
    implementation.activate();
    if (auto mismatch = check(problem, implementation.name)) return implementation.name + ": " + *mismatch;
  }
  return std::nullopt;
}

}  // namespace headgate::verify
