// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "headgate/attention.hpp"
#include "library/core/attention_options.hpp"
#include "library/core/attention_tensors.hpp"
#include "python/headgate/arrays.hpp"
#include "python/headgate/keywords.hpp"

// Arguments of attention, as library/core/attention_tensors.hpp and attention_options.hpp have them: signatures and
// calls walk the rows.

namespace headgate::python {

/// q, k, v and gate may be given by position.
inline constexpr std::size_t kPositionalInputs = 4;
/// q, k and v must be given.
inline constexpr std::size_t kRequiredInputs = 3;
static_assert(kAttentionInputs[kRequiredInputs - 1].traits.required &&
              !kAttentionInputs[kRequiredInputs].traits.required);

/// How the package takes the arrays of a kind.
constexpr ArrayKind array_kind(TensorKind kind) {
  switch (kind) {
    case TensorKind::heads: return ArrayKind::heads;
    case TensorKind::rows: return ArrayKind::rows;
    case TensorKind::scores: return ArrayKind::scores;
    case TensorKind::vector: return ArrayKind::vector;
    case TensorKind::table: break;
  }
  return ArrayKind::table;
}

/// The inputs of a call and what they need to be kept for.
struct Inputs {
  AttentionInputs views;
  PerTensor<Input, kAttentionInputs> arrays;
  nb::object q;  ///< outputs are made by the program that it comes from
  Layout layout = Layout::bhtd;

  /// Whether q has a dimension for the batch: outputs then have one.
  bool has_batch() const { return arrays[&AttentionInputs::q].array.ndim() == 4; }
};

/// Takes `layout` and all inputs. An absent one is None, which the first `required` must not be.
Inputs take_inputs(const Keywords& keywords, std::size_t required = kRequiredInputs);

/// Takes `layout` alone.
Layout take_layout(const Keywords& keywords);

/// Takes every option.
AttentionOptions take_options(const Keywords& keywords);

/// What signatures say of the inputs, of which the first `required` must be given, of `layout`, and of the options.
std::vector<ArgumentText> input_texts(std::size_t required = kRequiredInputs);
ArgumentText layout_text();
std::vector<ArgumentText> option_texts();

/// The rows as headgate.torch reads them: tuples of an input's name, whether it is required and whether it is for
/// forward passes alone; the names of the inputs that have gradients; of an option's name, its type and default in a
/// schema of PyTorch, the part of the operation that it changes and whether it is for forward passes alone; of a gate
/// function's word, and whether it has a zero.
nb::dict rows_for_torch();

/// What a result says of an output, or of a gradient.
ArgumentText text_of(const AttentionOutput& row);
ArgumentText text_of(const AttentionGradient& row);
/// What a signature says of a tensor that backward reads beside the inputs.
template <class Row>
ArgumentText text_of_read(const Row& row) {
  const std::string help = fmt::format("{}, {}: {}", row.shape, types_of(row.elements), row.help);
  return {row.name, "Array | None", "None", help};
}

}  // namespace headgate::python
