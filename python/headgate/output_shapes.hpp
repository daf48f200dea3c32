// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "headgate/tensor.hpp"
#include "library/core/attention_tensors.hpp"
#include "library/core/linear_attention_rows.hpp"
#include "library/core/short_convolution_rows.hpp"

// Computes the shapes and dtypes of a call's new output arrays from its inputs. Does not use Python. Inputs may still
// be invalid: the call checks them after its outputs have been created.

namespace headgate::python {

/// Returns the number of sequences of a call. Without cu_seqlens, this is `batch`.
inline std::int64_t sequences_of(const ConstTensorView& cu_seqlens, std::int64_t batch) {
  return cu_seqlens.present() ? std::max<std::int64_t>(cu_seqlens.shape[3] - 1, 0) : batch;
}

/// Returns the number of snapshots of all sequences. If it overflows, returns the largest int64, so that creating the
/// array fails.
inline std::int64_t snapshots_of(const ConstTensorView& lengths, std::int64_t sequences) {
  std::int64_t count = 0;
  return __builtin_mul_overflow(sequences, lengths.shape[3], &count) ? std::numeric_limits<std::int64_t>::max() : count;
}

inline Shape shape_of(const AttentionOutput& row, const AttentionInputs& in) {
  const auto& [B, Hq, T, D] = in.q.shape;
  if (row.kind == TensorKind::rows_or_heads) return {sequences_of(in), Hq, 1, 1};
  return {B, Hq, T, last_dim(row.kind, keys_of(in), in.v.shape[3])};
}
inline DType dtype_of(const AttentionOutput& row, const AttentionInputs& in) {
  return output_dtype(row.elements, in.q.dtype);
}

/// Returns the shape of an output. Limits D and Dv of the state to kMaxStateDim. Invalid sizes then allocate little
/// memory before the call is rejected.
inline Shape shape_of(const LinearOutput& row, const LinearAttentionInputs& in) {
  const auto& [B, Hq, T, D] = in.q.shape;
  const std::int64_t Hv = in.v.shape[1], Dv = in.v.shape[3];
  if (row.kind != TensorKind::state) return {B, std::max(Hq, Hv), T, Dv};
  const std::int64_t N = sequences_of(in.cu_seqlens, B);
  const std::int64_t states = row.traits.needs == nullptr ? N : snapshots_of(in.snapshot_lengths, N);
  return {states, Hv, std::min(D, kMaxStateDim), std::min(Dv, kMaxStateDim)};
}
inline DType dtype_of(const LinearOutput& row, const LinearAttentionInputs& in) {
  return output_dtype(row.elements, in.q.dtype);
}

/// Returns the shape of an output. Limits the number of taps to 1 … kMaxTaps. An invalid weight then allocates little
/// memory before the call is rejected.
inline Shape shape_of(const ConvolutionOutput& row, const ShortConvolutionInputs& in) {
  if (row.kind != TensorKind::channel_state) return in.x.shape;
  const std::int64_t taps = std::clamp<std::int64_t>(in.weight.shape[3], 1, kMaxTaps);
  const std::int64_t N = sequences_of(in.cu_seqlens, in.x.shape[0]);
  return {row.traits.needs == nullptr ? N : snapshots_of(in.snapshot_lengths, N), 1, taps - 1, in.x.shape[3]};
}
/// Returns the dtype of an output. A new state has the dtype of the old state. If there is no old state, it has the
/// dtype of x.
inline DType dtype_of(const ConvolutionOutput& row, const ShortConvolutionInputs& in) {
  return row.kind == TensorKind::channel_state && in.state.present() ? in.state.dtype : in.x.dtype;
}

}  // namespace headgate::python
