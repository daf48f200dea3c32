// SPDX-License-Identifier: Apache-2.0
#include "python/headgate/attention_rows.hpp"

#include <cstddef>
#include <string>
#include <vector>

#include "library/core/gate_functions.hpp"
#include "library/core/rows.hpp"

namespace headgate::python {
Inputs take_inputs(const Keywords& keywords, std::size_t required) {
  const bool paged = !keywords.take("block_table").is_none();
  return take_inputs_of<kAttentionInputs>(keywords, required, [paged](const AttentionInput& row) {
    return paged && row.traits.in_pages ? ArrayKind::pages : array_kind(row.kind);
  });
}

AttentionOptions take_options(const Keywords& keywords) {
  return take_options_of<kAttentionOptions, AttentionOptions>(keywords);
}

ArgumentText layout_text() { return layout_text("q, k, v, gate, y, attn, pages"); }

std::vector<ArgumentText> input_texts(std::size_t required) {
  return joined(input_texts_of<kAttentionInputs>(required), {layout_text()});
}

std::vector<ArgumentText> option_texts() { return option_texts_of<kAttentionOptions, AttentionOptions>(); }

nb::dict rows_for_torch() {
  nb::dict rows = torch_rows<kAttentionInputs, kAttentionGradients, kAttentionOptions, AttentionOptions>();
  nb::list gate_functions;
  for (const GateFunction& row : kGateFunctions) {
    gate_functions.append(nb::make_tuple(std::string(row.word), row.has_zero));
  }
  rows["gate_functions"] = gate_functions;
  return rows;
}

}  // namespace headgate::python
