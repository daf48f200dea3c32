// SPDX-License-Identifier: Apache-2.0
#include "python/headgate/attention_rows.hpp"

#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "library/core/gate_functions.hpp"
#include "library/core/rows.hpp"

namespace headgate::python {
namespace {

/// The type and the default of an option in a schema of PyTorch. There 0 threads stand for None.
template <class Row>
nb::tuple schema_type_and_default(const Row& row) {
  using Value = typename Row::Value;
  const AttentionOptions defaults;
  if constexpr (Row::kIsName) {
    return nb::make_tuple("str", "");
  } else if constexpr (std::is_enum_v<Value>) {
    return nb::make_tuple("str", std::string(word_of(row.of(defaults))));
  } else if constexpr (Row::kMayBeEmpty) {
    return nb::make_tuple(std::is_integral_v<Value> ? "int?" : "float?", nb::none());
  } else {
    return nb::make_tuple(std::is_integral_v<Value> ? "int" : "float", row.of(defaults));
  }
}

}  // namespace

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
  nb::list inputs, gradients, options, gate_functions;
  for (const AttentionInput& row : kAttentionInputs) {
    inputs.append(nb::make_tuple(row.name, row.traits.required, row.traits.forward_only));
  }
  for (const AttentionGradient& row : kAttentionGradients) gradients.append(input_of_gradient(row).name);
  for_each_row(kAttentionOptions, [&options](const auto& row) {
    const nb::tuple schema = schema_type_and_default(row);
    options.append(
        nb::make_tuple(row.text.name, schema[0], schema[1], std::string(word_of(row.part)), row.forward_only));
  });
  for (const GateFunction& row : kGateFunctions) {
    gate_functions.append(nb::make_tuple(std::string(row.word), row.has_zero));
  }
  nb::dict rows;
  rows["inputs"] = inputs;
  rows["gradients"] = gradients;
  rows["options"] = options;
  rows["gate_functions"] = gate_functions;
  return rows;
}

}  // namespace headgate::python
