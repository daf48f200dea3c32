// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "headgate/attention.hpp"
#include "headgate/tensor.hpp"

// One call of the library with its data: what bench times and demo shows.

namespace headgate::bench {

enum class BenchOp { forward, backward };
enum class GateGrain { none, headwise, elementwise };

const char* op_name(BenchOp op);
const char* grain_name(GateGrain grain);

struct CallShape {
  std::int64_t B = 1, Hq = 8, Hkv = 8, T = 2048, S = 2048, D = 64, Dv = 64;
  DType dtype = DType::f32;
  Causality causality = Causality::none;
  GateGrain gate = GateGrain::elementwise;  ///< sigmoid, multiplied
};

/// (query, key) pairs of one head that the causal mask leaves.
std::int64_t visible_pairs(const CallShape& shape);

/// Forward: 2 FLOPs a multiply-add of q kᵀ and p v over the visible pairs; backward: 2.5 times that.
double flops_of(const CallShape& shape, BenchOp op);

/// An owned contiguous tensor, elements uninitialised.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, const Shape& shape);

  bool present() const { return dtype_ != DType::none; }
  TensorView view() const { return {data_.get(), dtype_, shape_, contiguous_strides(shape_)}; }
  /// Nearly normal numbers, mean 0 and variance 1, the same for the same seed.
  void fill_normal(std::uint64_t seed);

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  DType dtype_ = DType::none;
  Shape shape_{};
  std::unique_ptr<std::byte, Free> data_;
};

/// Inputs filled with random numbers, and room for the outputs that `op` needs. For a backward call the constructor
/// runs the forward one, whose y and lse it reads.
class Workload {
 public:
  Workload(const CallShape& shape, BenchOp op, int threads);

  void forward() const { attention_forward(outputs(), inputs(), options()); }
  void backward() const { attention_backward(gradients(), inputs(), saved(), incoming(), options()); }
  void run() const { op_ == BenchOp::forward ? forward() : backward(); }

  AttentionInputs inputs() const;
  AttentionOutputs outputs() const;
  AttentionSaved saved() const;
  AttentionIncoming incoming() const;
  AttentionGradients gradients() const;
  AttentionOptions options() const;

 private:
  CallShape shape_;
  BenchOp op_;
  int threads_;
  Tensor q_, k_, v_, gate_, y_, lse_;
  Tensor dy_, dq_, dk_, dv_, dgate_;  ///< backward only
};

}  // namespace headgate::bench
