// SPDX-License-Identifier: Apache-2.0
#include "python/headgate/attention_rows.hpp"

#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "headgate/error.hpp"
#include "headgate/runtime.hpp"
#include "library/core/gate_functions.hpp"
#include "library/core/rows.hpp"

namespace headgate::python {
namespace {

/// Returns find(). Its errors then begin with the names of the call and the argument.
template <class Find>
auto found(const Keywords& keywords, const char* name, const Find& find) {
  try {
    return find();
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}: {}", keywords.function(), name, error.what()));
  }
}

/// The target or the backend of a name.
template <typename Value>
Value find_name(const std::string& name) {
  if constexpr (std::is_same_v<Value, const Backend*>) {
    return &find_backend(name);
  } else {
    return find_target(name);
  }
}

/// Sets an option from its argument, if that is given.
template <class Row>
void take_option(const Keywords& keywords, const Row& row, AttentionOptions& options) {
  using Value = typename Row::Value;
  const char* const name = row.text.name;
  auto& member = row.of(options);
  if constexpr (Row::kIsName) {
    const auto word = keywords.take(name, "a word", std::string());
    if (!word.empty()) member = found(keywords, name, [&word] { return find_name<Value>(word); });
  } else if constexpr (std::is_same_v<Value, int>) {
    member = take_threads(keywords);
  } else if constexpr (std::is_enum_v<Value>) {
    const std::string word = keywords.take(name, "a word", std::string(word_of(member)));
    member = parse_word<Value>(fmt::format("{}: {}", keywords.function(), name), word);
  } else if constexpr (Row::kMayBeEmpty) {
    if (!keywords.take(name).is_none()) member = keywords.require<Value>(name);
  } else {
    member = keywords.take(name, member);
  }
}

/// How signatures name the type of an option, and its default as Python writes it.
struct TypeAndDefault {
  std::string type, value;
};

template <class Row>
TypeAndDefault type_and_default(const Row& row) {
  using Value = typename Row::Value;
  const AttentionOptions defaults;
  if constexpr (Row::kIsName) {
    return {"str", "''"};
  } else if constexpr (std::is_enum_v<Value>) {
    return {"str", fmt::format("'{}'", word_of(row.of(defaults)))};
  } else {
    const std::string type = std::is_integral_v<Value> ? "int" : "float";
    if (!row.text.default_text.empty()) return {type + " | None", "None"};
    if constexpr (Row::kMayBeEmpty) {
      return {type, ""};
    } else {
      return {type, fmt::format(std::is_integral_v<Value> ? "{}" : "{:.1f}", row.of(defaults))};
    }
  }
}

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

template <class Row>
std::string help_of(const Row& row) {
  std::string help(row.text.help);
  if constexpr (std::is_enum_v<typename Row::Value>) help = list_words<typename Row::Value>() + "; " + help;
  if (!row.text.default_text.empty()) help += fmt::format("; {} where it is None", row.text.default_text);
  return help;
}

constexpr const char* kLayout = "layout";

}  // namespace

Layout take_layout(const Keywords& keywords) {
  const std::string word = keywords.take(kLayout, "a word", std::string(word_of(Layout::bhtd)));
  return parse_word<Layout>(fmt::format("{}: {}", keywords.function(), kLayout), word);
}

Inputs take_inputs(const Keywords& keywords, std::size_t required) {
  Inputs inputs;
  inputs.layout = take_layout(keywords);
  inputs.q = keywords.take(kAttentionInputs.front().name);
  const bool paged = !keywords.take("block_table").is_none();
  for (std::size_t i = 0; i < kAttentionInputs.size(); ++i) {
    const AttentionInput& row = kAttentionInputs[i];
    const nb::object given = keywords.take(row.name);
    require(i >= required || !given.is_none(), "{}: {} is required but None", keywords.function(), row.name);
    const ArrayKind kind = paged && row.traits.in_pages ? ArrayKind::pages : array_kind(row.kind);
    inputs.arrays[i] = input_of(keywords.function(), row.name, given, kind, inputs.layout);
    inputs.views.*row.member = inputs.arrays[i].view;
  }
  return inputs;
}

AttentionOptions take_options(const Keywords& keywords) {
  AttentionOptions options;
  for_each_row(kAttentionOptions, [&](const auto& row) { take_option(keywords, row, options); });
  return options;
}

ArgumentText layout_text() {
  return {kLayout, "str", fmt::format("'{}'", word_of(Layout::bhtd)),
          "the order of the dimensions of q, k, v, gate, y, attn, pages and their gradients: " + list_words<Layout>()};
}

std::vector<ArgumentText> input_texts(std::size_t required) {
  std::vector<ArgumentText> texts;
  for (const AttentionInput& row : kAttentionInputs) {
    const bool optional = texts.size() >= required;
    const std::string help = fmt::format("{}, {}: {}{}", row.shape, types_of(row.elements), row.help,
                                         row.traits.forward_only ? "; without gradients" : "");
    texts.push_back({row.name, optional ? "Array | None" : "Array", optional ? "None" : "", help});
  }
  texts.push_back(layout_text());
  return texts;
}

std::vector<ArgumentText> option_texts() {
  std::vector<ArgumentText> texts;
  for_each_row(kAttentionOptions, [&texts](const auto& row) {
    const auto [type, value] = type_and_default(row);
    texts.push_back({row.text.name, type, value, help_of(row)});
  });
  return texts;
}

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

ArgumentText text_of(const AttentionOutput& row) {
  return {row.name, {}, {}, fmt::format("{}, {}: {}", row.shape, output_types_of(row.elements), row.help)};
}

ArgumentText text_of(const AttentionGradient& row) {
  return {row.name, {}, {}, fmt::format("shape and dtype of {}", input_of_gradient(row).name)};
}

}  // namespace headgate::python
