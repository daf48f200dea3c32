// SPDX-License-Identifier: Apache-2.0
#include "tool/attend/linear.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace headgate::attend {
namespace {

/// y has the rank of q, its heads are the larger number of those of q and v. States that the call refuses are cut to
/// sizes that it refuses as well.
std::vector<std::int64_t> shape_of(const LinearOutput& row, const io::Array& q, const LinearAttentionInputs& in) {
  const std::int64_t Hv = in.v.shape[1], Dv = in.v.shape[3];
  if (row.kind == TensorKind::state) {
    const bool packed = in.cu_seqlens.present();
    const std::int64_t N = packed ? std::max<std::int64_t>(in.cu_seqlens.shape[3] - 1, 0) : in.q.shape[0];
    return {N, Hv, std::min(in.q.shape[3], kMaxStateDim), std::min(Dv, kMaxStateDim)};
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

}  // namespace

void check_outputs(const LinearFiles& files) {
  check_paths(output_paths(files), input_paths(files), {{"--grad-dir", files.grad_dir}});
}

LinearResults compute(const LinearFiles& files, const LinearArrays& a, const LinearAttentionOptions& options) {
  check_ranks(files, a);
  const auto in = views_of<kLinearInputs>(a.inputs);
  LinearResults r;
  const LinearAttentionOutputs outputs = make_outputs(files, a, in, r);
  run_on_files(files, [&] {
    linear_attention_forward(outputs, in, options);
    if (a.incoming[&LinearAttentionIncoming::dy].present()) run_backward(a, in, options, r);
  });
  return r;
}

void write_outputs(const LinearFiles& files, const LinearResults& results) {
  io::NpyWriter writer;
  add_results(writer, files, results);
  writer.commit();
}

}  // namespace headgate::attend
