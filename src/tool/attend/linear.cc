// SPDX-License-Identifier: Apache-2.0
#include "tool/attend/linear.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace headgate::attend {
namespace {

/// Returns the number of sequences. Returns 0 for an empty cu_seqlens, which a later check rejects.
std::int64_t sequences_of(const LinearAttentionInputs& in) {
  return in.cu_seqlens.present() ? std::max<std::int64_t>(in.cu_seqlens.shape[3] - 1, 0) : in.q.shape[0];
}

/// Returns the shape of an output: y, a state or snapshots. `row` is the output's table entry.
/// y has the rank of q and max(Hq, Hv) heads.
/// Clamps the dimensions of a state to kMaxStateDim: linear_attention_forward() rejects larger ones only after the
/// array has been made.
std::vector<std::int64_t> shape_of(const LinearOutput& row, const io::Array& q, const LinearAttentionInputs& in) {
  const std::int64_t Hv = in.v.shape[1], Dv = in.v.shape[3];
  if (row.kind == TensorKind::state) {
    const std::int64_t N = sequences_of(in);
    const std::int64_t states = row.traits.needs == nullptr ? N : N * in.snapshot_lengths.shape[3];
    return {states, Hv, std::min(in.q.shape[3], kMaxStateDim), std::min(Dv, kMaxStateDim)};
  }
  std::vector<std::int64_t> shape = q.shape;
  shape.back() = Dv;
  if (shape.size() > 2) shape[shape.size() - 3] = std::max(in.q.shape[1], Hv);
  return shape;
}

LinearAttentionOutputs make_outputs(const LinearFiles& files, const LinearArrays& a, const LinearAttentionInputs& in,
                                    LinearResults& r) {
  LinearAttentionOutputs outputs;
  for (std::size_t n = 0; n < kLinearOutputs.size(); ++n) {
    const LinearOutput& row = kLinearOutputs[n];
    if (files.outputs[n].empty()) continue;
    r.outputs[n] = io::make_array(output_dtype(row.elements, in.q.dtype), shape_of(row, a.q(), in));
    outputs.*row.member = view_of(row, r.outputs[n]);
  }
  return outputs;
}

void run_backward(const LinearArrays& a, const LinearAttentionInputs& in, const LinearAttentionOptions& options,
                  LinearResults& r) {
  LinearAttentionGradients gradients;
  for (std::size_t n = 0; n < kLinearGradients.size(); ++n) {
    const LinearGradient& row = kLinearGradients[n];
    const io::Array& input = a.inputs[row.gradient_of];
    if (!input.present()) continue;
    r.gradients[n] = io::make_array(input.dtype, input.shape);
    gradients.*row.member = view_of(row, r.gradients[n]);
  }
  linear_attention_backward(gradients, in, views_of<kLinearIncoming>(a.incoming), options);
}

/// Makes the array of a statistic or of weights. Its shape has two parts:
/// - the dimensions of q before (T,D), or (N,H) for an output with one entry per sequence
/// - the output's own dimensions, except those that are always 1
template <class Row>
io::Array make_figure(const Row& row, const io::Array& q, const LinearOutputSizes& sizes) {
  const Shape shape = sizes.shape(row.dims);
  const std::size_t missing = counts_sequences(row.dims) ? 0 : 4 - q.shape.size();  // q may omit B, or B and H
  const auto end = shape.end() - static_cast<std::ptrdiff_t>(dims_left_out(row.dims));
  return io::make_array(q.dtype == DType::f64 ? DType::f64 : DType::f32,
                        {shape.begin() + static_cast<std::ptrdiff_t>(missing), end});
}

/// Makes an array for each output in `rows` for which wants(output) is true. Returns views of the arrays.
template <class Rows, class Wants>
auto make_figures(const Rows& rows, const io::Array& q, const LinearOutputSizes& sizes, const Wants& wants,
                  std::array<io::Array, std::tuple_size_v<Rows>>& arrays) {
  typename Rows::value_type::Struct views;
  for (std::size_t n = 0; n < rows.size(); ++n) {
    if (!wants(rows[n])) continue;
    arrays[n] = make_figure(rows[n], q, sizes);
    const Shape shape = sizes.shape(rows[n].dims);
    views.*rows[n].member = TensorView(arrays[n].data.get(), arrays[n].dtype, shape, contiguous_strides(shape));
  }
  return views;
}

void run_figures(const LinearFigureFiles& wanted, const LinearArrays& a, const LinearAttentionInputs& in,
                 const LinearAttentionOptions& options, LinearResults& r) {
  const auto R = static_cast<std::int64_t>(wanted.queries.size());
  const std::int64_t N = sequences_of(in);
  const LinearOutputSizes sizes{in.q.shape[0], N, in.v.shape[1], std::max(in.q.shape[1], in.v.shape[1]), in.q.shape[2],
                                in.q.shape[3], R};
  const auto statistics = make_figures(
      kLinearStatistics, a.q(), sizes, [&](const auto& row) { return wanted.wants(row); }, r.statistics);
  linear_attention_statistics(statistics, in, options);
  if (!wanted.wants_weights()) return;
  const auto weights = make_figures(
      kLinearWeights, a.q(), sizes, [](const auto& /*row*/) { return true; }, r.weights);
  linear_attention_weights(weights, in, make_vector_view(wanted.queries.data(), R), options);
}

/// Calls visit(row, array) for each statistic and each array of weights to write. `row` is the table entry of `array`.
template <class Visit>
void for_each_figure(const LinearFigureFiles& wanted, const LinearResults& results, const Visit& visit) {
  for (std::size_t n = 0; n < kLinearStatistics.size(); ++n) {
    if (wanted.wants(kLinearStatistics[n])) visit(kLinearStatistics[n], results.statistics[n]);
  }
  for (std::size_t n = 0; n < kLinearWeights.size() && wanted.wants_weights(); ++n)
    visit(kLinearWeights[n], results.weights[n]);
}

}  // namespace

void check_outputs(const LinearFiles& files) {
  std::vector<io::NamedPath> outputs = output_paths(files);
  for_each_figure(files.figures, {}, [&](const auto& row, const io::Array& /*array*/) {
    outputs.push_back({"--stats", files.figures.path(row)});
  });
  check_paths(outputs, input_paths(files), {{"--grad-dir", files.grad_dir}, {"--stats", files.figures.directory}});
}

LinearResults compute(const LinearFiles& files, const LinearArrays& a, const LinearAttentionOptions& options,
                      const OnStage& on_stage) {
  check_ranks(files, a);
  check_chosen_rows("--weights", files.figures.queries, a.q());
  const auto in = views_of<kLinearInputs>(a.inputs);
  LinearResults r;
  const LinearAttentionOutputs outputs = make_outputs(files, a, in, r);
  run_on_files(files, [&] {
    on_stage("forward pass");
    linear_attention_forward(outputs, in, options);
    if (!files.figures.directory.empty()) {
      on_stage("statistics");
      LinearAttentionInputs read = in;
      read.snapshot_lengths = {};
      run_figures(files.figures, a, read, options, r);
    }
    if (a.incoming[&LinearAttentionIncoming::dy].present()) {
      on_stage("backward pass");
      run_backward(a, in, options, r);
    }
  });
  return r;
}

std::vector<io::NpyWriter::Entry> write_outputs(const LinearFiles& files, const LinearResults& results) {
  io::NpyWriter writer;
  if (!files.figures.directory.empty()) writer.make_directory(files.figures.directory);
  for_each_figure(files.figures, results,
                  [&](const auto& row, const io::Array& array) { add_file(writer, files.figures.path(row), array); });
  add_results(writer, files, results);
  writer.commit();
  return writer.entries();
}

}  // namespace headgate::attend
