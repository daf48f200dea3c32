// SPDX-License-Identifier: Apache-2.0
#include "tool/bench/attention.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "library/core/precision_words.hpp"
#include "library/core/statistics_outputs.hpp"
#include "verify/case.hpp"
#include "verify/tolerance.hpp"

namespace headgate::bench {
namespace {

nlohmann::ordered_json facts_of(std::string_view op, const verify::CaseSpec& s) {
  nlohmann::ordered_json facts{{"op", op},
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
  if (s.precision != Precision::exact) facts["precision"] = word_of(s.precision);
  if (s.closed_share >= 0) facts["closed_share"] = s.closed_share;
  return facts;
}

class AttentionJob : public BenchJob {
 public:
  AttentionJob(BenchOp op, const verify::CaseSpec& spec) : op_(op), workload_(spec, op) {}

  void run() override { workload_.run(); }
  double flops() const override { return flops_of(workload_.problem().spec(), op_); }
  double read_bytes() const override {
    const verify::CaseSpec& s = workload_.problem().spec();
    if (s.T * 8 > s.S) return 0.0;  // many queries: most reads of K and V hit the caches
    const double row = static_cast<double>(s.D + s.Dv) * static_cast<double>(dtype_bytes(s.key_dtype()));
    const auto first = static_cast<double>(std::min(s.first, s.S));
    const double first_row = static_cast<double>(s.D + s.Dv) * static_cast<double>(dtype_bytes(s.first_rows));
    const double others = static_cast<double>(s.S) - first;
    return static_cast<double>(s.B * s.Hkv) *
           (others * (row + (s.quantized ? 2.0 * sizeof(float) : 0.0)) + first * first_row);
  }
  DType compute_dtype() const override { return verify::compute_dtype(workload_.problem().spec().dtype); }

  nlohmann::ordered_json facts() const override { return facts_of(word_of(op_), workload_.problem().spec()); }

 private:
  BenchOp op_;
  Workload workload_;
};

class StatisticsJob : public BenchJob {
 public:
  explicit StatisticsJob(const verify::CaseSpec& spec)
      : problem_(spec, verify::Placement::aligned, verify::Passes::forward_and_statistics) {
    attention_forward(problem_.saving_outputs(), problem_.inputs(), problem_.options());
  }

  void run() override {
    attention_statistics(problem_.statistics(), problem_.inputs(), problem_.saved().lse, problem_.selection(),
                         problem_.options());
  }
  double flops() const override { return flops_of(problem_.spec(), BenchOp::forward); }
  DType compute_dtype() const override { return verify::compute_dtype(problem_.spec().dtype); }

  nlohmann::ordered_json facts() const override {
    nlohmann::ordered_json facts = facts_of("statistics", problem_.spec());
    std::vector<std::string> outputs;
    for (const StatisticsOutput& output : kStatisticsOutputs) {
      if ((problem_.statistics().*output.member).present()) outputs.emplace_back(output.name);
    }
    facts["outputs"] = outputs;
    return facts;
  }

 private:
  verify::Case problem_;
};

}  // namespace

JobFactory statistics_job(const verify::CaseSpec& spec) {
  return [spec](int threads) {
    verify::CaseSpec with_threads = spec;
    with_threads.threads = threads;
    return std::make_unique<StatisticsJob>(with_threads);
  };
}

JobFactory attention_job(BenchOp op, const verify::CaseSpec& spec) {
  return [op, spec](int threads) {
    verify::CaseSpec with_threads = spec;
    with_threads.threads = threads;
    return std::make_unique<AttentionJob>(op, with_threads);
  };
}

}  // namespace headgate::bench
