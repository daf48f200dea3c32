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
