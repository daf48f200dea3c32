// SPDX-License-Identifier: Apache-2.0
// The backward pass of the short convolution. ds = dy · act′(s) is computed again for the K − 1 tokens behind each
// block, so that blocks are independent. dweight and dbias are partial sums of blocks, added up in their order.

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "library/core/cancellation.hpp"
#include "library/core/dispatch.hpp"
#include "library/core/workspace.hpp"
#include "library/linear_attention/short_convolution.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "library/linear_attention/cpu/short_convolution_backward_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h: per-target headers.
#include "library/linear_attention/cpu/convolution_plan-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Rows of a block. They cut the sums of dweight and dbias, so that they decide their bits.
inline constexpr std::int64_t kSumRows = 256;
inline constexpr TaskSizes kChannelsTasks{kSumRows, kSumRows, 64, 512};
inline constexpr TaskSizes kTokensTasks{kSumRows, kSumRows, 1, 16};
/// Rows of a strip along channels, whose buffers stay in a second-level cache.
inline constexpr std::int64_t kGradientRows = 32;

/// What one thread works in. Along tokens a buffer is one row of tokens.
template <typename T>
struct ConvolutionGradientScratch {
  ConvolutionGradientScratch(Workspace& ws, const ConvolutionPlan& plan) {
    const std::int64_t K = plan.p.K, N = kLanes<T>;
    const bool tokens = plan.along == Along::tokens;
    const std::int64_t width = round_up(plan.channel_block, N);
    const std::int64_t rows = tokens ? 1 : kGradientRows + 2 * (K - 1);
    const std::int64_t cols = tokens ? kSumRows + 2 * (K - 1) + 2 * N : width;
    for (auto* buffer : {&x, &ds, &out}) *buffer = ws.take<T>("rows", rows, cols);
    state = ws.take<T>("state", width);
    for (auto* each : {&taps, &reversed}) *each = ws.take<T>("taps", K + 1, tokens ? 0 : width);
    weight = ws.take<T>("taps", tokens ? 0 : K * width);
  }
  View<T, 2> x, ds, out;  ///< rows of x, of ds, and of s or dx
  View<T, 2> taps, reversed;
  View<T, 1> weight, state;
};

template <typename T>
struct ConvolutionGradientBuffers {
  ConvolutionGradientBuffers(Workspace& ws, const ConvolutionPlan& plan, bool has_sums, int threads) {
    if (has_sums) sums = ws.take<T>("sums", plan.row_blocks, plan.p.K + 1, round_up(plan.p.C, kLanes<T>));
    scratch = ws.take<std::byte>("threads", threads, count_bytes<ConvolutionGradientScratch<T>>(plan));
  }
  View<T, 3> sums;             ///< of row blocks: K rows of dweight and one of dbias
  View<std::byte, 2> scratch;  ///< a thread's ConvolutionGradientScratch
};

/// One thread's part.
template <typename T>
class ConvolutionGradientWorker {
 public:
  ConvolutionGradientWorker(const ConvolutionPlan& plan, const ConvolutionGradientBuffers<T>& shared, bool has_sums,
                            int thread)
      : plan_(plan),
        p_(plan.p),
        kernels_(tap_kernels<T>(plan.p.K)),
        shared_(shared),
        has_sums_(has_sums),
        writes_rows_(p_.gradients.dx.present() || p_.gradients.dstate.present()),
        scratch_(place_buffers<ConvolutionGradientScratch<T>>(shared.scratch.at(thread), plan)) {}

  /// All gradients of one block of rows and channels.
  void run_block(std::int64_t row_block, std::int64_t channel_block) {
    row_block_ = row_block;
    first_ = plan_.first_channel(channel_block);
    cols_ = plan_.channels(channel_block);
    padded_ = round_up(cols_, kLanes<T>);
    if (plan_.along == Along::channels && channel_block != loaded_block_) {
      load_taps(scratch_.taps, p_, first_, cols_, scratch_.weight.data);
      const std::int64_t width = scratch_.taps.shape[1];
      for (std::int64_t j = 0; j < p_.K; ++j)
        std::copy_n(scratch_.taps.at(j), width, scratch_.reversed.at(p_.K - 1 - j));
      std::fill_n(scratch_.reversed.at(p_.K), width, T{0});
      loaded_block_ = channel_block;
    }
    const std::int64_t summed = plan_.along == Along::channels ? padded_ : cols_;
    for (std::int64_t j = 0; has_sums_ && j <= p_.K; ++j) std::fill_n(sums(j), summed, T{0});
    const std::int64_t begin = row_block * plan_.row_block;
    p_.each_range(begin, std::min(begin + plan_.row_block, p_.rows()), [this](const ConvolutionRange& range) {
      plan_.along == Along::channels ? run_rows(range) : run_channels(range);
    });
  }

  /// dstate of a sequence without tokens, which leaves its state as it is.
  void pass_state(std::int64_t n, std::int64_t channel_block) const {
    const ConvolutionRange sequence = p_.sequence(n);
    if (sequence.T > 0) return;
    const HeadRows<const void> from(p_.incoming.dstate, n, 0);
    const HeadRows<void> to(p_.gradients.dstate, n, 0);
    const std::int64_t first = plan_.first_channel(channel_block), cols = plan_.channels(channel_block);
    std::fill_n(scratch_.state.data, cols, T{0});
    for (std::int64_t i = 0; i < p_.K - 1; ++i) {
      if (from.present()) load_row(scratch_.state.data, from, i, first, cols);
      store_row(to, scratch_.state.data, i, first, cols);
    }
  }

 private:
  /// Partial sums of the block that is worked on.
  T* sums(std::int64_t j) const { return shared_.sums.at(row_block_, j, first_); }

  /// The rows before token t whose gradients go with it: those of the old state.
  std::int64_t lead_of(std::int64_t t) const { return t == 0 && p_.gradients.dstate.present() ? p_.K - 1 : 0; }

  void run_rows(const ConvolutionRange& range) const {
    const SequenceReader x(p_.inputs.x, p_.inputs.state, range), dy(p_.incoming.dy, {}, range);
    const std::int64_t stride = scratch_.x.strides[0], past = p_.K - 1;
    for (std::int64_t t = range.begin; t < range.end; t += kGradientRows) {
      const std::int64_t rows = std::min(kGradientRows, range.end - t), lead = lead_of(t);
      const std::int64_t computed = std::min(rows + past, range.T - t);  // rows of ds from token t on, then zeros
      T* const ds = scratch_.ds.data + lead * stride;
      x.load_rows(scratch_.x.data, stride, t - past, computed + past, first_, cols_, padded_);
      dy.load_rows(scratch_.ds.data, stride, t - lead, lead + rows + past, first_, cols_, padded_);
      if (p_.silu()) {
        T* const s = scratch_.out.data;
        convolve_all_rows(kernels_, tap_rows(scratch_.taps, scratch_.x.data, s), computed);
        for (std::int64_t r = 0; r < computed; ++r)
          activation_backward(ds + r * stride, ds + r * stride, s + r * stride, padded_);
      }
      if (has_sums_) {
        kernels_.add_rows({sums(0), shared_.sums.strides[1], ds, stride, scratch_.x.data, stride, rows, padded_});
      }
      if (!writes_rows_) continue;
      convolve_all_rows(kernels_, tap_rows(scratch_.reversed, scratch_.ds.data, scratch_.out.data), lead + rows);
      for (std::int64_t u = t - lead; u < t + rows; ++u) store_gradient(range, u, scratch_.out.at(u - t + lead));
    }
  }

  /// y of the sums alone.
  ConvolvedRows<T, T> tap_rows(const View<T, 2>& taps, const T* x, T* y) const {
    const std::int64_t stride = scratch_.x.strides[0];
    return {taps.data, taps.strides[0], x, stride, y, stride, padded_, false};
  }

  /// Stores dx of token u, or where u < 0 dstate, with what the new state adds to it.
  void store_gradient(const ConvolutionRange& range, std::int64_t u, T* gradient) const {
    const std::int64_t i = u + p_.K - 1 - range.T;  // where row u stands in the new state
    if (i >= 0 && p_.incoming.dstate.present()) {
      T* HWY_RESTRICT added = scratch_.state.data;
      load_row(added, HeadRows<const void>(p_.incoming.dstate, range.n, 0), i, first_, cols_);
      for (std::int64_t c = 0; c < cols_; ++c) gradient[c] += added[c];
    }
    const GradientRow to = row_of(range, u);
    if (to.rows.present()) store_row(to.rows, gradient, to.row, first_, cols_);
  }

  struct GradientRow {
    HeadRows<void> rows;
    std::int64_t row;
  };
  GradientRow row_of(const ConvolutionRange& range, std::int64_t u) const {
    if (u < 0) return {HeadRows<void>(p_.gradients.dstate, range.n, 0), p_.K - 1 + u};
    return {HeadRows<void>(p_.gradients.dx, range.b, 0), range.t0 + u};
  }

  void run_channels(const ConvolutionRange& range) const {
    const SequenceReader x(p_.inputs.x, p_.inputs.state, range), dy(p_.incoming.dy, {}, range);
    for (std::int64_t c = first_; c < first_ + cols_; ++c) run_channel(range, x, dy, c);
  }

  void run_channel(const ConvolutionRange& range, const SequenceReader& x_reader, const SequenceReader& dy_reader,
                   std::int64_t c) const {
    const std::int64_t t = range.begin, n = range.end - t, past = p_.K - 1, lead = lead_of(t);
    const std::int64_t computed = std::min(n + past, range.T - t), padded = round_up(computed, kLanes<T>);
    T *const x = scratch_.x.data, *const ds = scratch_.ds.data + lead, *const out = scratch_.out.data;
    T taps[kMaxTaps + 1], reversed[kMaxTaps + 1];
    load_channel_taps(taps, p_, c);
    std::reverse_copy(taps, taps + p_.K, reversed);
    reversed[p_.K] = 0;
    x_reader.load_tokens(x, t - past, computed + past, c);
    std::fill(x + computed + past, x + padded + past, T{0});
    const std::int64_t end = round_up(lead + n, kLanes<T>) + past;  // of what is read of ds
    dy_reader.load_tokens(scratch_.ds.data, t - lead, lead + n + past, c);
    std::fill(ds + n + past, scratch_.ds.data + std::max(end, lead + padded), T{0});
    if (p_.silu()) {
      kernels_.tokens({taps, 0, x, 0, out, 0, padded, false});
      activation_backward(ds, ds, out, padded);
      std::fill(ds + computed, ds + padded, T{0});
    }
    if (has_sums_) {
      T own[kMaxTaps + 1] = {};
      kernels_.add_tokens({own, 0, ds, 0, x, 0, 0, n});
      for (std::int64_t j = 0; j <= p_.K; ++j) sums(j)[c - first_] += own[j];
    }
    if (!writes_rows_) return;
    kernels_.tokens({reversed, 0, scratch_.ds.data, 0, out, 0, round_up(lead + n, kLanes<T>), false});
    store_gradients(range, out, t - lead, lead + n, c);
  }

  /// Stores dx of tokens u … u + count of a channel, and dstate where they are before token 0.
  void store_gradients(const ConvolutionRange& range, T* gradient, std::int64_t u, std::int64_t count,
                       std::int64_t c) const {
    const std::int64_t past = p_.K - 1, into = std::max<std::int64_t>(range.T - past, u);  // in the new state from here
    if (p_.incoming.dstate.present() && into < u + count) {
      T added[kMaxTaps];
      const std::int64_t n = u + count - into;
      load_row(added, HeadRows<const void>(transposed(p_.incoming.dstate), range.n, 0), c, into + past - range.T, n);
      for (std::int64_t i = 0; i < n; ++i) gradient[into - u + i] += added[i];
    }
    const std::int64_t lead = u < 0 ? past : 0;
    if (lead > 0) store_row(HeadRows<void>(transposed(p_.gradients.dstate), range.n, 0), gradient, c, 0, lead);
    if (!p_.gradients.dx.present()) return;
    store_row(HeadRows<void>(transposed(p_.gradients.dx), range.b, 0), gradient + lead, c, range.t0 + u + lead,
              count - lead);
  }

  const ConvolutionPlan& plan_;
  const ShortConvolutionProblem& p_;
  const TapKernels<T>& kernels_;
  const ConvolutionGradientBuffers<T>& shared_;
  bool has_sums_, writes_rows_;
  ConvolutionGradientScratch<T> scratch_;
  std::int64_t row_block_ = 0;
  std::int64_t first_ = 0, cols_ = 0, padded_ = 0;  ///< channels of the block that is worked on
  std::int64_t loaded_block_ = -1;                  ///< whose taps lie in the scratch
};

inline constexpr std::int64_t kReducedChannels = 64;

/// dweight and dbias of a few channels: the partial sums, added up in their order.
template <typename T>
void reduce_sums(const ShortConvolutionProblem& p, const View<T, 3>& sums, std::int64_t first) {
  const std::int64_t cols = std::min(kReducedChannels, p.C - first);
  for (std::int64_t j = 0; j <= p.K; ++j) {
    double totals[kReducedChannels] = {};
    for (std::int64_t block = 0; block < sums.shape[0]; ++block) {
      const T* HWY_RESTRICT from = sums.at(block, j, first);
      for (std::int64_t c = 0; c < cols; ++c) totals[c] += static_cast<double>(from[c]);
    }
    const bool is_bias = j == p.K;
    const HeadRows<void> to(is_bias ? p.gradients.dbias : transposed(p.gradients.dweight), 0, 0);
    if (to.present()) store_row(to, totals, is_bias ? 0 : j, first, cols);
  }
}

template <typename T>
void short_convolution_backward_typed(const ShortConvolutionProblem& p) {
  const Along along = direction_of<T>(p);
  const ConvolutionPlan plan = plan_convolution(p, along, along == Along::tokens ? kTokensTasks : kChannelsTasks);
  const bool has_sums = p.gradients.dweight.present() || p.gradients.dbias.present();
  const std::int64_t tasks = plan.tasks();
  const std::int64_t states = p.gradients.dstate.present() ? p.N * plan.channel_blocks : 0;
  const std::int64_t reductions = has_sums ? divide_up(p.C, kReducedChannels) : 0;
  const int threads = static_cast<int>(std::clamp<std::int64_t>(std::max(tasks, states), 1, p.context.threads));
  const Placed<ConvolutionGradientBuffers<T>> shared(plan, has_sums, threads);
  Cancellation cancellation(p.context);
#pragma omp parallel num_threads(threads) default(none) \
    shared(p, plan, shared, has_sums, tasks, states, reductions, cancellation)
  {
    ConvolutionGradientWorker<T> worker(plan, *shared, has_sums, omp_get_thread_num());
#pragma omp for schedule(dynamic) nowait
    for (std::int64_t n = 0; n < states; ++n) {
      if (!cancellation.requested()) worker.pass_state(n / plan.channel_blocks, n % plan.channel_blocks);
    }
#pragma omp for schedule(dynamic)
    for (std::int64_t n = 0; n < tasks; ++n) {
      if (!cancellation.requested()) worker.run_block(n % plan.row_blocks, n / plan.row_blocks);
    }
#pragma omp for schedule(static)
    for (std::int64_t n = 0; n < reductions; ++n) {
      if (!cancellation.requested()) reduce_sums(p, shared->sums, n * kReducedChannels);
    }
  }
  cancellation.throw_if_seen();
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate {

HEADGATE_TARGET_TABLE(short_convolution_backward_typed);

void cpu_short_convolution_backward(const ShortConvolutionProblem& problem) {
  HEADGATE_FOR_DTYPE(short_convolution_backward_typed, problem.dtype, problem.context.target)(problem);
}

}  // namespace headgate
#endif  // HWY_ONCE
