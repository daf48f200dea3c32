// SPDX-License-Identifier: Apache-2.0
#include "bench/workload.hpp"

#include <algorithm>
#include <new>

#include "core/element.hpp"
#include "core/random.hpp"

namespace headgate::bench {
namespace {

constexpr std::size_t kAlign_bytes = 64;

/// The sum of four uniform numbers of 16 bits: mean 2, variance 1/3; shifted and scaled to 0 and 1.
double normal_of(std::uint64_t bits) {
  constexpr double kUnit = 1.0 / 65536.0;
  constexpr double kSqrt3 = 1.7320508075688772;
  const std::uint64_t sum = (bits & 0xFFFFU) + ((bits >> 16) & 0xFFFFU) + ((bits >> 32) & 0xFFFFU) + (bits >> 48);
  return (static_cast<double>(sum) * kUnit - 2.0) * kSqrt3;
}

}  // namespace

const char* op_name(BenchOp op) { return op == BenchOp::forward ? "forward" : "backward"; }

const char* grain_name(GateGrain grain) {
  switch (grain) {
    case GateGrain::headwise: return "headwise";
    case GateGrain::elementwise: return "elementwise";
    case GateGrain::none: break;
  }
  return "none";
}

std::int64_t visible_pairs(const CallShape& shape) {
  if (shape.causality == Causality::none) return shape.T * shape.S;
  std::int64_t pairs = 0;
  for (std::int64_t i = 0; i < shape.T; ++i) {
    pairs += std::clamp<std::int64_t>(i + shape.S - shape.T + 1, 0, shape.S);
  }
  return pairs;
}

double flops_of(const CallShape& shape, BenchOp op) {
  const double forward = 2.0 * static_cast<double>(visible_pairs(shape)) * static_cast<double>(shape.D + shape.Dv) *
                         static_cast<double>(shape.B * shape.Hq);
  return op == BenchOp::forward ? forward : 2.5 * forward;
}

Tensor::Tensor(DType dtype, const Shape& shape) : dtype_(dtype), shape_(shape) {
  const auto count = static_cast<std::size_t>(view().numel());
  data_.reset(static_cast<std::byte*>(::operator new (count* dtype_bytes(dtype), std::align_val_t{kAlign_bytes})));
}

void Tensor::Free::operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{kAlign_bytes}); }

void Tensor::fill_normal(std::uint64_t seed) {
  const std::uint64_t base = mix64(seed);
  const std::int64_t count = view().numel();
  for (std::int64_t i = 0; i < count; ++i) {
    store_element(data_.get(), dtype_, i, normal_of(mix64(base + static_cast<std::uint64_t>(i))));
  }
}

Workload::Workload(const CallShape& shape, BenchOp op, int threads) : shape_(shape), op_(op), threads_(threads) {
  const CallShape& s = shape;
  const auto random = [&](const Shape& dims, std::uint64_t seed) {
    Tensor tensor(s.dtype, dims);
    tensor.fill_normal(seed);
    return tensor;
  };
  q_ = random({s.B, s.Hq, s.T, s.D}, 1);
  k_ = random({s.B, s.Hkv, s.S, s.D}, 2);
  v_ = random({s.B, s.Hkv, s.S, s.Dv}, 3);
  const std::int64_t gate_width = s.gate == GateGrain::headwise ? 1 : s.Dv;
  if (s.gate != GateGrain::none) gate_ = random({s.B, s.Hq, s.T, gate_width}, 4);
  y_ = Tensor(s.dtype, {s.B, s.Hq, s.T, s.Dv});
  lse_ = Tensor(DType::f32, {s.B, s.Hq, s.T, 1});
  if (op == BenchOp::forward) return;
  dy_ = random({s.B, s.Hq, s.T, s.Dv}, 5);
  dq_ = Tensor(s.dtype, {s.B, s.Hq, s.T, s.D});
  dk_ = Tensor(s.dtype, {s.B, s.Hkv, s.S, s.D});
  dv_ = Tensor(s.dtype, {s.B, s.Hkv, s.S, s.Dv});
  if (gate_.present()) dgate_ = Tensor(s.dtype, {s.B, s.Hq, s.T, gate_width});
  forward();
}

AttentionInputs Workload::inputs() const {
  AttentionInputs in;
  in.q = q_.view();
  in.k = k_.view();
  in.v = v_.view();
  if (gate_.present()) in.gate = gate_.view();
  return in;
}

AttentionOutputs Workload::outputs() const {
  AttentionOutputs out;
  out.y = y_.view();
  out.lse = lse_.view();
  return out;
}

AttentionSaved Workload::saved() const {
  AttentionSaved saved;
  saved.y = y_.view();
  saved.lse = lse_.view();
  return saved;
}

AttentionIncoming Workload::incoming() const {
  AttentionIncoming incoming;
  incoming.dy = dy_.view();
  return incoming;
}

AttentionGradients Workload::gradients() const {
  AttentionGradients gradients;
  gradients.dq = dq_.view();
  gradients.dk = dk_.view();
  gradients.dv = dv_.view();
  if (dgate_.present()) gradients.dgate = dgate_.view();
  return gradients;
}

AttentionOptions Workload::options() const {
  AttentionOptions options;
  options.causality = shape_.causality;
  options.threads = threads_;
  return options;
}

}  // namespace headgate::bench
