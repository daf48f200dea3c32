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
#include "python/headgate/array_views.hpp"
#include "python/headgate/arrays.hpp"
#include "python/headgate/keywords.hpp"
#include "python/headgate/results.hpp"

// Converts the arguments and results of an operation. Both signatures and calls follow the operation's tables, which
// have one row for each tensor or option.

namespace headgate::python {

/// Reads the argument `layout`; the default is bhtd.
Layout take_layout(const Keywords& keywords);

/// Returns the signature and help text of the argument `layout`. `arrays` names the arrays whose dimensions the layout
/// orders.
ArgumentText layout_text(std::string_view arrays);

// --- tensors --------------------------------------------------------------------------------------------------------

/// The struct of tensor views that a table describes. Each row of the table describes one member.
template <const auto& kRows>
using ViewsOf = typename std::remove_cvref_t<decltype(kRows[0])>::Struct;

/// Holds views of a call's inputs, and the Python arrays that own the memory of these views.
template <const auto& kRows>
struct OperationInputs {
  ViewsOf<kRows> views;
  PerTensor<Input, kRows> arrays;
  nb::object first;  ///< the first input; decides whether new outputs are NumPy or PyTorch arrays
  Layout layout = Layout::bhtd;

  /// Returns whether the first input has a batch dimension. Outputs have a batch dimension exactly in this case.
  bool has_batch() const {
    return arrays[std::size_t{0}].array.ndim() == rank_with_batch(array_kind(kRows.front().kind));
  }
};

/// Predicate that returns true for every input of a table.
struct EveryInput {
  template <class Row>
  bool operator()(const Row& /*row*/) const {
    return true;
  }
};

/// Reads the arguments of a call: `layout`, if the operation has it, and the inputs for which selected(row) is true.
/// kind_of(row) gives the kind of each array. Throws Error if one of the first `required` inputs is None.
template <const auto& kRows, class KindOf, class Selected = EveryInput>
OperationInputs<kRows> take_inputs_of(const Keywords& keywords, std::size_t required, const KindOf& kind_of,
                                      const Selected& selected = {}) {
  OperationInputs<kRows> inputs;
  if constexpr (has_layout(kRows)) inputs.layout = take_layout(keywords);
  inputs.first = keywords.take(kRows.front().name);
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    const auto& row = kRows[i];
    if (!selected(row)) continue;
    const nb::object given = keywords.take(row.name);
    require(i >= required || !given.is_none(), "{}: {} is required but None", keywords.function(), row.name);
    inputs.arrays[i] = input_of(keywords.function(), row.name, given, kind_of(row), inputs.layout);
    inputs.views.*row.member = inputs.arrays[i].view;
  }
  return inputs;
}

/// Reads the tensors of a table from the arguments. Returns the arrays, and stores their views in `views`.
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

/// Returns the signature and help texts of the inputs for which selected(row) is true. The first `required` inputs have
/// no default.
template <const auto& kRows, class Selected = EveryInput>
std::vector<ArgumentText> input_texts_of(std::size_t required, const Selected& selected = {}) {
  std::vector<ArgumentText> texts;
  for (const auto& row : kRows) {
    if (!selected(row)) continue;
    const bool optional = texts.size() >= required;
    const std::string help = formatted("{}, {}: {}{}", row.shape, types_of(row.elements), row.help,
                                       row.traits.forward_only ? "; without gradients" : "");
    texts.push_back({row.name, optional ? "Array | None" : "Array", optional ? "None" : "", help});
  }
  return texts;
}

/// Returns the signature and help text of an optional tensor that only the backward pass reads.
template <class Row>
ArgumentText text_of_read(const Row& row) {
  const std::string help = formatted("{}, {}: {}", row.shape, types_of(row.elements), row.help);
  return {row.name, "Array | None", "None", help};
}

/// Returns the signature and help text of a required tensor that only the backward pass reads.
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

/// Keeps the arrays of a result alive while a call writes to them.
template <const auto& kRows>
using HeldResults = std::array<Output, kRows.size()>;

/// Sets `views` to views of the result arrays to compute, whose flags in `chosen` are true. If `results` lacks one of
/// these arrays, make(row) creates the array.
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

/// Creates the array of an output whose view has shape `shape`. If the first input has the same kind, shape and dtype,
/// uses empty_like(), which is faster and keeps the order of the dimensions in memory.
template <class Row, const auto& kInputs>
nb::object make_output(const ArrayFactory& factory, const Row& row, const OperationInputs<kInputs>& in,
                       const Shape& shape, DType dtype) {
  const Input& first = in.arrays[std::size_t{0}];
  const bool alike = row.kind == kInputs.front().kind && first.view.shape == shape && first.view.dtype == dtype;
  if (alike) return factory.empty_like(first);
  return factory.empty(sizes_of(shape, array_kind(row.kind), in.layout, in.has_batch()), dtype);
}

/// Creates the missing arrays of gradients and sets `views`. Each gradient has the shape and dtype of its input.
template <const auto& kGradients, const auto& kInputs>
HeldResults<kGradients> place_gradients(const Keywords& keywords, const OperationInputs<kInputs>& in,
                                        const std::vector<bool>& chosen, ResultsOf<kGradients>& results,
                                        ViewsOf<kGradients>& views) {
  const ArrayFactory factory(in.first);
  return place_results<kGradients>(keywords, in.layout, chosen, results, views, [&](const auto& row) {
    const Input& of = in.arrays[row.gradient_of];
    require(of.view.present(), "{}: {} is asked for but {} is None", keywords.function(), row.name,
            input_of_gradient(row).name);
    return factory.empty_like(of);
  });
}

/// Returns a flag for each result: whether the call computes it. A call computes the results that the argument `name`
/// lists and those present in `out`. Without both arguments, returns `defaults`.
template <const auto& kRows>
std::vector<bool> chosen_rows(const Keywords& keywords, const char* name, const ResultsOf<kRows>* out,
                              const std::vector<bool>& defaults) {
  return chosen_of<ViewsOf<kRows>>(
      keywords, name, kRows, [](const auto& row) { return row.name; }, out, defaults);
}

/// Returns the name and help text of an output, for the docstring of the result class.
template <class Row>
ArgumentText text_of_output(const Row& row) {
  return {row.name, {}, {}, formatted("{}, {}: {}", row.shape, output_types_of(row.elements), row.help)};
}

/// Returns the name and help text of a gradient, for the docstring of the result class.
template <class Row>
ArgumentText text_of_gradient(const Row& row) {
  return {row.name, {}, {}, formatted("shape and dtype of {}", input_of_gradient(row).name)};
}

// --- options --------------------------------------------------------------------------------------------------------

/// Calls find() and returns its result. If find() throws an Error, prepends "FUNCTION: NAME: " to the message.
template <class Find>
auto found(const Keywords& keywords, const char* name, const Find& find) {
  try {
    return find();
  } catch (const Error& error) {
    throw Error(formatted("{}: {}: {}", keywords.function(), name, error.what()));
  }
}

/// Returns the target or the backend called `name`.
template <typename Value>
Value find_name(const std::string& name) {
  if constexpr (std::is_same_v<Value, const Backend*>) {
    return &find_backend(name);
  } else {
    return find_target(name);
  }
}

/// Sets an option from the argument of the same name. Leaves the option unchanged if the argument is absent or None.
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

/// Reads every option of a table from the arguments.
template <const auto& kRows, class Options>
Options take_options_of(const Keywords& keywords) {
  Options options;
  for_each_row(kRows, [&](const auto& row) { take_option(keywords, row, options); });
  return options;
}

/// Formats a number as a Python float, such as 1.0.
std::string float_text(double value);

/// Holds an option's type annotation and default as Python source text.
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

/// Returns the signature and help texts of all options in a table.
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

/// Returns the type and default of an option as in a PyTorch operator schema. There, 0 means threads=None.
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

/// Returns an operation's tables as a dict for headgate.torch:
///
///   - "inputs": tuples (name, required, forward only).
///   - "gradients": names of the inputs that have gradients.
///   - "options": tuples (name, schema type, schema default, part, forward only, type annotation).
///   - "layout": the type annotation of the argument `layout`, or None if the operation has no such argument.
///
/// The schema is that of the PyTorch operator. The part is the part of the operation that the option changes, such as
/// "scores" or "gate". Forward only means that the backward pass does not support the argument.
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
