// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "verify/compare.hpp"
#include "verify/implementation.hpp"
#include "verify/linear_attention_case.hpp"

namespace headgate::verify {

/// The functions to check. By default, these are the functions of the library; tests of the checks replace them.
struct LinearKernels {
  std::function<void(const LinearAttentionOutputs&, const LinearAttentionInputs&, const LinearAttentionOptions&)>
      forward = linear_attention_forward;
  std::function<void(const LinearAttentionGradients&, const LinearAttentionInputs&, const LinearAttentionIncoming&,
                     const LinearAttentionOptions&)>
      backward = linear_attention_backward;
};

/// Runs the forward pass on poisoned outputs. Compares everything that it wrote with the oracle, by the rule of
/// docs/reference/numerics.md. Returns a description of the first mismatch, or nullopt.
std::optional<std::string> check_linear_forward_case(LinearCase& problem, const LinearKernels& kernels = {},
                                                     WorstError* worst = nullptr);

/// Runs the backward pass, which needs no saved outputs. Compares the gradients with the oracle's.
std::optional<std::string> check_linear_backward_case(LinearCase& problem, const LinearKernels& kernels = {},
                                                      WorstError* worst = nullptr);

/// Checks that results are bitwise identical with one thread and with three.
std::optional<std::string> check_linear_same_bits(LinearCase& problem, const LinearKernels& kernels = {});

/// Calls check(problem, name) for every vector target, like check_on_every_target() in check.hpp.
std::optional<std::string> check_linear_on_every_target(
    const LinearCaseSpec& spec,
    const std::function<std::optional<std::string>(LinearCase& problem, const std::string& target)>& check);

}  // namespace headgate::verify
