// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <initializer_list>
#include <limits>
#include <vector>

#include "headgate/attention.hpp"
#include "library/core/statistics_outputs.hpp"

namespace headgate::testing {

constexpr std::int64_t kB = 2, kHq = 4, kHkv = 2, kT = 3, kS = 5, kD = 8, kDv = 6;

/// Makes a valid call that uses every argument; tests then change one thing. The call owns all memory, so that a test
/// can detect whether a refused call wrote any of it.
struct SampleCall {
  AttentionInputs in;
  AttentionOutputs out;
  AttentionSaved saved;
  AttentionIncoming incoming;
  AttentionGradients grad;
  AttentionOptions options;
  AttentionStatistics statistics;
  StatisticsSelection selection;

  explicit SampleCall(DType type = DType::f32) {
    in.q = tensor(type, {kB, kHq, kT, kD});
    in.k = tensor(type, {kB, kHkv, kS, kD});
    in.v = tensor(type, {kB, kHkv, kS, kDv});
    in.gate = tensor(type, {kB, kHq, kT, kDv});
    in.bias = tensor(type, {1, kHq, 1, kS});
    in.key_bias = tensor(DType::f32, {kB, 1, 1, kS});
    const TensorView lists = tensor(DType::i32, {kB, 1, kT, 3});
    std::fill_n(static_cast<std::int32_t*>(lists.data), lists.numel(), 1);
    in.key_indices = lists;
    in.mask = tensor(DType::boolean, {kB, 1, kT, kS});
    in.key_lengths = vector<std::int64_t>({5, 4});
    in.alibi_slopes = vector<float>({0.5F, 0.25F, 0.125F, 0.0625F});
    in.sinks = vector<double>({0.0, 1.0, -1.0, -std::numeric_limits<double>::infinity()});
    out.y = tensor(type, {kB, kHq, kT, kDv});
    out.lse = tensor(DType::f32, {kB, kHq, kT, 1});
    out.attn = tensor(type, {kB, kHq, kT, kDv});
    out.weights = tensor(type, {kB, kHq, kT, kS});
    out.max_logit = tensor(DType::f32, {kB, kHq, kT, 1});
    saved.y = tensor(type, {kB, kHq, kT, kDv});
    saved.lse = tensor(DType::f64, {kB, kHq, kT, 1});
    saved.attn = tensor(type, {kB, kHq, kT, kDv});
    incoming.dy = tensor(type, {kB, kHq, kT, kDv});
    incoming.dlse = tensor(DType::f32, {kB, kHq, kT, 1});
    grad.dq = tensor(type, in.q.shape);
    grad.dk = tensor(type, in.k.shape);
    grad.dv = tensor(type, in.v.shape);
    grad.dgate = tensor(type, in.gate.shape);
    grad.dbias = tensor(type, in.bias.shape);
    grad.dsinks = tensor(DType::f64, in.sinks.shape);
    selection.keys = vector<std::int64_t>({4, 0, 4});
    selection.queries = vector<std::int32_t>({2, 0});
    selection.window = 1;
    const StatisticsSizes sizes{kB, kHq, kT, kS, kB, kB, 3, 2, 2};
    for (const StatisticsOutput& output : kStatisticsOutputs) {
      statistics.*output.member = tensor(output.is_index() ? DType::i64 : DType::f64, sizes.shape(output));
    }
  }

  SampleCall(const SampleCall&) = delete;
  SampleCall& operator=(const SampleCall&) = delete;

  void forward() const { attention_forward(out, in, options); }
  void look() const { attention_statistics(statistics, in, saved.lse, selection, options); }
  void backward() const { attention_backward(grad, in, saved, incoming, options); }

  /// Makes a contiguous tensor with extra room after it. Bytes 0x01 are small positive numbers in every float type and
  /// "true" in a mask.
  TensorView tensor(DType dtype, const Shape& shape) {
    std::int64_t elements = 64;
    for (const std::int64_t dim : shape) elements *= dim > 0 ? dim : 1;
    void* data = allocate(static_cast<std::size_t>(elements) * 8);
    return {data, dtype, shape, contiguous_strides(shape)};
  }

  template <typename T>
  TensorView vector(std::initializer_list<T> values) {
    T* data = static_cast<T*>(allocate(values.size() * sizeof(T)));
    std::copy(values.begin(), values.end(), data);
    return make_vector_view(data, static_cast<std::int64_t>(values.size()));
  }

  /// Returns a copy of all memory.
  std::deque<std::vector<double>> snapshot() const { return memory_; }

  bool unchanged_since(const std::deque<std::vector<double>>& before) const {
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (std::memcmp(before[i].data(), memory_[i].data(), before[i].size() * sizeof(double)) != 0) return false;
    }
    return true;
  }

 private:
  void* allocate(std::size_t bytes) {
    std::vector<double>& block = memory_.emplace_back(bytes / sizeof(double) + 1);
    std::memset(block.data(), 0x01, block.size() * sizeof(double));
    return block.data();
  }

  std::deque<std::vector<double>> memory_;
};

}  // namespace headgate::testing
