// SPDX-License-Identifier: Apache-2.0
#include "tool/bench/streaming.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "library/core/gate_functions.hpp"
#include "tool/bench/job.hpp"
#include "tool/bench/workload.hpp"
#include "verify/gated_norm_case.hpp"
#include "verify/short_convolution_case.hpp"
#include "verify/tolerance.hpp"

namespace headgate::bench {
namespace {

using verify::ConvolutionCaseSpec;
using verify::NormCaseSpec;

verify::Passes passes_of(BenchOp op) {
  return op == BenchOp::forward ? verify::Passes::forward : verify::Passes::forward_and_backward;
}

class ConvolutionJob : public BenchJob {
 public:
  ConvolutionJob(BenchOp op, const ConvolutionCaseSpec& spec)
      : op_(op), problem_(spec, verify::Placement::aligned, passes_of(op)) {}

  void run() override {
    if (op_ == BenchOp::forward) {
      short_convolution_forward(problem_.outputs(), problem_.inputs(), problem_.options());
    } else {
      short_convolution_backward(problem_.gradients(), problem_.inputs(), problem_.incoming(), problem_.options());
    }
  }
  /// Returns the FLOPs. Each output element takes K multiply-adds, one for each tap of the filter. A multiply-add
  /// counts 2. The backward pass takes three times as many: it recomputes the sums and computes dx and dweight.
  double flops() const override {
    const double taps = (op_ == BenchOp::forward ? 1.0 : 3.0) * static_cast<double>(problem_.spec().K);
    return 2.0 * taps * elements();
  }
  /// Returns the bytes of memory traffic. A forward pass reads or writes x and y, a backward pass x, dy and dx.
  /// Returns 0 for one token, whose data fits in the caches.
  double read_bytes() const override {
    if (problem_.spec().T == 1) return 0.0;
    return (op_ == BenchOp::forward ? 2.0 : 3.0) * elements() * static_cast<double>(dtype_bytes(problem_.spec().dtype));
  }
  DType compute_dtype() const override { return verify::compute_dtype(problem_.spec().dtype); }

  nlohmann::ordered_json facts() const override {
    const ConvolutionCaseSpec& s = problem_.spec();
    return {{"op", fmt::format("short_convolution_{}", word_of(op_))},
            {"B", s.B},
            {"T", s.T},
            {"C", s.C},
            {"K", s.K},
            {"dtype", dtype_name(s.dtype)},
            {"activation", word_of(s.activation)}};
  }

 private:
  double elements() const { return static_cast<double>(problem_.spec().B * problem_.spec().T * problem_.spec().C); }

  BenchOp op_;
  verify::ConvolutionCase problem_;
};

class NormJob : public BenchJob {
 public:
  NormJob(BenchOp op, const NormCaseSpec& spec) : op_(op), problem_(spec, verify::Placement::aligned, passes_of(op)) {}

  void run() override {
    if (op_ == BenchOp::forward) {
      gated_norm_forward(problem_.y(), problem_.inputs(), problem_.options());
    } else {
      gated_norm_backward(problem_.gradients(), problem_.inputs(), problem_.dy(), problem_.options());
    }
  }
  /// Returns the FLOPs, without those of the gate function. Let r = 1 / RMS(x), n = x · r, g be the gate's value, and
  /// e = dy · g · weight. The FLOPs of a term stand in parentheses.
  /// - Forward, 5 per element: x² and its sum (2); x · r · weight · g (3).
  /// - Backward, 14 per element: x² and its sum (2); n (1); dy · g (1); e (1);
  ///   e · n and its sum (2); dx = (e − n · mean(e · n)) · r (3); dweight and its sum (2); dgate (2).
  double flops() const override { return (op_ == BenchOp::forward ? 5.0 : 14.0) * elements(); }
  /// Returns the bytes of memory traffic. A forward pass reads or writes x, gate and y.
  /// A backward pass reads or writes x, gate, dy, dx and dgate.
  /// Returns 0 for one token, whose data fits in the caches.
  double read_bytes() const override {
    if (problem_.spec().T == 1) return 0.0;
    return (op_ == BenchOp::forward ? 3.0 : 5.0) * elements() * static_cast<double>(dtype_bytes(problem_.spec().dtype));
  }
  DType compute_dtype() const override { return verify::compute_dtype(problem_.spec().dtype); }

  nlohmann::ordered_json facts() const override {
    const NormCaseSpec& s = problem_.spec();
    return {{"op", fmt::format("gated_norm_{}", word_of(op_))},
            {"B", s.B},
            {"H", s.H},
            {"T", s.T},
            {"D", s.D},
            {"dtype", dtype_name(s.dtype)},
            {"gate", word_of(s.gate_fn)}};
  }

 private:
  double elements() const {
    const NormCaseSpec& s = problem_.spec();
    return static_cast<double>(s.B * s.H * s.T * s.D);
  }

  BenchOp op_;
  verify::NormCase problem_;
};

template <class Job, class Spec>
BenchGroup alone(const std::string& name, BenchOp op, const Spec& spec) {
  const JobFactory make_job = [op, spec](int threads) {
    Spec with_threads = spec;
    with_threads.threads = threads;
    return std::make_unique<Job>(op, with_threads);
  };
  return {{{name, make_job, 0, {}}}, {}};
}

/// Returns the spec of a short convolution of q, k and v. The layer has 16 heads of 128 features, so C = 3 · 16 · 128.
/// With one token, the convolution updates its state in place.
ConvolutionCaseSpec convolution(DType dtype, std::int64_t tokens) {
  ConvolutionCaseSpec spec;
  spec.T = tokens;
  spec.C = 6144;
  spec.dtype = dtype;
  if (tokens == 1) {
    spec.state = dtype;
    spec.in_place = true;
  }
  return spec;
}

/// Returns the spec of a gated norm with 16 heads of 128 features, in (B,T,H,D) memory order.
NormCaseSpec norm(DType dtype, std::int64_t tokens) {
  NormCaseSpec spec;
  spec.H = 16;
  spec.T = tokens;
  spec.D = 128;
  spec.layout = verify::Layout::bthd;
  spec.dtype = spec.gate = dtype;
  spec.weight = DType::f32;
  return spec;
}

}  // namespace

std::vector<BenchGroup> streaming_groups() {
  constexpr std::int64_t kTokens = 2048;
  std::vector<BenchGroup> groups;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const BenchOp op : {BenchOp::forward, BenchOp::backward}) {
      const std::string name = fmt::format("{}/{}", word_of(op), dtype_name(dtype));
      groups.push_back(alone<ConvolutionJob>("convolution/" + name, op, convolution(dtype, kTokens)));
      groups.push_back(alone<NormJob>("norm/" + name, op, norm(dtype, kTokens)));
    }
    const std::string name = fmt::format("decode/{}", dtype_name(dtype));
    groups.push_back(alone<ConvolutionJob>("convolution/" + name, BenchOp::forward, convolution(dtype, 1)));
    groups.push_back(alone<NormJob>("norm/" + name, BenchOp::forward, norm(dtype, 1)));
  }
  return groups;
}

}  // namespace headgate::bench
