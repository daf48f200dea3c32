// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "headgate/error.hpp"
#include "headgate/runtime.hpp"
#include "library/core/format.hpp"
#include "library/core/option_rows.hpp"
#include "library/core/rows.hpp"
#include "library/core/tensor_rows.hpp"
#include "python/headgate/arrays.hpp"
#include "python/headgate/keywords.hpp"
#include "python/headgate/results.hpp"

// Arguments and results of an operation by the rows of its tables: signatures and calls walk them.

namespace headgate::python {

/// How the package takes the arrays of a kind.
constexpr ArrayKind array_kind(TensorKind kind) {
  switch (kind) {
    case TensorKind::heads: return ArrayKind::heads;
    case TensorKind::rows: return ArrayKind::rows;
    case TensorKind::scores: return ArrayKind::scores;
    case TensorKind::vector: return ArrayKind::vector;
    case TensorKind::state: return ArrayKind::states;
    case TensorKind::channels: return ArrayKind::channels;
    case TensorKind::channel_state: return ArrayKind::channel_states;
    case TensorKind::head_numbers: return ArrayKind::head_numbers;
    case TensorKind::head_features: return ArrayKind::head_features;
    case TensorKind::table: break;
  }
  return ArrayKind::table;
}

/// Takes `layout`.
Layout take_layout(const Keywords& keywords);

/// What signatures say of `layout`, which orders the dimensions of `arrays`.
ArgumentText layout_text(std::string_view arrays);

// --- tensors --------------------------------------------------------------------------------------------------------

/// The struct of views that a table's rows describe.
template <const auto& kRows>
using ViewsOf = typename std::remove_cvref_t<decltype(kRows[0])>::Struct;

/// The inputs of a call and what they need to be kept for.
template <const auto& kRows>
struct OperationInputs {
  ViewsOf<kRows> views;
  PerTensor<Input, kRows> arrays;
  nb::object first;  ///< outputs are made by the program that it comes from
  Layout layout = Layout::bhtd;

  /// Whether the first input has a dimension for the batch: outputs then have one.
  bool has_batch() const {
    return arrays[std::size_t{0}].array.ndim() == rank_with_batch(array_kind(kRows.front().kind));
  }
};

/// Takes `layout`, where the operation has one, and all inputs, an array of kind_of(row) for each row. An absent one is
/// None, which the first `required` must not be.
template <const auto& kRows, class KindOf>
OperationInputs<kRows> take_inputs_of(const Keywords& keywords, std::size_t required, const KindOf& kind_of) {
  OperationInputs<kRows> inputs;
  if constexpr (has_layout(kRows)) inputs.layout = take_layout(keywords);
  inputs.first = keywords.take(kRows.front().name);
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    const auto& row = kRows[i];
    const nb::object given = keywords.take(row.name);
    require(i >= required || !given.is_none(), "{}: {} is required but None", keywords.function(), row.name);
    inputs.arrays[i] = input_of(keywords.function(), row.name, given, kind_of(row), inputs.layout);
    inputs.views.*row.member = inputs.arrays[i].view;
  }
  return inputs;
}

/// Takes the tensors of a table as views in `views`.
template <const auto& kRows>
PerTensor<Input, kRows> take_tensors(const Keywords& keywords, Layout layout, ViewsOf<kRows>& views) {
  PerTensor<Input, kRows> arrays;
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    const auto& row = kRows[i];
    arrays[i] = input_of(keywords.function(), row.name, keywords.take(row.name), array_kind(row.kind), layout);
    views.*row.member = arrays[i].view;
  }
  return arrays;
}

/// What signatures say of the inputs, of which the first `required` must be given.
template <const auto& kRows>
std::vector<ArgumentText> input_texts_of(std::size_t required) {
  std::vector<ArgumentText> texts;
  for (const auto& row : kRows) {
    const bool optional = texts.size() >= required;
    const std::string help = formatted("{}, {}: {}{}", row.shape, types_of(row.elements), row.help,
                                       row.traits.forward_only ? "; without gradients" : "");
    texts.push_back({row.name, optional ? "Array | None" : "Array", optional ? "None" : "", help});
  }
  return texts;
}

/// What a signature says of a tensor that backward reads beside the inputs.
template <class Row>
ArgumentText text_of_read(const Row& row) {
  const std::string help = formatted("{}, {}: {}", row.shape, types_of(row.elements), row.help);
  return {row.name, "Array | None", "None", help};
}

/// The same of one that must be given.
template <class Row>
ArgumentText text_of_required(const Row& row) {
  ArgumentText text = text_of_read(row);
  text.type = "Array";
  text.default_text = "";
  return text;
}

// --- results --------------------------------------------------------------------------------------------------------

template <const auto& kRows>
using ResultsOf = Results<ViewsOf<kRows>, kRows.size()>;

/// What keeps the arrays of a result while a call writes to them.
template <const auto& kRows>
using HeldResults = std::array<Output, kRows.size()>;

/// Sets the views of the chosen rows' arrays in `views`. make(row) makes those that `results` lacks.
template <const auto& kRows, class Make>
HeldResults<kRows> place_results(const Keywords& keywords, Layout layout, const std::vector<bool>& chosen,
                                 ResultsOf<kRows>& results, ViewsOf<kRows>& views, const Make& make) {
  HeldResults<kRows> held;
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (!chosen[i]) continue;
    const auto& row = kRows[i];
    held[i] =
        place_output(keywords, row.name, results.arrays[i], array_kind(row.kind), layout, [&] { return make(row); });
    views.*row.member = held[i].view;
  }
  return held;
}

/// Makes the array of an output, a view of `shape`: like the first input where it has its shape and dtype.
template <class Row, const auto& kInputs>
nb::object make_output(const Maker& maker, const Row& row, const OperationInputs<kInputs>& in, const Shape& shape,
                       DType dtype) {
  const Input& first = in.arrays[std::size_t{0}];
  const bool alike = row.kind == kInputs.front().kind && first.view.shape == shape && first.view.dtype == dtype;
  if (alike) return maker.empty_like(first);
  return maker.empty(sizes_of(shape, array_kind(row.kind), in.layout, in.has_batch()), dtype);
}

/// Makes the arrays of gradients, each of the shape and dtype of its input.
template <const auto& kGradients, const auto& kInputs>
HeldResults<kGradients> place_gradients(const Keywords& keywords, const OperationInputs<kInputs>& in,
                                        const std::vector<bool>& chosen, ResultsOf<kGradients>& results,
                                        ViewsOf<kGradients>& views) {
  const Maker maker(in.first);
  return place_results<kGradients>(keywords, in.layout, chosen, results, views, [&](const auto& row) {
    const Input& of = in.arrays[row.gradient_of];
    require(of.view.present(), "{}: {} is asked for but {} is None", keywords.function(), row.name,
            input_of_gradient(row).name);
    return maker.empty_like(of);
  });
}

/// Which of a table's results a call makes: those that the argument `name` lists, with those of `out`; where neither is
/// there, the `defaults`.
template <const auto& kRows>
std::vector<bool> chosen_rows(const Keywords& keywords, const char* name, const ResultsOf<kRows>* out,
                              const std::vector<bool>& defaults) {
  return chosen_of<ViewsOf<kRows>>(
      keywords, name, kRows, [](const auto& row) { return row.name; }, out, defaults);
}

/// What a result says of an output.
template <class Row>
ArgumentText text_of_output(const Row& row) {
  return {row.name, {}, {}, formatted("{}, {}: {}", row.shape, output_types_of(row.elements), row.help)};
}

/// What a result says of a gradient.
template <class Row>
ArgumentText text_of_gradient(const Row& row) {
  return {row.name, {}, {}, formatted("shape and dtype of {}", input_of_gradient(row).name)};
}

// --- options --------------------------------------------------------------------------------------------------------

/// Returns find(). Its errors then begin with the names of the call and the argument.
template <class Find>
auto found(const Keywords& keywords, const char* name, const Find& find) {
  try {
    return find();
  } catch (const Error& error) {
    throw Error(formatted("{}: {}: {}", keywords.function(), name, error.what()));
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

/// Sets an option from its argument, if that is given and not None.
template <class Row, class Options>
void take_option(const Keywords& keywords, const Row& row, Options& options) {
  using Value = typename Row::Value;
  const char* const name = row.text.name;
  if (keywords.take(name).is_none()) return;
  auto& member = row.of(options);
  if constexpr (Row::kIsName) {
    const auto word = keywords.take(name, "a word", std::string());
    if (!word.empty()) member = found(keywords, name, [&word] { return find_name<Value>(word); });
  } else if constexpr (std::is_same_v<Value, int>) {
    member = take_threads(keywords);
  } else if constexpr (std::is_enum_v<Value>) {
    const std::string word = keywords.take(name, "a word", std::string(word_of(member)));
    member = parse_option(formatted("{}: {}", keywords.function(), name), word, row);
  } else if constexpr (Row::kMayBeEmpty) {
    member = keywords.require<Value>(name);
  } else {
    member = keywords.take(name, member);
  }
}

/// Takes every option of a table.
template <const auto& kRows, class Options>
Options take_options_of(const Keywords& keywords) {
  Options options;
  for_each_row(kRows, [&](const auto& row) { take_option(keywords, row, options); });
  return options;
}

/// A number as Python writes a float.
std::string float_text(double value);

/// How signatures name the type of an option, and its default as Python writes it.
struct TypeAndDefault {
  std::string type, value;
};

template <class Row, class Options>
TypeAndDefault type_and_default(const Row& row, const Options& defaults) {
  using Value = typename Row::Value;
  if constexpr (Row::kIsName) {
    return {"str", "''"};
  } else if constexpr (std::is_enum_v<Value>) {
    return {literal_of(words_of(row)), formatted("'{}'", word_of(row.of(defaults)))};
  } else {
    const std::string type = std::is_integral_v<Value> ? "int" : "float";
    if (!row.text.default_text.empty()) return {type + " | None", "None"};
    if constexpr (Row::kMayBeEmpty) {
      return {type, ""};
    } else if constexpr (std::is_integral_v<Value>) {
      return {type, formatted("{}", row.of(defaults))};
    } else {
      return {type, float_text(row.of(defaults))};
    }
  }
}

template <class Row>
std::string help_of(const Row& row) {
  std::string help(row.text.help);
  if constexpr (std::is_enum_v<typename Row::Value>) help = words_of(row) + "; " + help;
  if (!row.text.default_text.empty()) help += formatted("; {} where it is None", row.text.default_text);
  return help;
}

/// What signatures say of every option of a table.
template <const auto& kRows, class Options>
std::vector<ArgumentText> option_texts_of() {
  const Options defaults;
  std::vector<ArgumentText> texts;
  for_each_row(kRows, [&](const auto& row) {
    const auto [type, value] = type_and_default(row, defaults);
    texts.push_back({row.text.name, type, value, help_of(row)});
  });
  return texts;
}

// --- PyTorch --------------------------------------------------------------------------------------------------------

/// The type and the default of an option in a schema of PyTorch. There 0 threads stand for None.
template <class Row, class Options>
nb::tuple schema_type_and_default(const Row& row, const Options& defaults) {
  using Value = typename Row::Value;
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

/// The rows as headgate.torch reads them: tuples of an input's name, whether it is required and whether it is for
/// forward passes alone; the names of the inputs that have gradients; of an option's name, its type and default in a
/// schema of PyTorch, the part of the operation that it changes, whether it is for forward passes alone, and its type
/// in signatures; and the type of the layout, or None where the operation takes none.
template <const auto& kInputs, const auto& kGradients, const auto& kOptions, class Options>
nb::dict torch_rows() {
  nb::list inputs, gradients, options;
  for (const auto& row : kInputs) {
    inputs.append(nb::make_tuple(row.name, row.traits.required, row.traits.forward_only));
  }
  for (const auto& row : kGradients) gradients.append(input_of_gradient(row).name);
  const Options defaults;
  for_each_row(kOptions, [&](const auto& row) {
    const nb::tuple schema = schema_type_and_default(row, defaults);
    options.append(nb::make_tuple(row.text.name, schema[0], schema[1], std::string(word_of(row.part)), row.forward_only,
                                  type_and_default(row, defaults).type));
  });
  nb::dict rows;
  rows["inputs"] = inputs;
  rows["gradients"] = gradients;
  rows["options"] = options;
  rows["layout"] = has_layout(kInputs) ? nb::cast(layout_text("").type) : nb::none();
  return rows;
}

}  // namespace headgate::python
