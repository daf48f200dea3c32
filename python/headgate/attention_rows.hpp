// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "headgate/attention.hpp"
#include "library/core/attention_options.hpp"
#include "library/core/attention_tensors.hpp"
#include "python/headgate/keywords.hpp"
#include "python/headgate/operation_rows.hpp"

// Converts the arguments of attention. Both signatures and calls follow the tables in
// library/core/attention_tensors.hpp and attention_options.hpp.

namespace headgate::python {

/// Number of inputs that may be positional arguments: q, k, v and gate.
inline constexpr std::size_t kPositionalInputs = 4;
/// Number of required inputs: q, k and v.
inline constexpr std::size_t kRequiredInputs = 3;
static_assert(kAttentionInputs[kRequiredInputs - 1].traits.required &&
              !kAttentionInputs[kRequiredInputs].traits.required);

using Inputs = OperationInputs<kAttentionInputs>;

/// Reads `layout` and all inputs from the arguments. Throws Error if one of the first `required` inputs is None.
Inputs take_inputs(const Keywords& keywords, std::size_t required = kRequiredInputs);

/// Reads every option from the arguments.
AttentionOptions take_options(const Keywords& keywords);

/// Returns the signatures and help texts of the inputs and of `layout`. The first `required` inputs have no default.
std::vector<ArgumentText> input_texts(std::size_t required = kRequiredInputs);
/// Returns the signature and help text of `layout`.
ArgumentText layout_text();
/// Returns the signatures and help texts of the options.
std::vector<ArgumentText> option_texts();

/// Returns the tables of attention as a dict for headgate.torch: the entries of torch_rows(), and "gate_functions".
/// "gate_functions" is a list of tuples (name of a gate function g, whether g(z) = 0 for some logit z).
nb::dict rows_for_torch();

}  // namespace headgate::python
