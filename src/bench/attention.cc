// SPDX-License-Identifier: Apache-2.0
#include "bench/attention.hpp"

#include <nlohmann/json.hpp>

#include "verify/tolerance.hpp"

namespace headgate::bench {
namespace {

class AttentionJob : public BenchJob {
 public:
  AttentionJob(BenchOp op, const verify::CaseSpec& spec) : op_(op), workload_(spec, op) {}

  void run() override { workload_.run(); }
  double flops() const override { return flops_of(workload_.problem().spec(), op_); }
  double read_bytes() const override {
    const verify::CaseSpec& s = workload_.problem().spec();
    if (s.T * 8 > s.S) return 0.0;  // K and V serve many queries
    const double row = static_cast<double>(s.D + s.Dv) * static_cast<double>(dtype_bytes(s.key_dtype()));
    return static_cast<double>(s.B * s.Hkv * s.S) * (row + (s.quantized ? 2.0 * sizeof(float) : 0.0));
  }
  DType compute_dtype() const override { return verify::compute_dtype(workload_.problem().spec().dtype); }

  nlohmann::ordered_json facts() const override {
    const verify::CaseSpec& s = workload_.problem().spec();
    nlohmann::ordered_json facts{{"op", word_of(op_)},
                                 {"B", s.B},
                                 {"Hq", s.Hq()},
                                 {"Hkv", s.Hkv},
                                 {"T", s.T},
                                 {"S", s.S},
                                 {"D", s.D},
                                 {"Dv", s.Dv},
                                 {"dtype", dtype_name(s.dtype)},
                                 {"kv_dtype", dtype_name(s.key_dtype())},
                                 {"causal", s.causality == Causality::causal},
                                 {"gate", word_of(s.gate_input)}};
    if (s.closed_share >= 0) facts["closed_share"] = s.closed_share;
    return facts;
  }

 private:
  BenchOp op_;
  Workload workload_;
};

}  // namespace

JobFactory attention_job(BenchOp op, const verify::CaseSpec& spec) {
  return [op, spec](int threads) {
    verify::CaseSpec with_threads = spec;
    with_threads.threads = threads;
    return std::make_unique<AttentionJob>(op, with_threads);
  };
}

}  // namespace headgate::bench
