// SPDX-License-Identifier: Apache-2.0
// Merges attention over parts of the keys by log-sum-exp, forward and backward, one row at a time.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "library/attention/merge.hpp"
#include "library/core/cancellation.hpp"
#include "library/core/dispatch.hpp"
#include "library/core/team.hpp"
#include "library/core/workspace.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "library/attention/cpu/merge_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Per-target headers must follow foreach_target.h.
#include "library/attention/cpu/common/gate_rows-inl.hpp"
#include "library/attention/cpu/common/rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Scratch rows of one thread. Each row has Dv elements, rounded up to vectors.
template <typename T>
struct MergeScratch {
  MergeScratch(Workspace& ws, std::int64_t padded) {
    for (auto* row : {&attn, &part, &gate, &gated, &dy, &d_attn, &dgate}) *row = ws.take<T>("row", padded);
  }
  View<T, 1> attn, part, gate, gated, dy, d_attn, dgate;
};

template <typename T>
struct MergeBuffers {
  MergeBuffers(Workspace& ws, int threads, std::int64_t padded) {
    scratch = ws.take<std::byte>("threads", threads, count_bytes<MergeScratch<T>>(padded));
  }
  View<std::byte, 2> scratch;  ///< memory for each thread's MergeScratch, (threads, bytes)
};

/// Returns Σ d ∘ (a − b) over n elements. Requires that n is a multiple of kLanes<T>.
template <typename T>
T dot_difference(const T* HWY_RESTRICT d, const T* HWY_RESTRICT a, const T* HWY_RESTRICT b, std::int64_t n) {
  const Tag<T> tag;
  auto sum = hn::Zero(tag);
  for (std::int64_t x = 0; x < n; x += kLanes<T>) {
    const auto difference = hn::Sub(hn::LoadU(tag, a + x), hn::LoadU(tag, b + x));
    sum = hn::MulAdd(hn::LoadU(tag, d + x), difference, sum);
  }
  return hn::GetLane(hn::SumOfLanes(tag, sum));
}

/// Merges the parts of one query row at a time, or computes the gradients of the parts. Each thread has its own worker.
template <typename T>
class MergeWorker {
 public:
  MergeWorker(const MergeProblem& m, const MergeBuffers<T>& shared, int thread)
      : m_(m),
        padded_(round_up(m.Dv, kLanes<T>)),
        scratch_(place_buffers<MergeScratch<T>>(shared.scratch.at(thread), padded_)) {}

  void forward(std::int64_t b, std::int64_t h, std::int64_t i) const {
    const double lse = merge(b, h, i);
    const AttentionOutputs& out = m_.outputs;
    if (out.lse.present()) store_row(HeadRows(out.lse, b, h), &lse, i, 0, 1);
    if (out.attn.present()) store_row(HeadRows(out.attn, b, h), scratch_.attn.data, i, 0, m_.Dv);
    if (!out.y.present()) return;
    const T* y = scratch_.attn.data;
    if (m_.gate.present()) {
      const T* z = gate_logits(HeadRows(m_.gate, b, h), i, m_.Dv, scratch_.gate.data);
      gate_row_forward(scratch_.gated.data, y, z, padded_, m_.gate_fn, m_.gate_op);
      y = scratch_.gated.data;
    }
    store_row(HeadRows(out.y, b, h), y, i, 0, m_.Dv);
  }

  void backward(std::int64_t b, std::int64_t h, std::int64_t i) const {
    const double lse = merge(b, h, i);
    const T* attn = scratch_.attn.data;
    const T* z = m_.gate.present() ? gate_logits(HeadRows(m_.gate, b, h), i, m_.Dv, scratch_.gate.data) : nullptr;
    const GateRowOperands<T> row{padded_row(HeadRows(m_.incoming.dy, b, h), i, scratch_.dy.data),
                                 attn,
                                 attn,
                                 z,
                                 scratch_.d_attn.data,
                                 scratch_.dgate.data};
    gate_row_backward(row, padded_, m_.gate_fn, m_.gate_op);
    if (m_.dgate.present()) write_dgate(HeadRows(m_.dgate, b, h), i);
    double dlse = 0;
    if (m_.incoming.dlse.present()) load_row(&dlse, HeadRows(m_.incoming.dlse, b, h), i, 0, 1);
    for (std::size_t n = 0; n < m_.parts.size(); ++n) write_part(n, lse, dlse, b, h, i);
  }

 private:
  static constexpr double kHidden = -std::numeric_limits<double>::infinity();

  static double lse_of(const MergePart& part, std::int64_t b, std::int64_t h, std::int64_t i) {
    double lse = 0;
    load_row(&lse, HeadRows(part.lse, b, h), i, 0, 1);
    return lse;
  }

  /// Computes the merged attn of one row, and returns the merged lse.
  double merge(std::int64_t b, std::int64_t h, std::int64_t i) const {
    double top = kHidden;
    for (const MergePart& part : m_.parts) top = std::max(top, lse_of(part, b, h, i));
    double sum = 0;
    for (const MergePart& part : m_.parts) {
      const double lse = lse_of(part, b, h, i);
      if (lse != kHidden) sum += std::exp(lse - top);
    }
    const double lse = sum == 0 ? kHidden : top + std::log(sum);
    T* HWY_RESTRICT attn = scratch_.attn.data;
    std::fill_n(attn, padded_, T{0});
    const Tag<T> d;
    for (const MergePart& part : m_.parts) {
      const double part_lse = lse_of(part, b, h, i);
      if (part_lse == kHidden) continue;
      const T* from = padded_row(HeadRows(part.attn, b, h), i, scratch_.part.data);
      const auto weight = hn::Set(d, static_cast<T>(std::exp(part_lse - lse)));
      for (std::int64_t x = 0; x < padded_; x += kLanes<T>)
        hn::StoreU(hn::MulAdd(weight, hn::LoadU(d, from + x), hn::LoadU(d, attn + x)), d, attn + x);
    }
    return lse;
  }

  void write_dgate(const HeadRows<void>& to, std::int64_t i) const {
    T* dz = scratch_.dgate.data;
    if (to.cols != m_.Dv) {
      double sum = 0;
      for (std::int64_t x = 0; x < m_.Dv; ++x) sum += static_cast<double>(dz[x]);
      dz[0] = static_cast<T>(sum);
    }
    store_row(to, dz, i, 0, to.cols);
  }

  /// Writes the gradients of part n for one row. The scratch must hold the row's merged attn and the gradient of that
  /// attn.
  void write_part(std::size_t n, double lse, double dlse, std::int64_t b, std::int64_t h, std::int64_t i) const {
    const MergePart& part = m_.parts[n];
    const MergePartGradients& to = m_.gradients[n];
    const double part_lse = lse_of(part, b, h, i);
    const double weight = part_lse == kHidden ? 0.0 : std::exp(part_lse - lse);
    if (to.lse.present()) {
      double gradient = 0;
      if (part_lse != kHidden) {
        const T* attn = padded_row(HeadRows(part.attn, b, h), i, scratch_.part.data);
        const T dot = dot_difference(scratch_.d_attn.data, attn, scratch_.attn.data, padded_);
        gradient = weight * (dlse + static_cast<double>(dot));
      }
      store_row(HeadRows(to.lse, b, h), &gradient, i, 0, 1);
    }
    if (!to.attn.present()) return;
    T* HWY_RESTRICT scaled = scratch_.part.data;
    const T* HWY_RESTRICT d_attn = scratch_.d_attn.data;
    for (std::int64_t x = 0; x < m_.Dv; ++x)
      scaled[x] = part_lse == kHidden ? T{0} : static_cast<T>(weight) * d_attn[x];
    store_row(HeadRows(to.attn, b, h), scaled, i, 0, m_.Dv);
  }

  const MergeProblem& m_;
  std::int64_t padded_;
  MergeScratch<T> scratch_;
};

template <typename T>
void merge_typed(const MergeProblem& m) {
  const std::int64_t rows = m.B * m.Hq * m.T;
  const int threads = static_cast<int>(std::clamp<std::int64_t>(rows, 1, m.context.threads));
  const bool backward = m.incoming.dy.present();
  const Placed<MergeBuffers<T>> shared(threads, round_up(m.Dv, kLanes<T>));
  constexpr std::int64_t kRowsBetweenQuestions = 64;
  Cancellation cancellation(m.context);
  run_team(threads, [&](const Team& team) {
    const MergeWorker<T> worker(m, *shared, team.thread());
    team.in_parts(rows, [&](std::int64_t n) {
      if (cancellation.requested(n, kRowsBetweenQuestions)) return;
      const std::int64_t b = n / (m.Hq * m.T), h = n / m.T % m.Hq, i = n % m.T;
      backward ? worker.backward(b, h, i) : worker.forward(b, h, i);
    });
  });
  cancellation.throw_if_seen();
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate {

HEADGATE_TARGET_TABLE(merge_typed);

void cpu_merge(const MergeProblem& problem) {
  HEADGATE_FOR_DTYPE(merge_typed, problem.dtype, problem.context.target)(problem);
}

}  // namespace headgate
#endif  // HWY_ONCE
