// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "python/headgate/operation_rows.hpp"
#include "python/headgate/signals.hpp"

// Binds an operation that returns y and a state, as the Python functions NAME, NAME_forward and NAME_backward. A struct
// describes the operation. Its members are:
//
//   kInputs, kOutputs, kIncoming, kGradients, kOptions: tables of the tensors and options.
//   Options, Inputs: types of the C++ structs.
//   kName, kOutputsClass, kGradientsClass: names in Python.
//   kPositional: number of inputs that may be positional arguments.
//   kLayoutArrays: text that names the arrays whose dimensions the option `layout` orders.
//   shape_of(row, inputs), dtype_of(row, inputs): shape and dtype of a new array for the output `row`.
//   forward(outputs, inputs, options): the forward pass.
//   backward(gradients, inputs, incoming, options): the backward pass.

namespace headgate::python {

/// Holds the docstrings of the classes and functions of an operation.
struct PassesText {
  const char* outputs;
  const char* gradients;
  const char* result;
  const char* forward;
  const char* backward;
};

template <class Operation>
class Passes {
 public:
  using ForwardResults = ResultsOf<Operation::kOutputs>;
  using BackwardResults = ResultsOf<Operation::kGradients>;

  static nb::object result(const Keywords& keywords) {
    const Inputs in = take_inputs(keywords, ReadForY{});
    const Options options = take_options(keywords);
    ForwardResults results;
    results.arrays[kY] = keywords.take("out");
    std::vector<bool> chosen(Operation::kOutputs.size(), false);
    chosen[kY] = true;
    return run_forward(keywords, in, options, chosen, std::move(results)).arrays[kY];
  }

  static ForwardResults forward(const Keywords& keywords) {
    const Inputs in = take_inputs(keywords);
    const Options options = take_options(keywords);
    const auto* out = take_out<ForwardResults>(keywords, Operation::kOutputsClass);
    std::vector<bool> defaults;
    defaults.reserve(Operation::kOutputs.size());
    for (const auto& row : Operation::kOutputs) {
      defaults.push_back(row.traits.needs == nullptr || (in.views.*row.traits.needs).present());
    }
    std::vector<bool> chosen = chosen_rows<Operation::kOutputs>(keywords, "outputs", out, defaults);
    chosen[kY] = true;
    return run_forward(keywords, in, options, chosen, out == nullptr ? ForwardResults() : *out);
  }

  static BackwardResults backward(const Keywords& keywords) {
    const Inputs in = take_inputs(keywords);
    Options options = take_options(keywords);
    ViewsOf<Operation::kIncoming> incoming;
    const auto incoming_arrays = take_tensors<Operation::kIncoming>(keywords, in.layout, incoming);
    const auto* out = take_out<BackwardResults>(keywords, Operation::kGradientsClass);
    std::vector<bool> defaults;
    defaults.reserve(Operation::kGradients.size());
    for (const auto& row : Operation::kGradients) defaults.push_back((in.views.*row.gradient_of).present());
    const std::vector<bool> chosen = chosen_rows<Operation::kGradients>(keywords, "gradients", out, defaults);
    BackwardResults results = out == nullptr ? BackwardResults() : *out;
    ViewsOf<Operation::kGradients> gradients;
    const auto held = place_gradients<Operation::kGradients>(keywords, in, chosen, results, gradients);
    interruptible(keywords, options.context, [&] { Operation::backward(gradients, in.views, incoming, options); });
    return results;
  }

  static std::vector<ArgumentText> input_texts() { return input_texts(EveryInput{}); }
  /// Returns the signature and help texts of the inputs of the short form, such as headgate.linear_attention. It
  /// computes only y, so inputs that only another output needs are left out.
  static std::vector<ArgumentText> result_texts() { return input_texts(ReadForY{}); }

  /// Returns the signature and help texts of the backward pass's arguments other than the inputs, dy and the options.
  static std::vector<ArgumentText> incoming_texts() {
    std::vector<ArgumentText> texts;
    for (const auto& row : Operation::kIncoming) {
      if (!row.traits.required) texts.push_back(text_of_read(row));
    }
    return texts;
  }

 private:
  using Inputs = OperationInputs<Operation::kInputs>;
  using Options = typename Operation::Options;
  static constexpr std::size_t kY = 0;
  static constexpr auto kRequired = static_cast<std::size_t>(std::count_if(
      Operation::kInputs.begin(), Operation::kInputs.end(), [](const auto& row) { return row.traits.required; }));

  /// Predicate that returns true for inputs that the computation of y reads. Returns false for inputs that only another
  /// output needs, such as snapshot_lengths.
  struct ReadForY {
    template <class Row>
    bool operator()(const Row& row) const {
      return std::none_of(Operation::kOutputs.begin(), Operation::kOutputs.end(),
                          [&row](const auto& output) { return output.traits.needs == row.member; });
    }
  };

  template <class Selected>
  static std::vector<ArgumentText> input_texts(const Selected& selected) {
    std::vector<ArgumentText> texts = input_texts_of<Operation::kInputs>(kRequired, selected);
    if constexpr (has_layout(Operation::kInputs)) texts.push_back(layout_text(Operation::kLayoutArrays));
    return joined(texts, option_texts_of<Operation::kOptions, Options>());
  }

  template <class Selected = EveryInput>
  static Inputs take_inputs(const Keywords& keywords, const Selected& selected = {}) {
    return take_inputs_of<Operation::kInputs>(
        keywords, kRequired, [](const auto& row) { return array_kind(row.kind); }, selected);
  }

  static Options take_options(const Keywords& keywords) {
    return take_options_of<Operation::kOptions, Options>(keywords);
  }

  static ForwardResults run_forward(const Keywords& keywords, const Inputs& in, Options options,
                                    const std::vector<bool>& chosen, ForwardResults results) {
    const ArrayFactory factory(in.first);
    ViewsOf<Operation::kOutputs> outputs;
    const auto held =
        place_results<Operation::kOutputs>(keywords, in.layout, chosen, results, outputs, [&](const auto& row) {
          return make_output(factory, row, in, Operation::shape_of(row, in.views), Operation::dtype_of(row, in.views));
        });
    interruptible(keywords, options.context, [&] { Operation::forward(outputs, in.views, options); });
    return results;
  }
};

/// Adds the classes and functions of an operation to a module.
template <class Operation>
void bind_passes(nb::module_& module, const PassesText& text) {
  using P = Passes<Operation>;
  bind_results<ViewsOf<Operation::kOutputs>>(
      module, Operation::kOutputsClass, Operation::kOutputs, [](const auto& row) { return text_of_output(row); },
      text.outputs);
  bind_results<ViewsOf<Operation::kGradients>>(
      module, Operation::kGradientsClass, Operation::kGradients, [](const auto& row) { return text_of_gradient(row); },
      text.gradients);

  const std::string name = Operation::kName, outputs = Operation::kOutputsClass, gradients = Operation::kGradientsClass;
  const std::vector<ArgumentText> in = P::input_texts();
  define(
      module, name.c_str(), P::result,
      joined(P::result_texts(), {{"out", "Array | None", "None", "where y is written; a new array where it is None"}}),
      Operation::kPositional, "Array", text.result);
  define(module, (name + "_forward").c_str(), P::forward,
         joined(in, {{"outputs", "Sequence[str] | None", "None",
                      "names of what is computed beside y, of " + outputs +
                          "; None: state, and snapshots where snapshot_lengths is given"},
                     {"out", outputs + " | None", "None",
                      "arrays to write to. Its state may be the array that is given as `state`, which is then updated "
                      "in place. y is made where it is lacking"}}),
         Operation::kPositional, outputs.c_str(), text.forward);
  define(module, (name + "_backward").c_str(), P::backward,
         joined(joined({text_of_required(Operation::kIncoming.front())}, in),
                joined(P::incoming_texts(),
                       {{"gradients", "Sequence[str] | None", "None",
                         "names of what is computed, of " + gradients + "; None: of every input that is there"},
                        {"out", gradients + " | None", "None",
                         "arrays to write to; those that `gradients` names and it lacks are made"}})),
         1 + Operation::kPositional, gradients.c_str(), text.backward);
}

}  // namespace headgate::python
