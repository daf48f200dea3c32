// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "verify/case.hpp"
#include "verify/compare.hpp"
#include "verify/implementation.hpp"

namespace headgate::verify {

/// The functions to check. By default, these are the functions of the library; tests of the checks replace them.
struct Kernels {
  std::function<void(const AttentionOutputs&, const AttentionInputs&, const AttentionOptions&)> forward =
      attention_forward;
  std::function<void(const AttentionGradients&, const AttentionInputs&, const AttentionSaved&, const AttentionIncoming&,
                     const AttentionOptions&)>
      backward = attention_backward;
  std::function<void(const AttentionStatistics&, const AttentionInputs&, const ConstTensorView&,
                     const StatisticsSelection&, const AttentionOptions&)>
      statistics = attention_statistics;
  bool computes_lse_alone = true;  ///< whether `forward` can compute lse without v and y
};

/// Runs the forward pass on poisoned outputs. Compares everything that it wrote with the oracle, by the rule of
/// docs/reference/numerics.md. Returns a description of the first mismatch, or nullopt.
std::optional<std::string> check_forward_case(Case& problem, const Kernels& kernels = {}, WorstError* worst = nullptr);

/// Runs a forward pass, then the backward pass on its saved outputs. Compares the gradients with the oracle's.
std::optional<std::string> check_backward_case(Case& problem, const Kernels& kernels = {}, WorstError* worst = nullptr);

/// Runs a forward pass for lse, then attention_statistics. Compares the statistics with the oracle's.
std::optional<std::string> check_statistics_case(Case& problem, const Kernels& kernels = {},
                                                 WorstError* worst = nullptr);

/// Checks that results are bitwise identical with one thread and with three.
std::optional<std::string> check_same_bits(Case& problem, const Kernels& kernels = {});

/// Calls check(problem, name) for every implementation. The implementations share one problem, so the oracle computes
/// its results once. Returns the first mismatch, prefixed by the implementation's name. Restores the active target and
/// clears a forced backend.
std::optional<std::string> check_on_every_target(
    const CaseSpec& spec,
    const std::function<std::optional<std::string>(Case& problem, const std::string& target)>& check);

}  // namespace headgate::verify
