// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "headgate/runtime.hpp"
#include "library/core/element.hpp"
#include "tool/bench/timing.hpp"
#include "tool/bench/workload.hpp"
#include "tool/demo/layer.hpp"
#include "tool/machine/machine.hpp"
#include "verify/oracle/oracle.hpp"
#include "verify/tolerance.hpp"

namespace headgate::demo {
namespace {

constexpr std::int64_t kHeads = 16;
constexpr std::int64_t kTokens = 4096;
constexpr std::int64_t kDim = 128;

/// Query rows to compare with the oracle in each sampled head: single rows, and the last kLastRows rows.
/// dk and dv are compared only for the last keys, because only the last queries see these keys.
constexpr std::array<std::int64_t, 3> kSampledHeads{0, 6, 15};
constexpr std::array<std::int64_t, 6> kSampledRows{0, 1, 63, 1000, 2049, 3333};
constexpr std::int64_t kLastRows = 16;

verify::CaseSpec layer_spec(int threads) {
  verify::CaseSpec spec;
  spec.Hkv = kHeads;
  spec.T = spec.S = kTokens;
  spec.D = spec.Dv = kDim;
  spec.dtype = DType::bf16;
  spec.causality = Causality::causal;
  spec.gate_input = verify::GateInput::elementwise;
  spec.threads = threads;
  return spec;
}

/// Returns a view (1,1,count,n) of rows [first, first + count) in head h; n is the view's last dimension.
ConstTensorView rows_of(const ConstTensorView& view, std::int64_t h, std::int64_t first, std::int64_t count) {
  ConstTensorView part = view;
  const std::size_t offset = offset_of(view, 0, h, first, 0) * dtype_bytes(view.dtype);
  part.data = static_cast<const std::byte*>(view.data) + offset;
  part.shape = {1, 1, count, view.shape[3]};
  return part;
}

/// Counts the elements compared with the oracle. Keeps the largest error, divided by its tolerance.
struct Tally {
  std::int64_t elements = 0;
  double worst = 0.0;

  /// Compares row i of `actual` with row skip + i of the oracle's arrays.
  void compare(const ConstTensorView& actual, std::int64_t skip, const std::vector<double>& expected,
               const std::vector<double>& magnitude, const std::vector<double>* inherited,
               const verify::Tolerance& tolerance) {
    const std::int64_t width = actual.shape[3];
    for (std::int64_t i = 0; i < actual.shape[2]; ++i) {
      for (std::int64_t d = 0; d < width; ++d) {
        const std::int64_t at = (skip + i) * width + d;
        const double bound = tolerance(expected[at], magnitude[at], inherited != nullptr ? (*inherited)[at] : 0.0);
        worst = std::max(worst, verify::error_ratio(load(actual, 0, 0, i, d), expected[at], bound, actual.dtype));
        ++elements;
      }
    }
  }
};

/// Compares query rows [first, first + count) of head h with the oracle.
/// The oracle computes a smaller causal problem: these queries, and the keys up to the last query's position.
/// If `keys` is true, also compares rows [first, first + count) of dk and dv.
/// This requires that no queries follow, because later queries would contribute to these rows of dk and dv.
void check_rows(const verify::Case& layer, std::int64_t h, std::int64_t first, std::int64_t count, bool keys,
                Tally& tally) {
  const AttentionInputs whole = layer.inputs();
  const std::int64_t seen = first + count;
  AttentionInputs in;
  in.q = rows_of(whole.q, h, first, count);
  in.k = rows_of(whole.k, h, 0, seen);
  in.v = rows_of(whole.v, h, 0, seen);
  in.gate = rows_of(whole.gate, h, first, count);
  AttentionIncoming incoming;
  incoming.dy = rows_of(layer.incoming().dy, h, first, count);

  const auto tolerance = [&](DType output, std::int64_t terms) {
    return verify::Tolerance::of(in.q.dtype, output, terms);
  };
  const DType storage = in.q.dtype;
  const auto forward = reference::forward(in, layer.options());
  const verify::Tolerance forward_rule = tolerance(storage, kDim + seen);
  tally.compare(rows_of(layer.outputs().y, h, first, count), 0, forward.y, forward.magnitude.y, nullptr, forward_rule);
  tally.compare(rows_of(layer.outputs().lse, h, first, count), 0, forward.lse, forward.magnitude.lse, nullptr,
                tolerance(DType::f32, kDim + seen));

  const auto backward = reference::backward(in, incoming, layer.options());
  const AttentionGradients actual = layer.gradients();
  const auto& m = backward.magnitude;
  const auto& saved = backward.inherited;
  const verify::Tolerance row_rule = tolerance(storage, 2 * kDim + seen);
  tally.compare(rows_of(actual.dq, h, first, count), 0, backward.dq, m.dq, &saved.dq, row_rule);
  tally.compare(rows_of(actual.dgate, h, first, count), 0, backward.dgate, m.dgate, &saved.dgate, row_rule);
  if (!keys) return;
  const verify::Tolerance key_rule = tolerance(storage, 2 * kDim + seen + count);
  tally.compare(rows_of(actual.dk, h, first, count), first, backward.dk, m.dk, &saved.dk, key_rule);
  tally.compare(rows_of(actual.dv, h, first, count), first, backward.dv, m.dv, &saved.dv, key_rule);
}

struct Speed {
  double seconds = 0.0;
  double gflops = 0.0;
};

struct LayerSpeed {
  Speed forward, backward;
  double fma_peak_gflops = 0.0;
  double sgemm_gflops = 0.0;
};

LayerSpeed measure(const bench::Workload& layer, int threads) {
  constexpr int kRuns = 5;
  constexpr int kPeakWindows = 8;
  LayerSpeed speed;
  speed.sgemm_gflops = bench::sgemm_gflops(threads);
  bench::PeakMeter meter(active_target(), DType::f32, threads);
  layer.backward();  // warms up: the first run maps the gradients' memory
  std::vector<double> forward, backward;
  for (int run = 0; run < kRuns; ++run) {
    speed.fma_peak_gflops = std::max(speed.fma_peak_gflops, meter.best_of(kPeakWindows));
    forward.push_back(bench::seconds_of([&] { layer.forward(); }));
    backward.push_back(bench::seconds_of([&] { layer.backward(); }));
  }
  const auto speed_of = [&layer](bench::BenchOp op, double seconds) {
    return Speed{seconds, bench::flops_of(layer.problem().spec(), op) / seconds * 1e-9};
  };
  speed.forward = speed_of(bench::BenchOp::forward, bench::median(forward));
  speed.backward = speed_of(bench::BenchOp::backward, bench::median(backward));
  return speed;
}

void print_speed(const char* name, const Speed& speed, const LayerSpeed& limits) {
  constexpr int kBarCells = 30;
  const double part = speed.gflops / limits.fma_peak_gflops;
  const std::int64_t filled = std::lround(std::clamp(part, 0.0, 1.0) * kBarCells);
  fmt::print("     {:<9} {:>8.1f} ms {:>9.1f} {:>12.1f}% {:>11.1f}%   {}{}\n", name, 1e3 * speed.seconds, speed.gflops,
             100.0 * part, 100.0 * speed.gflops / limits.sgemm_gflops, std::string(filled, '#'),
             std::string(kBarCells - filled, '.'));
}

Tally check_samples(const verify::Case& layer) {
  Tally tally;
  for (const std::int64_t h : kSampledHeads) {
    for (const std::int64_t i : kSampledRows) check_rows(layer, h, i, 1, false, tally);
    check_rows(layer, h, kTokens - kLastRows, kLastRows, true, tally);
  }
  return tally;
}

}  // namespace

bool show_layer(int threads) {
  fmt::print("\n\nA layer of real size: {} heads of {}, {} tokens, causal, bf16, elementwise sigmoid gate\n\n", kHeads,
             kDim, kTokens);
  fmt::print("     machine   {}, vector target {}, {} thread{}\n", bench::cpu_name(), active_target(), threads,
             threads == 1 ? "" : "s");
  std::fflush(stdout);
  const bench::Workload layer(layer_spec(threads), bench::BenchOp::backward);
  const LayerSpeed speed = measure(layer, threads);
  fmt::print("     limits    FMA peak {:.1f} GFLOP/s (f32, which bf16 accumulates in), sgemm {:.1f} GFLOP/s\n\n",
             speed.fma_peak_gflops, speed.sgemm_gflops);
  fmt::print("     {:<9} {:>11} {:>9} {:>13} {:>12}\n", "", "time", "GFLOP/s", "of FMA peak", "of sgemm");
  print_speed("forward", speed.forward, speed);
  print_speed("backward", speed.backward, speed);

  std::fflush(stdout);
  const Tally tally = check_samples(layer.problem());
  const bool ok = tally.worst <= 1.0;
  fmt::print("\n     {} elements of y, lse, dq, dk, dv and dgate against the f64 oracle: {}\n", tally.elements,
             ok ? "ok" : "OUT OF TOLERANCE");
  fmt::print("     the largest error is {:.3f} of the tolerance (docs/reference/numerics.md)\n", tally.worst);
  return ok;
}

}  // namespace headgate::demo
