// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "verify/case.hpp"

namespace headgate::verify {

/// What is checked: the library's own functions, or, in tests of the checks themselves, others in their place.
struct Kernels {
  std::function<void(const AttentionOutputs&, const AttentionInputs&, const AttentionOptions&)> forward =
      attention_forward;
  std::function<void(const AttentionGradients&, const AttentionInputs&, const AttentionSaved&, const AttentionIncoming&,
                     const AttentionOptions&)>
      backward = attention_backward;
};

/// Largest error met, in units of the tolerance, and where.
struct WorstError {
  double ratio = 0.0;
  std::string where;
};

/// Runs the forward pass on poisoned outputs and compares all that it wrote with the oracle, by the rule of
/// docs/NUMERICS.md. Returns a description of the first mismatch; nullopt when all is right.
std::optional<std::string> check_forward_case(Case& problem, const Kernels& kernels = {}, WorstError* worst = nullptr);

/// Runs a forward pass for what it saves, then the backward pass, and compares the gradients with the oracle's.
std::optional<std::string> check_backward_case(Case& problem, const Kernels& kernels = {}, WorstError* worst = nullptr);

/// Runs the same calls with one thread and with three: every byte that they write must be the same.
std::optional<std::string> check_same_bits(Case& problem, const Kernels& kernels = {});

/// What a problem can be run on: a backend, and of the CPU's every vector target that it can run.
struct Implementation {
  std::string name;     ///< the target's where there is one, else the backend's
  std::string backend;  ///< as set_backend takes it
  std::string target;   ///< as set_target takes it; empty where the backend has none
};
std::vector<Implementation> implementations();

/// check(problem, name) on every implementation, against one answer of the oracle. Returns the first mismatch, led by
/// the implementation's name. Afterwards the active target is the same as before, and no backend is forced.
std::optional<std::string> check_on_every_target(
    const CaseSpec& spec,
    const std::function<std::optional<std::string>(Case& problem, const std::string& target)>& check);

}  // namespace headgate::verify
