// SPDX-License-Identifier: Apache-2.0
#include "tool/bench/workload.hpp"

#include <algorithm>

namespace headgate::bench {

std::int64_t visible_pairs(const verify::CaseSpec& spec) {
  if (spec.cu_seqlens != DType::none) {
    std::int64_t pairs = 0;
    for (std::size_t n = 0; n < spec.packed_queries.size(); ++n) {
      verify::CaseSpec one = spec;
      one.cu_seqlens = DType::none;
      one.T = spec.packed_queries[n];
      one.S = spec.packed_keys[n];
      pairs += visible_pairs(one);
    }
    return pairs;
  }
  if (spec.key_indices != DType::none) return spec.T * std::min(spec.S, spec.list_entries * spec.key_block_size);
  const bool causal = spec.causality == Causality::causal;
  std::int64_t pairs = 0;
  for (std::int64_t i = 0; i < spec.T; ++i) {
    const std::int64_t at = i + spec.S - spec.T;  // key at the position of query i: the last query is at the last key
    const std::int64_t left = spec.window_left < 0 ? 0 : at - spec.window_left;
    std::int64_t right = spec.window_right < 0 ? spec.S - 1 : at + spec.window_right;
    if (causal) right = std::min(right, at);
    pairs += std::max<std::int64_t>(0, std::min(right, spec.S - 1) - std::max<std::int64_t>(left, 0) + 1);
  }
  return pairs;
}

double flops_of(const verify::CaseSpec& spec, BenchOp op) {
  const double forward = 2.0 * static_cast<double>(visible_pairs(spec)) * static_cast<double>(spec.D + spec.Dv) *
                         static_cast<double>(spec.B * spec.Hq());
  return op == BenchOp::forward ? forward : 2.5 * forward;
}

Workload::Workload(const verify::CaseSpec& spec, BenchOp op)
    : op_(op),
      problem_(spec, verify::Placement::aligned,
               op == BenchOp::forward ? verify::Passes::forward : verify::Passes::forward_and_backward) {
  if (op == BenchOp::forward) return;
  attention_forward(problem_.saving_outputs(), problem_.inputs(), problem_.backward_options());
}

void Workload::backward() const {
  attention_backward(problem_.gradients(), problem_.inputs(), problem_.saved(), problem_.incoming(),
                     problem_.backward_options());
}

}  // namespace headgate::bench
