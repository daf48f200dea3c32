// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "headgate/attention.hpp"
#include "library/core/attention_options.hpp"
#include "library/core/attention_tensors.hpp"
#include "python/headgate/keywords.hpp"
#include "python/headgate/operation_rows.hpp"

// Arguments of attention, as library/core/attention_tensors.hpp and attention_options.hpp have them: signatures and
// calls walk the rows.

namespace headgate::python {

/// q, k, v and gate may be given by position.
inline constexpr std::size_t kPositionalInputs = 4;
/// q, k and v must be given.
inline constexpr std::size_t kRequiredInputs = 3;
static_assert(kAttentionInputs[kRequiredInputs - 1].traits.required &&
              !kAttentionInputs[kRequiredInputs].traits.required);

using Inputs = OperationInputs<kAttentionInputs>;

/// Takes `layout` and all inputs. An absent one is None, which the first `required` must not be.
Inputs take_inputs(const Keywords& keywords, std::size_t required = kRequiredInputs);

/// Takes every option.
AttentionOptions take_options(const Keywords& keywords);

/// What signatures say of the inputs, of which the first `required` must be given, of `layout`, and of the options.
std::vector<ArgumentText> input_texts(std::size_t required = kRequiredInputs);
ArgumentText layout_text();
std::vector<ArgumentText> option_texts();

/// torch_rows of attention, with the gate functions: tuples of a word, and of whether it has a zero.
nb::dict rows_for_torch();

}  // namespace headgate::python
