// SPDX-License-Identifier: Apache-2.0
#include "headgate/statistics.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "library/core/statistics_outputs.hpp"
#include "python/headgate/attention_rows.hpp"
#include "python/headgate/bindings.hpp"
#include "python/headgate/results.hpp"
#include "python/headgate/signals.hpp"

// Binding of headgate/statistics.hpp: attention_statistics. The table in library/core/statistics_outputs.hpp lists its
// outputs.

namespace headgate::python {
namespace {

using StatisticsResults = Results<AttentionStatistics, kStatisticsOutputs.size()>;

/// Arguments of attention_statistics that select outputs, in addition to the list of output names.
struct Selection {
  Input keys, queries;
  std::int64_t window = -1;  ///< window of window_share; if negative, window_share is no default output
  std::int64_t top_keys = 0;
};

/// Returns the name of the argument that adds `output` to the default outputs. For example, "queries" adds the outputs
/// of chosen queries. Returns "" if `output` is always a default output, and null if it never is.
const char* enabling_argument(const StatisticsOutput& output) {
  using S = AttentionStatistics;
  if (output.fourth == StatisticsDim::top_keys) return "top_keys";
  if (output.third == StatisticsDim::chosen_rows) return "queries";
  if (output.member == &S::key_weights) return "keys";
  if (output.member == &S::window_share) return "window";
  if (output.member == &S::first_gated) return "gate";
  const bool always = output.member == &S::row_max || output.member == &S::entropy || output.member == &S::first ||
                      output.member == &S::key_mass;
  return always ? "" : nullptr;
}

/// Returns whether `output` is a default output: one that a call computes without a list of output names.
bool is_default_output(const StatisticsOutput& output, const Selection& selection, bool gated) {
  const char* const argument = enabling_argument(output);
  if (argument == nullptr) return false;
  const std::string_view name = argument;
  if (name == "top_keys") return selection.top_keys > 0;
  if (name == "queries") return selection.queries.view.present();
  if (name == "keys") return selection.keys.view.present();
  if (name == "window") return selection.window >= 0;
  return name.empty() || gated;
}

/// Returns the outputs as a list for headgate.torch. Each entry is a tuple (name, dimensions of the array as letters,
/// whether the array holds indices, result of enabling_argument()). The letter M stands for the first dimension of
/// key_mass.
nb::list statistics_rows() {
  nb::list rows;
  for (const StatisticsOutput& output : kStatisticsOutputs) {
    const std::string letters = letters_of(output, "N", "M");
    rows.append(nb::make_tuple(output.name, letters.substr(1, letters.size() - 2), output.is_index(),
                               enabling_argument(output)));
  }
  return rows;
}

/// Returns a flag for each dimension of the four-dimensional view of `output`: whether the Python array has this
/// dimension. The array omits dimensions that are always 1. If `has_batch` is false, it also omits the batch dimension.
std::array<bool, 4> dimensions_of(const StatisticsOutput& output, bool has_batch) {
  return {has_batch, true, output.third != StatisticsDim::one, output.fourth != StatisticsDim::one};
}

/// Returns a view of the output array `object`, with four-dimensional shape `shape`. The array has dimension d of the
/// view only if has[d] is true. If `object` is None, first sets `object` to a new array.
TensorView view_of(const Keywords& keywords, const StatisticsOutput& output, nb::object& object, Output& held,
                   const Shape& shape, const std::array<bool, 4>& has, const ArrayFactory& factory, DType real) {
  std::vector<std::int64_t> sizes;
  for (std::size_t d = 0; d < 4; ++d) {
    if (has[d]) sizes.push_back(shape[d]);
  }
  held = place_output(keywords, output.name, object, ArrayKind::any, Layout::bhtd,
                      [&] { return factory.empty(sizes, output.is_index() ? DType::i64 : real); });
  const auto& array = held.array;
  const std::vector<std::int64_t> found(array.shape_ptr(), array.shape_ptr() + array.ndim());
  require(found == sizes, "{}: {} has shape {} but must be {}", keywords.function(), output.name, sizes_text(found),
          sizes_text(sizes));
  TensorView view(held.view.data, held.view.dtype, shape, {0, 0, 0, 0});
  std::size_t next = 0;
  for (std::size_t d = 0; d < 4; ++d) {
    if (has[d]) view.strides[d] = array.stride_ptr()[next++];
  }
  return view;
}

StatisticsResults statistics(const Keywords& keywords) {
  const char* const function = keywords.function();
  const Inputs in = take_inputs(keywords, 2);
  AttentionOptions options = take_options(keywords);
  const Input lse = input_of(function, "lse", keywords.take("lse"), ArrayKind::rows, in.layout);
  Selection selection;
  selection.keys = input_of(function, "keys", keywords.take("keys"), ArrayKind::vector, in.layout);
  selection.queries = input_of(function, "queries", keywords.take("queries"), ArrayKind::vector, in.layout);
  selection.window = keywords.take("window", selection.window);
  selection.top_keys = keywords.take("top_keys", selection.top_keys);
  require(selection.top_keys >= 0 && selection.top_keys <= kMaxTopKeys, "{}: top_keys is {} but must be 0 to {}",
          function, selection.top_keys, kMaxTopKeys);
  const bool gated = in.views.gate.present() && options.gate_fn != GateFn::none && options.gate_op == GateOp::mul;
  std::vector<bool> defaults;
  defaults.reserve(kStatisticsOutputs.size());
  for (const StatisticsOutput& output : kStatisticsOutputs)
    defaults.push_back(is_default_output(output, selection, gated));
  const auto* out = take_out<StatisticsResults>(keywords, "AttentionStatistics");
  const std::vector<bool> chosen = chosen_of<AttentionStatistics>(
      keywords, "outputs", kStatisticsOutputs, [](const StatisticsOutput& output) { return output.name; }, out,
      defaults);

  StatisticsSizes sizes{in.views.q.shape[0], in.views.q.shape[1], in.views.q.shape[2], keys_of(in.views)};
  sizes.sequences = in.views.cu_seqlens_q.present() ? in.views.cu_seqlens_q.shape[3] - 1 : sizes.B;
  sizes.key_batches = in.views.cu_seqlens_k.present() ? sizes.B : sizes.sequences;
  sizes.chosen_keys = selection.keys.view.shape[3];
  sizes.chosen_rows = selection.queries.view.shape[3];
  sizes.top_keys = selection.top_keys;
  require(sizes.sequences >= 0, "{}: cu_seqlens_q has no entries but N + 1 are needed", function);

  StatisticsResults results = out == nullptr ? StatisticsResults() : *out;
  AttentionStatistics outputs;
  std::array<Output, kStatisticsOutputs.size()> held;
  const ArrayFactory factory(in.first);
  const DType real = in.views.q.dtype == DType::f64 ? DType::f64 : DType::f32;
  for (std::size_t n = 0; n < kStatisticsOutputs.size(); ++n) {
    if (!chosen[n]) continue;
    const StatisticsOutput& output = kStatisticsOutputs[n];
    const Shape shape = sizes.shape(output);
    // With cu_seqlens_k, key_mass has no dimension for sequences. Its columns are the packed keys of all sequences.
    const bool shares_columns = output.fourth == StatisticsDim::keys && in.views.cu_seqlens_k.present();
    const bool by_sequence = in.views.cu_seqlens_q.present() && output.of_sequence() && !shares_columns;
    const bool has_batch = in.has_batch() || by_sequence;
    outputs.*output.member =
        view_of(keywords, output, results.arrays[n], held[n], shape, dimensions_of(output, has_batch), factory, real);
  }
  interruptible(keywords, options.context, [&] {
    attention_statistics(outputs, in.views, lse.view,
                         {selection.keys.view, selection.queries.view, std::max<std::int64_t>(selection.window, 0)},
                         options);
  });
  return results;
}

}  // namespace

void bind_statistics(nb::module_& module) {
  module.attr("_statistics_rows") = statistics_rows();
  bind_results<AttentionStatistics>(
      module, "AttentionStatistics", kStatisticsOutputs,
      [](const StatisticsOutput& output) {
        const std::string letters = letters_of(output, "B, or N of a packed batch", "B");
        return ArgumentText{output.name, {}, {}, letters + ", its dimensions of 1 left out"};
      },
      "Where attention looks: figures of the weights P = exp(s - lse).\n\n"
      "row_max: the largest weight of a row; entropy: in nats; first: on key 0; first_gated: that times the mean of\n"
      "the row's gates; window_share: on keys with |at_i - j| <= window; key_weights: on `keys`; mean_...: means of\n"
      "those over the queries, under a causal mask but the one at the first key, which sees itself alone; key_mass:\n"
      "what each key receives; topk_index and topk_weight: the keys of the largest scores; rows: all weights of\n"
      "`queries`.");
  define(
      module, "attention_statistics", statistics,
      joined(joined(joined({{"lse", "Array", "", "(B,Hq,T), of attention_forward on the same inputs and options"}},
                           input_texts(2)),
                    option_texts()),
             {{"keys", "Array | None", "None", "(J), int32 or int64: those of key_weights"},
              {"queries", "Array | None", "None", "(R), int32 or int64: those of rows"},
              {"window", "int", "-1", "W of window_share; -1: it is not computed unless it is named, W is then 0"},
              {"top_keys", "int", "0", "K of topk_index and topk_weight, at most 1024"},
              {"outputs", "Sequence[str] | None", "None",
               "names of what is computed, of AttentionStatistics; None: row_max, entropy, first, key_mass, and what "
               "gate, keys, queries, window and top_keys ask for"},
              {"out", "AttentionStatistics | None", "None",
               "arrays to write to; if outputs is None, no others are computed"}}),
      1 + kPositionalInputs, "AttentionStatistics",
      "Figures of the softmax weights, without the T x S weights: one product q k^T, in O(T) memory.\n\n"
      "v is not read and may be None; gate is read for first_gated alone. Raises ValueError as attention does.");
}

}  // namespace headgate::python
