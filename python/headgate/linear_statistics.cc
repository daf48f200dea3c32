// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "headgate/linear_attention_statistics.hpp"
#include "library/core/format.hpp"
#include "library/core/linear_attention_rows.hpp"
#include "library/core/linear_statistics_rows.hpp"
#include "python/headgate/bindings.hpp"
#include "python/headgate/operation_rows.hpp"
#include "python/headgate/signals.hpp"

// Bindings of headgate/linear_attention_statistics.hpp: linear_attention_weights and linear_attention_statistics. The
// table in library/core/linear_statistics_rows.hpp lists their outputs.

namespace headgate::python {
namespace {

using LinearInputs = OperationInputs<kLinearInputs>;

/// The first kPositional inputs may be positional: q, k, v, decay and beta. The first kRequired inputs are required: q,
/// k and v.
constexpr std::size_t kPositional = 5, kRequired = 3;

template <const auto& kRows>
using FigureResults = Results<typename std::remove_cvref_t<decltype(kRows[0])>::Struct, kRows.size()>;

LinearInputs take_inputs(const Keywords& keywords) {
  return take_inputs_of<kLinearInputs>(keywords, kRequired,
                                       [](const LinearInput& row) { return array_kind(row.kind); });
}

LinearOutputSizes sizes_of_call(const LinearAttentionInputs& in, std::int64_t R) {
  const auto& [B, Hq, T, D] = in.q.shape;
  const std::int64_t Hv = in.v.shape[1];
  const std::int64_t N = in.cu_seqlens.present() ? std::max<std::int64_t>(in.cu_seqlens.shape[3] - 1, 0) : B;
  return {B, N, Hv, std::max(Hq, Hv), T, D, R};
}

/// Returns a view of the output array `object`, with four-dimensional shape `shape`. If `object` is None, first sets it
/// to a new array. If `has_batch` is false, the array has no batch dimension.
template <class Row>
TensorView view_of_figure(const Keywords& keywords, const Row& row, nb::object& object, Output& held,
                          const Shape& shape, bool has_batch, const ArrayFactory& factory, DType real) {
  const std::size_t first = has_batch ? 0 : 1, end = shape.size() - dims_left_out(row.dims);
  const std::vector<std::int64_t> sizes(shape.begin() + static_cast<std::ptrdiff_t>(first),
                                        shape.begin() + static_cast<std::ptrdiff_t>(end));
  held = place_output(keywords, row.name, object, ArrayKind::any, Layout::bhtd,
                      [&] { return factory.empty(sizes, real); });
  const auto& array = held.array;
  const std::vector<std::int64_t> found(array.shape_ptr(), array.shape_ptr() + array.ndim());
  require(found == sizes, "{}: {} has shape {} but must be {}", keywords.function(), row.name, sizes_text(found),
          sizes_text(sizes));
  TensorView view(held.view.data, held.view.dtype, shape, {0, 0, 0, 0});
  for (std::size_t d = first; d < end; ++d) view.strides[d] = array.stride_ptr()[d - first];
  return view;
}

/// Creates the outputs that the arguments select, and calls run(outputs), which computes them.
template <const auto& kRows, class Run>
FigureResults<kRows> figures_of(const Keywords& keywords, const LinearInputs& in, std::int64_t R,
                                const char* class_name, const Run& run) {
  using Struct = typename std::remove_cvref_t<decltype(kRows[0])>::Struct;
  const auto* out = take_out<FigureResults<kRows>>(keywords, class_name);
  const std::vector<bool> chosen = chosen_of<Struct>(
      keywords, "outputs", kRows, [](const auto& row) { return row.name; }, out, std::vector<bool>(kRows.size(), true));
  FigureResults<kRows> results = out == nullptr ? FigureResults<kRows>() : *out;
  const LinearOutputSizes sizes = sizes_of_call(in.views, R);
  const ArrayFactory factory(in.first);
  const DType real = in.views.q.dtype == DType::f64 ? DType::f64 : DType::f32;
  std::array<Output, kRows.size()> held;
  Struct outputs;
  for (std::size_t n = 0; n < kRows.size(); ++n) {
    const auto& row = kRows[n];
    if (!chosen[n]) continue;
    const bool has_batch = in.has_batch() || (in.views.cu_seqlens.present() && counts_sequences(row.dims));
    outputs.*row.member =
        view_of_figure(keywords, row, results.arrays[n], held[n], sizes.shape(row.dims), has_batch, factory, real);
  }
  run(outputs);
  return results;
}

FigureResults<kLinearWeights> weights(const Keywords& keywords) {
  const LinearInputs in = take_inputs(keywords);
  LinearAttentionOptions options = take_options_of<kLinearOptions, LinearAttentionOptions>(keywords);
  const nb::object given = keywords.take("queries");
  require(!given.is_none(), "{}: queries is required but None", keywords.function());
  const Input queries = input_of(keywords.function(), "queries", given, ArrayKind::vector, in.layout);
  return figures_of<kLinearWeights>(
      keywords, in, queries.view.shape[3], "LinearAttentionWeights", [&](const LinearAttentionWeights& outputs) {
        interruptible(keywords, options.context,
                      [&] { linear_attention_weights(outputs, in.views, queries.view, options); });
      });
}

FigureResults<kLinearStatistics> statistics(const Keywords& keywords) {
  const LinearInputs in = take_inputs(keywords);
  LinearAttentionOptions options = take_options_of<kLinearOptions, LinearAttentionOptions>(keywords);
  return figures_of<kLinearStatistics>(
      keywords, in, 0, "LinearAttentionStatistics", [&](const LinearAttentionStatistics& outputs) {
        interruptible(keywords, options.context, [&] { linear_attention_statistics(outputs, in.views, options); });
      });
}

template <class Row>
ArgumentText text_of_figure(const Row& row) {
  return {row.name, {}, {}, formatted("{}: {}", array_letters(row.dims), row.help)};
}

/// Returns the outputs of a table as a list for headgate.torch. Each entry is a tuple (name, dimensions as letters,
/// false, ""), with the same fields as the outputs of attention_statistics. false: the output holds no indices. "":
/// calls compute the output by default.
template <class Rows>
nb::list figure_rows(const Rows& rows) {
  nb::list out;
  for (const auto& row : rows) {
    const std::string letters(array_letters(row.dims));
    out.append(nb::make_tuple(row.name, letters.substr(1, letters.size() - 2), false, ""));
  }
  return out;
}

}  // namespace

void bind_linear_statistics(nb::module_& module) {
  module.attr("_linear_weights_rows") = figure_rows(kLinearWeights);
  module.attr("_linear_statistics_rows") = figure_rows(kLinearStatistics);
  bind_results<LinearAttentionWeights>(
      module, "LinearAttentionWeights", kLinearWeights, [](const auto& row) { return text_of_figure(row); },
      "What chosen queries of linear attention attend to: y = weights v + S_0^T state_query.");
  bind_results<LinearAttentionStatistics>(
      module, "LinearAttentionStatistics", kLinearStatistics, [](const auto& row) { return text_of_figure(row); },
      "Figures of the weights and the states of linear attention. N is B, or the sequences of a packed batch.");

  const std::vector<ArgumentText> in =
      joined(joined(input_texts_of<kLinearInputs>(kRequired), {layout_text("q, k, v, decay, beta")}),
             option_texts_of<kLinearOptions, LinearAttentionOptions>());
  const auto outputs = [&in](const char* class_name) {
    const std::string name = class_name;
    return joined(
        in, {{"outputs", "Sequence[str] | None", "None", "names of what is computed, of " + name + "; None: all"},
             {"out", name + " | None", "None", "arrays to write to; if outputs is None, no others are computed"}});
  };
  define(
      module, "linear_attention_weights", weights,
      joined({{"queries", "Array", "", "(R), int32 or int64: the chosen queries, rows of q in a packed batch"}},
             outputs("LinearAttentionWeights")),
      1 + kPositional, "LinearAttentionWeights",
      "The weights that linear_attention hides: exact, signed, T*D operations for each chosen query.\n\n"
      "y_t is the sum over j <= t of weights[..., t, j] v_j, plus S_0^T state_query. Nothing is read of the elements\n"
      "of v and state. Raises ValueError as linear_attention does.");
  define(
      module, "linear_attention_statistics", statistics, outputs("LinearAttentionStatistics"), kPositional,
      "LinearAttentionStatistics",
      "Figures of the weights that linear_attention hides, and of its states, in O(T) memory.\n\n"
      "first, weight_sum and those of decay and beta cost T*D operations for each head; first_share, reach and\n"
      "absolute_sum T^2*D; effective_rank and state_norm a forward pass. Raises ValueError as linear_attention does.");
}

}  // namespace headgate::python
