// SPDX-License-Identifier: Apache-2.0
#include "bench/attention.hpp"

#include <nlohmann/json.hpp>

namespace headgate::bench {
namespace {

class AttentionJob : public BenchJob {
 public:
  AttentionJob(BenchOp op, const CallShape& shape, int threads)
      : op_(op), shape_(shape), workload_(shape, op, threads) {}

  void run() override { workload_.run(); }
  double flops() const override { return flops_of(shape_, op_); }
  /// 16-bit storage computes in f32.
  DType compute_dtype() const override { return shape_.dtype == DType::f64 ? DType::f64 : DType::f32; }

  nlohmann::ordered_json facts() const override {
    const CallShape& s = shape_;
    return {{"op", op_name(op_)},
            {"B", s.B},
            {"Hq", s.Hq},
            {"Hkv", s.Hkv},
            {"T", s.T},
            {"S", s.S},
            {"D", s.D},
            {"Dv", s.Dv},
            {"dtype", dtype_name(s.dtype)},
            {"causal", s.causality == Causality::causal},
            {"gate", grain_name(s.gate)}};
  }

 private:
  BenchOp op_;
  CallShape shape_;
  Workload workload_;
};

}  // namespace

JobFactory attention_job(BenchOp op, const CallShape& shape) {
  return [op, shape](int threads) { return std::make_unique<AttentionJob>(op, shape, threads); };
}

}  // namespace headgate::bench
