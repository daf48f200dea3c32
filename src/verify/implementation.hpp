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

/// A way to run a problem: a backend and, for the CPU backend, a vector target (instruction set).
/// implementations() lists each supported target once, with empty `products`.
/// It lists the target that supports native16 again for each kind of bf16 instructions that the CPU has.
struct Implementation {
  std::string name;      ///< "TARGET", "TARGET PRODUCTS", or the backend if it has no targets
  std::string backend;   ///< argument of set_backend
  std::string target;    ///< argument of set_target; empty if the backend has no targets
  std::string products;  ///< argument of set_native16_products; empty: the default kind

  /// Returns whether this implementation should run the problem.
  /// If the CPU has bf16 instructions, problems of Precision::native16 run only if `products` names a kind of them.
  bool takes(const CaseSpec& spec) const;
  /// Returns whether this implementation should run a problem of linear attention.
  /// A problem of Precision::exact runs once for each vector target, with empty `products`.
  bool takes(const LinearCaseSpec& spec) const;
  /// The short convolution and the gated norm run once per vector target: these operations have no other backends and
  /// no native16 products.
  bool takes(const ConvolutionCaseSpec& /*spec*/) const { return is_plain_target(); }
  bool takes(const NormCaseSpec& /*spec*/) const { return is_plain_target(); }
  /// Returns whether this is a vector target without a chosen kind of native16 products.
  bool is_plain_target() const { return !target.empty() && products.empty(); }

  /// Selects this implementation for later calls.
  void activate() const;
};
std::vector<Implementation> implementations();

/// Restores the active target on destruction. Also clears a forced backend and forced products.
class ImplementationGuard {
 public:
  ImplementationGuard();
  ImplementationGuard(const ImplementationGuard&) = delete;
  ImplementationGuard& operator=(const ImplementationGuard&) = delete;
  ~ImplementationGuard();

 private:
  std::string before_;
};

/// Calls check(problem, name) for every implementation for which takes(spec) is true.
/// The implementations share one problem, so the oracle computes its results once.
/// Returns the first mismatch, prefixed by the implementation's name.
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
