// SPDX-License-Identifier: Apache-2.0
#include "headgate/merge.hpp"

#include <nanobind/stl/string.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "python/headgate/attention_rows.hpp"
#include "python/headgate/bindings.hpp"
#include "python/headgate/results.hpp"

// Binds headgate/merge.hpp, which merges attention results over disjoint ranges of keys.

namespace headgate::python {
namespace {

using MergeResults = Results<AttentionOutputs, kAttentionOutputs.size()>;

/// Holds the argument `parts` of a call, which is a list of pairs (attn, lse).
struct PartialResults {
  std::vector<Input> attn, lse;
  std::vector<MergePart> views;
  nb::object first;  ///< attn of the first part; decides whether new outputs are NumPy or PyTorch arrays

  bool has_batch() const { return attn.front().array.ndim() == 4; }
};

PartialResults take_partial_results(const Keywords& keywords, Layout layout) {
  constexpr const char* kWanted = "a sequence of pairs (attn, lse)";
  PartialResults parts;
  const nb::object given = keywords.take("parts");
  if (!nb::steal(PyObject_GetIter(given.ptr())).is_valid()) {  // A 0-d array has __iter__, but iter() raises.
    PyErr_Clear();
    keywords.refuse("parts", given, kWanted);
  }
  for (const nb::handle item : given) {
    if (!nb::isinstance<nb::sequence>(item) || nb::len(item) != 2) {
      keywords.refuse("parts", item, kWanted);
    }
    const std::string n = std::to_string(parts.views.size());
    const nb::object attn = item[0], lse = item[1];
    require(!attn.is_none() && !lse.is_none(), "{}: parts[{}] has None but must be (attn, lse)", keywords.function(),
            n);
    if (parts.views.empty()) parts.first = attn;
    parts.attn.push_back(
        input_of(keywords.function(), ("attn of parts[" + n + "]").c_str(), attn, ArrayKind::heads, layout));
    parts.lse.push_back(
        input_of(keywords.function(), ("lse of parts[" + n + "]").c_str(), lse, ArrayKind::rows, layout));
    parts.views.push_back({parts.attn.back().view, parts.lse.back().view});
  }
  require(!parts.views.empty(), "{}: parts is empty", keywords.function());
  return parts;
}

MergeResults merge(const Keywords& keywords) {
  const Layout layout = take_layout(keywords);
  const PartialResults parts = take_partial_results(keywords, layout);
  const Input gate = input_of(keywords.function(), "gate", keywords.take("gate"), ArrayKind::heads, layout);
  const AttentionOptions options = take_options(keywords);
  const auto* out = take_out<MergeResults>(keywords, "AttentionOutputs");
  const std::vector<bool> chosen = chosen_of<AttentionOutputs>(keywords, "outputs", kAttentionOutputs,
                                                               [](const AttentionOutput& row) { return row.name; }, out,
                                                               {true, true, false, false, false});

  MergeResults results = out == nullptr ? MergeResults() : *out;
  AttentionOutputs outputs;
  std::array<Output, kAttentionOutputs.size()> held;
  const ArrayFactory factory(parts.first);
  const MergePart& part = parts.views.front();
  for (std::size_t i = 0; i < kAttentionOutputs.size(); ++i) {
    if (!chosen[i]) continue;
    const AttentionOutput& row = kAttentionOutputs[i];
    const ConstTensorView& like = row.kind == TensorKind::rows ? part.lse : part.attn;
    held[i] = place_output(keywords, row.name, results.arrays[i], array_kind(row.kind), layout, [&] {
      return factory.empty(sizes_of(like.shape, array_kind(row.kind), layout, parts.has_batch()), like.dtype);
    });
    outputs.*row.member = held[i].view;
  }
  const nb::gil_scoped_release released;
  attention_merge(outputs, parts.views, gate.view, options);
  return results;
}

nb::tuple merge_backward(const Keywords& keywords) {
  const char* const function = keywords.function();
  const Layout layout = take_layout(keywords);
  const PartialResults parts = take_partial_results(keywords, layout);
  const Input gate = input_of(function, "gate", keywords.take("gate"), ArrayKind::heads, layout);
  const Input dy = input_of(function, "dy", keywords.take("dy"), ArrayKind::heads, layout);
  const Input dlse = input_of(function, "dlse", keywords.take("dlse"), ArrayKind::rows, layout);
  const AttentionOptions options = take_options(keywords);

  const ArrayFactory factory(parts.first);
  std::vector<Output> held;
  const auto make = [&](const Input& like, const char* name, ArrayKind kind) {
    const nb::object array = factory.empty_like(like);
    held.push_back(new_output_of(function, name, array, kind, layout));
    return held.back();
  };
  nb::list pairs;
  std::vector<MergePartGradients> gradients;
  for (std::size_t i = 0; i < parts.views.size(); ++i) {
    const Output attn = make(parts.attn[i], "dattn", ArrayKind::heads);
    const Output lse = make(parts.lse[i], "dlse", ArrayKind::rows);
    gradients.push_back({attn.view, lse.view});
    pairs.append(nb::make_tuple(attn.object, lse.object));
  }
  const bool has_gate = gate.view.present() && options.gate_fn != GateFn::none;
  const Output dgate = has_gate ? make(gate, "dgate", ArrayKind::heads) : Output{nb::none(), {}, {}};
  {
    const nb::gil_scoped_release released;
    attention_merge_backward(gradients, dgate.view, parts.views, gate.view, {dy.view, dlse.view}, options);
  }
  return nb::make_tuple(pairs, dgate.object);
}

/// Slices `array` to begin:end along a dimension. Dimensions are counted from the last one, which is 0.
nb::object sliced(const nb::object& array, std::size_t dimension, std::int64_t begin, std::int64_t end) {
  nb::list index;
  index.append(nb::ellipsis());
  index.append(nb::slice(nb::int_(begin), nb::int_(end), nb::none()));
  for (std::size_t d = 0; d < dimension; ++d) index.append(nb::slice(nb::none(), nb::none(), nb::none()));
  return array[nb::tuple(index)];
}

nb::dict narrowed(const Keywords& keywords) {
  const auto begin = keywords.require<std::int64_t>("begin"), end = keywords.require<std::int64_t>("end");
  const Inputs in = take_inputs(keywords, 2);
  KeyRangeVectors vectors;
  const AttentionInputs part = narrow_keys(in.views, begin, end, vectors);
  nb::dict result;
  for (const auto& [key, value] : keywords.given_by_name()) result[key] = value;
  for (const char* bound : {"begin", "end"}) {
    if (result.contains(bound)) nb::del(result[bound]);
  }
  const std::size_t rows_dimension = in.layout == Layout::bhtd ? 1 : 2;
  for (const AttentionInput& row : kAttentionInputs) {
    const bool of_keys = (part.*row.member).shape != (in.views.*row.member).shape;
    if (!of_keys || row.kind == TensorKind::vector) continue;
    const std::size_t dimension = row.kind == TensorKind::scores ? 0 : rows_dimension;
    result[row.name] = sliced(keywords.take(row.name), dimension, begin, end);
  }
  const auto size = [](const std::vector<std::int64_t>& values) { return static_cast<std::int64_t>(values.size()); };
  result["query_offsets"] = array_of(vectors.query_offsets, {size(vectors.query_offsets)});
  if (part.key_lengths.present()) {
    result["key_lengths"] = array_of(vectors.key_lengths, {size(vectors.key_lengths)});
  }
  return result;
}

}  // namespace

void bind_merge(nb::module_& module) {
  const ArgumentText parts{
      "parts", "Sequence[tuple[Array, Array]]", "",
      "pairs (attn, lse) of attention over ranges of the keys, without a gate: (B,Hq,T,Dv), (B,Hq,T)"};
  const ArgumentText gate{"gate", "Array | None", "None", "raw gate logits z (B,Hq,T,1) or (B,Hq,T,Dv)"};
  define(module, "attention_merge", merge,
         joined(joined({parts, gate, layout_text()}, option_texts()),
                {{"outputs", "Sequence[str] | None", "None", "of y, lse and attn; None: y and lse"},
                 {"out", "AttentionOutputs | None", "None",
                  "arrays to write to; if outputs is None, no others are computed"}}),
         2, "AttentionOutputs",
         "The whole of attention over keys in parts, with the gate applied:\n"
         "lse = log sum_i exp(lse_i), attn = sum_i exp(lse_i - lse) attn_i, y = attn * g(z).\n\n"
         "Of the options gate_fn, gate_op, threads, target and backend count. A part whose lse is -inf in a row counts "
         "for\n"
         "nothing there. Raises ValueError as attention does.");
  define(module, "attention_merge_backward", merge_backward,
         joined(joined({{"dy", "Array", "", "gradient of y"}, parts, gate, layout_text()}, option_texts()),
                {{"dlse", "Array | None", "None", "gradient of lse (B,Hq,T); None: zero"}}),
         3, "tuple[list[tuple[Array, Array]], Array | None]",
         "Gradients of sum(dy * y) + sum(dlse * lse) of attention_merge.\n\n"
         "Returns the pairs (dattn_i, dlse_i) of the parts, and dgate or None.");
  std::vector<ArgumentText> arguments{{"begin", "int", "", "the first key"},
                                      {"end", "int", "", "the key behind the last"}};
  define(module, "narrow_keys", narrowed, joined(arguments, input_texts(2)), 2, "dict[str, Any]",
         "The inputs of attention over keys begin ... end alone, as keyword arguments for attention_forward: k, v,\n"
         "their scales, k_first, v_first and the columns of bias, key_bias and mask are slices, query_offsets and\n"
         "key_lengths are counted from `begin`. gate and sinks stay as they are; leave them out where they must\n"
         "not count again. With dropout, give each range its own dropout_seed: equal seeds drop the same pattern\n"
         "in all ranges. Not for packed batches.");
}

}  // namespace headgate::python
