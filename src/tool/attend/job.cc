// SPDX-License-Identifier: Apache-2.0
#include "tool/attend/job.hpp"

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "headgate/attention.hpp"
#include "library/core/gate_functions.hpp"

namespace headgate::attend {
namespace {

/// Makes an array whose shape is q's without the last dimension, followed by the dimensions `last`.
io::Array make_output(DType dtype, const io::Array& q, std::vector<std::int64_t> last) {
  std::vector<std::int64_t> shape(q.shape.begin(), q.shape.end() - 1);
  shape.insert(shape.end(), last.begin(), last.end());
  return io::make_array(dtype, std::move(shape));
}

void run_backward(const Arrays& a, const AttentionInputs& in, const AttentionOptions& options, bool has_gate,
                  Results& r) {
  AttentionGradients gradients;
  for (std::size_t n = 0; n < kAttentionGradients.size(); ++n) {
    const AttentionGradient& row = kAttentionGradients[n];
    const io::Array& input = a.inputs[row.gradient_of];
    if (!input.present() || (row.gradient_of == &AttentionInputs::gate && !has_gate)) continue;
    r.gradients[n] = io::make_array(row.elements == Elements::of_q_or_i8 ? a.q().dtype : input.dtype, input.shape);
    gradients.*row.member = view_of(row, r.gradients[n]);
  }
  AttentionSaved saved;
  saved.y = view4(r.outputs[&AttentionOutputs::y]);
  saved.lse = row_view(r.outputs[&AttentionOutputs::lse]);
  saved.attn = view4(r.outputs[&AttentionOutputs::attn]);
  attention_backward(gradients, in, saved, views_of<kIncomingTensors>(a.incoming), options);
}

/// Makes the array of a statistic. Its shape is the concatenation of two parts:
/// - the dimensions of q in front of (T,D), or (N,Hq) for a statistic with one entry per sequence
/// - the dimensions of the statistic itself, except those that are always 1
io::Array make_statistic(const StatisticsOutput& output, const io::Array& q, const StatisticsSizes& sizes) {
  std::vector<std::int64_t> shape(q.shape.begin(), q.shape.end() - 2);
  const Shape whole = sizes.shape(output);
  if (whole[0] != sizes.B) shape = {whole[0], sizes.Hq};
  if (output.third != StatisticsDim::one) shape.push_back(sizes.of(output.third));
  if (output.fourth != StatisticsDim::one) shape.push_back(sizes.of(output.fourth));
  const DType real = q.dtype == DType::f64 ? DType::f64 : DType::f32;
  return io::make_array(output.is_index() ? DType::i64 : real, std::move(shape));
}

void run_statistics(const Statistics& wanted, const Arrays& a, const AttentionInputs& in,
                    const AttentionOptions& options, Results& r) {
  const auto R = static_cast<std::int64_t>(wanted.queries.size());
  StatisticsSizes sizes{in.q.shape[0], in.q.shape[1], in.q.shape[2], keys_of(in)};
  sizes.sequences = sequences_of(in);
  sizes.key_batches = in.cu_seqlens_k.present() ? sizes.B : sizes.sequences;
  sizes.chosen_rows = R;
  sizes.top_keys = wanted.top_keys;
  AttentionStatistics outputs;
  for (std::size_t n = 0; n < kStatisticsOutputs.size(); ++n) {
    const StatisticsOutput& output = kStatisticsOutputs[n];
    if (!wanted.wants(output)) continue;
    io::Array& array = r.statistics[n];
    array = make_statistic(output, a.q(), sizes);
    const Shape shape = sizes.shape(output);
    outputs.*output.member = TensorView(array.data.get(), array.dtype, shape, contiguous_strides(shape));
  }
  StatisticsSelection selection;
  if (R > 0) selection.queries = make_vector_view(wanted.queries.data(), R);
  selection.window = wanted.window.value_or(0);
  attention_statistics(outputs, in, row_view(r.outputs[&AttentionOutputs::lse]), selection, options);
}

}  // namespace

bool Statistics::wants(const StatisticsOutput& output) const {
  using S = AttentionStatistics;
  if (output.fourth == StatisticsDim::top_keys) return top_keys > 0;
  if (output.third == StatisticsDim::chosen_rows) return !queries.empty();
  if (output.member == &S::window_share) return window.has_value();
  if (output.member == &S::first_gated) return gated;
  return output.member == &S::row_max || output.member == &S::entropy || output.member == &S::first ||
         output.member == &S::key_mass;
}

namespace {

/// Makes an array for each output that is required, is written to a file, or is read by a later pass.
/// `needs_lse` and `needs_attn` tell whether a later pass reads the output lse or attn.
AttentionOutputs make_outputs(const Files& files, const Arrays& a, const AttentionInputs& in, bool needs_lse,
                              bool needs_attn, Results& r) {
  using O = AttentionOutputs;
  AttentionOutputs outputs;
  for (std::size_t n = 0; n < kAttentionOutputs.size(); ++n) {
    const AttentionOutput& row = kAttentionOutputs[n];
    const bool needed = (row.member == &O::lse && needs_lse) || (row.member == &O::attn && needs_attn);
    if (!row.traits.required && files.outputs[n].empty() && !needed) continue;
    const DType dtype = output_dtype(row.elements, in.q.dtype);
    if (row.kind == TensorKind::rows_or_heads) {
      r.outputs[n] = io::make_array(dtype, {sequences_of(in), in.q.shape[1]});
    } else {
      std::vector<std::int64_t> last;
      if (row.kind != TensorKind::rows) last.push_back(last_dim(row.kind, keys_of(in), in.v.shape[3]));
      r.outputs[n] = make_output(dtype, a.q(), last);
    }
    outputs.*row.member = view_of(row, r.outputs[n]);
  }
  return outputs;
}

}  // namespace

Results compute(const Files& files, const Arrays& a, const AttentionOptions& options, bool off_by_one,
                const OnStage& on_stage) {
  check_ranks(files, a);
  check_chosen_rows("--rows", files.statistics.queries, a.q());
  AttentionInputs in = views_of<kAttentionInputs>(a.inputs);
  io::Array zero_sinks;
  if (off_by_one) {
    zero_sinks = io::make_array(DType::f32, {in.q.shape[1]});
    std::memset(zero_sinks.data.get(), 0, zero_sinks.bytes());
    in.sinks = view4(zero_sinks);
  }
  const bool backward = a.incoming[&AttentionIncoming::dy].present();
  const bool has_gate = in.gate.present() && options.gate_fn != GateFn::none;
  const bool statistics = !files.statistics.directory.empty();
  const bool needs_attn = backward && in.gate.present() && keeps_output(options.gate_fn, options.gate_op, in.q.dtype);
  Results r;
  const AttentionOutputs outputs = make_outputs(files, a, in, backward || statistics, needs_attn, r);
  run_on_files(files, [&] {
    on_stage("forward pass");
    attention_forward(outputs, in, options);
    if (statistics) {
      on_stage("statistics");
      run_statistics(files.statistics, a, in, options, r);
    }
    if (backward) {
      on_stage("backward pass");
      run_backward(a, in, options, has_gate, r);
    }
  });
  return r;
}

}  // namespace headgate::attend
