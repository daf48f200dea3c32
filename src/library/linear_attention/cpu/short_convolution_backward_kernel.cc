// SPDX-License-Identifier: Apache-2.0
// Computes the backward pass of the short convolution in blocks of tokens. Each block also computes ds = dy · act′(s)
// of the K − 1 tokens after the block, so that blocks are independent. The blocks' partial sums of dweight and dbias
// are added up in ascending order.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "library/core/cancellation.hpp"
#include "library/core/dispatch.hpp"
#include "library/core/team.hpp"
#include "library/core/workspace.hpp"
#include "library/linear_attention/short_convolution.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "library/linear_attention/cpu/short_convolution_backward_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// The headers below are compiled once per target, so foreach_target.h must come first.
#include "library/linear_attention/cpu/convolution_plan-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Number of rows in a block. dweight and dbias are first summed within each block, and then over blocks. Their last
/// bits therefore depend on this size.
inline constexpr std::int64_t kSumRows = 256;
inline constexpr TaskSizes kChannelsTasks{kSumRows, kSumRows, 64, 512};
inline constexpr TaskSizes kTokensTasks{kSumRows, kSumRows, 1, 16};
/// Number of rows (tokens) in a strip if vectors run along channels.
inline constexpr std::int64_t kGradientRows = 32;

/// Scratch buffers of one thread. If vectors run along channels, x, ds and out hold several rows of channels. If
/// vectors run along tokens, each of them holds the tokens of one channel.
template <typename T>
struct ConvolutionGradientScratch {
  ConvolutionGradientScratch(Workspace& ws, const ConvolutionPlan& plan) {
    const std::int64_t K = plan.p.K, N = kLanes<T>;
    const bool tokens = plan.along == Along::tokens;
    const std::int64_t width = round_up(plan.channel_block, N);
    const std::int64_t rows = tokens ? 1 : kGradientRows + K - 1;
    const std::int64_t cols = tokens ? kSumRows + 2 * (K - 1) + 2 * N : width;
    for (auto* buffer : {&x, &ds, &out}) *buffer = ws.take<T>("rows", rows, cols);
    state = ws.take<T>("state", width);
    taps = ws.take<T>("taps", K + 1, tokens ? 0 : width);
    weight = ws.take<T>("taps", tokens ? 0 : K * width);
    window = ws.take<T>("window", K - 1, tokens ? 0 : width);
  }
  /// `ds` first holds dy and later ds. `out` first holds s, the sums before the activation, and later dx.
  View<T, 2> x, ds, out;
  View<T, 2> taps, window;
  View<T, 1> weight, state;
};

template <typename T>
struct ConvolutionGradientBuffers {
  ConvolutionGradientBuffers(Workspace& ws, const ConvolutionPlan& plan, bool has_sums, int threads) {
    if (has_sums) sums = ws.take<T>("sums", plan.row_blocks, plan.p.K + 1, round_up(plan.p.C, kLanes<T>));
    scratch = ws.take<std::byte>("threads", threads, count_bytes<ConvolutionGradientScratch<T>>(plan));
  }
  View<T, 3> sums;             ///< (row blocks,K+1,padded C) sums of each row block: K rows of dweight and one of dbias
  View<std::byte, 2> scratch;  ///< (threads, bytes) memory for the ConvolutionGradientScratch of each thread
};

/// Returns whether the kernels can load vectors of channels from x and dy and store them to dx without copies.
template <typename T>
bool can_run_backward_in_place(const ShortConvolutionProblem& p) {
  const bool has_vectors = p.dtype == dtype_of<T>() || p.dtype == dtype_of<HalfOf<T>>();
  return has_vectors && p.inputs.x.strides[3] == 1 && p.incoming.dy.strides[3] == 1 &&
         (!p.gradients.dx.present() || p.gradients.dx.strides[3] == 1);
}

/// Computes the gradients for the blocks of rows and channels that one thread takes.
template <typename T>
class ConvolutionGradientWorker {
 public:
  ConvolutionGradientWorker(const ConvolutionPlan& plan, const ConvolutionGradientBuffers<T>& shared, bool has_sums,
                            int thread)
      : plan_(plan),
        p_(plan.p),
        kernels_(tap_kernels<BackwardTapKernels<T>>(plan.p.K)),
        shared_(shared),
        has_sums_(has_sums),
        writes_rows_(p_.gradients.dx.present() || p_.gradients.dstate.present()),
        in_place_(can_run_backward_in_place<T>(p_)),
        scratch_(place_buffers<ConvolutionGradientScratch<T>>(shared.scratch.at(thread), plan)) {}

  /// Computes all gradients of one block of rows and channels.
  void run_block(std::int64_t row_block, std::int64_t channel_block) {
    row_block_ = row_block;
    first_ = plan_.first_channel(channel_block);
    cols_ = plan_.channels(channel_block);
    padded_ = round_up(cols_, kLanes<T>);
    if (plan_.along == Along::channels && channel_block != loaded_block_) {
      load_taps(scratch_.taps, p_, first_, cols_, scratch_.weight.data);
      loaded_block_ = channel_block;
    }
    const std::int64_t summed = plan_.along == Along::channels ? padded_ : cols_;
    for (std::int64_t j = 0; has_sums_ && j <= p_.K; ++j) std::fill_n(sums(j), summed, T{0});
    const std::int64_t begin = row_block * plan_.row_block;
    p_.each_range(begin, std::min(begin + plan_.row_block, p_.rows()), [this](const ConvolutionRange& range) {
      plan_.along == Along::channels ? run_rows(range) : run_channels(range);
    });
  }

  /// Writes dstate of a sequence without tokens: a copy of the incoming dstate, or zeros without one.
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
  /// Returns row j of the current row block's sums, at the current channels.
  T* sums(std::int64_t j) const { return shared_.sums.at(row_block_, j, first_); }

  /// Returns how many rows before token t belong to a block that begins at t. If t is 0 and dstate is requested, these
  /// are the K − 1 rows of the old state, whose gradients the block computes. Otherwise there are none.
  std::int64_t lead_of(std::int64_t t) const { return t == 0 && p_.gradients.dstate.present() ? p_.K - 1 : 0; }

  /// A strip of tokens [t, t + rows). `is_own` tells whether these tokens belong to the current block of rows. The
  /// block also visits the K − 1 tokens after its end, because dx of its last tokens depends on them.
  struct Strip {
    std::int64_t t, rows;
    bool is_own;
    std::int64_t first_dx;  ///< first token for which this block writes dx
  };

  void run_rows(const ConvolutionRange& range) const {
    const std::int64_t past = p_.K - 1, first_dx = range.begin - lead_of(range.begin);
    for (std::int64_t j = 0; j < past; ++j) std::fill_n(scratch_.window.at(j), padded_, T{0});
    for (std::int64_t t = range.begin; t < range.end; t += kGradientRows)
      run_strip(range, {t, std::min(kGradientRows, range.end - t), true, first_dx});
    if (!writes_rows_) return;
    const std::int64_t inside = std::min(past, range.T - range.end);
    if (inside > 0) run_strip(range, {range.end, inside, false, first_dx});
    if (inside < past) run_strip(range, {range.end + inside, past - inside, false, first_dx});
  }

  void run_strip(const ConvolutionRange& range, const Strip& strip) const {
    std::int64_t done = 0;
    if (in_place_ && strip.t >= p_.K - 1 && strip.t + strip.rows <= range.T) {
      done = cols_ / kLanes<T> * kLanes<T>;
      p_.dtype == dtype_of<T>() ? strip_in_place(kernels_.gradient_rows, range, strip, done)
                                : strip_in_place(kernels_.half_gradient_rows, range, strip, done);
    }
    if (done < cols_) buffered_strip(range, strip, done);
  }

  /// Computes `n` channels of a strip directly in the tensors. The strip must not read rows of the old state. It must
  /// not write dx of rows that the new state holds.
  template <typename Stored>
  void strip_in_place(void (*convolve)(const GradientRows<T, Stored>&), const ConvolutionRange& range,
                      const Strip& strip, std::int64_t n) const {
    const HeadRows<const void> x(p_.inputs.x, range.b, 0), dy(p_.incoming.dy, range.b, 0);
    const HeadRows<void> dx(p_.gradients.dx, range.b, 0);
    const std::int64_t row = range.t0 + strip.t, past = p_.K - 1;
    GradientRows<T, Stored> rows = gradient_rows<Stored>(range, strip, 0);
    rows.x = x.at<Stored>(row - past, first_, n);
    rows.x_stride = x.row_stride;
    rows.dy = dy.at<Stored>(row, first_, n);
    rows.dy_stride = dy.row_stride;
    if (dx.present()) {
      rows.dx = dx.at<Stored>(row - past, first_, n);
      rows.dx_stride = dx.row_stride;
    } else {
      rows.skipped = strip.rows;  // skips all rows: dx is absent, and this strip has no row of dstate
    }
    rows.n = n;
    convolve(rows);
  }

  /// Computes the channels of the strip after the first `done`. Copies rows of the tensors to and from buffers.
  void buffered_strip(const ConvolutionRange& range, const Strip& strip, std::int64_t done) const {
    const SequenceReader x(p_.inputs.x, p_.inputs.state, range), dy(p_.incoming.dy, {}, range);
    const std::int64_t stride = scratch_.x.strides[0], past = p_.K - 1;
    const std::int64_t first = first_ + done, cols = cols_ - done, padded = round_up(cols, kLanes<T>);
    GradientRows<T, T> rows = gradient_rows<T>(range, strip, done);
    x.load_rows(scratch_.x.data, stride, strip.t - past, strip.rows + past, first, cols, padded);
    dy.load_rows(scratch_.ds.data, stride, strip.t, strip.rows, first, cols, padded);
    rows.x = scratch_.x.data;
    rows.dy = scratch_.ds.data;
    rows.dx = scratch_.out.data;
    rows.x_stride = rows.dy_stride = rows.dx_stride = stride;
    rows.n = padded;
    kernels_.gradient_rows(rows);
    for (std::int64_t r = rows.skipped; r < strip.rows; ++r)
      store_gradient(range, strip.t - past + r, scratch_.out.at(r), first, cols);
  }

  /// Returns the operands of a strip for the channels after the first `done`. The caller must set n and the rows of x,
  /// dy and dx.
  template <typename Stored>
  GradientRows<T, Stored> gradient_rows(const ConvolutionRange& range, const Strip& strip, std::int64_t done) const {
    GradientRows<T, Stored> rows{};
    rows.taps = scratch_.taps.data + done;
    rows.taps_stride = scratch_.taps.strides[0];
    if (has_sums_ && strip.is_own) rows.sums = sums(0) + done;
    rows.sums_stride = shared_.sums.strides[1];
    rows.window = scratch_.window.data + done;
    rows.window_stride = scratch_.window.strides[0];
    rows.rows = strip.rows;
    rows.skipped =
        writes_rows_ ? std::clamp<std::int64_t>(strip.first_dx - strip.t + p_.K - 1, 0, strip.rows) : strip.rows;
    rows.silu = p_.silu() && strip.t < range.T;  // ds is 0 after the end of the sequence
    return rows;
  }

  /// Stores `gradient`, the gradient of the row of token u. The row belongs to dx if u ≥ 0, otherwise to dstate. If the
  /// new state also holds the row of token u, first adds the incoming dstate of this row.
  void store_gradient(const ConvolutionRange& range, std::int64_t u, T* gradient, std::int64_t first,
                      std::int64_t cols) const {
    const std::int64_t i = u + p_.K - 1 - range.T;  // index of row u in the new state
    if (i >= 0 && p_.incoming.dstate.present()) {
      T* HWY_RESTRICT added = scratch_.state.data;
      load_row(added, HeadRows<const void>(p_.incoming.dstate, range.n, 0), i, first, cols);
      for (std::int64_t c = 0; c < cols; ++c) gradient[c] += added[c];
    }
    const GradientRow to = row_of(range, u);
    if (to.rows.present()) store_row(to.rows, gradient, to.row, first, cols);
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
    const std::int64_t end = round_up(lead + n, kLanes<T>) + past;  // the kernels read ds up to this element
    dy_reader.load_tokens(scratch_.ds.data, t - lead, lead + n + past, c);
    std::fill(ds + n + past, scratch_.ds.data + std::max(end, lead + padded), T{0});
    if (p_.silu()) {
      kernels_.tokens({taps, 0, x, 0, out, 0, padded, false});
      activation_backward(ds, ds, out, padded);
      std::fill(ds + computed, ds + padded, T{0});
    }
    if (has_sums_) {
      T own[kMaxTaps + 1] = {};
      kernels_.add_tokens({own, ds, x, n});
      for (std::int64_t j = 0; j <= p_.K; ++j) sums(j)[c - first_] += own[j];
    }
    if (!writes_rows_) return;
    kernels_.tokens({reversed, 0, scratch_.ds.data, 0, out, 0, round_up(lead + n, kLanes<T>), false});
    store_gradients(range, out, t - lead, lead + n, c);
  }

  /// Stores the gradients of tokens u … u + count − 1 of one channel: in dstate for tokens before 0, in dx for the
  /// others. Some of the tokens may also be rows of the new state. First adds the incoming dstate to the gradients of
  /// these tokens.
  void store_gradients(const ConvolutionRange& range, T* gradient, std::int64_t u, std::int64_t count,
                       std::int64_t c) const {
    // `into` is the first token, from u on, that is also a row of the new state.
    const std::int64_t past = p_.K - 1, into = std::max<std::int64_t>(range.T - past, u);
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
  const BackwardTapKernels<T>& kernels_;
  const ConvolutionGradientBuffers<T>& shared_;
  bool has_sums_, writes_rows_, in_place_;
  ConvolutionGradientScratch<T> scratch_;
  std::int64_t row_block_ = 0;
  std::int64_t first_ = 0, cols_ = 0, padded_ = 0;  ///< first channel and number of channels of the current block
  std::int64_t loaded_block_ = -1;                  ///< channel block whose taps the scratch holds; −1 for none
};

inline constexpr std::int64_t kReducedChannels = 64;

/// Computes dweight and dbias of channels [first, first + kReducedChannels). Adds up the sums of the row blocks in
/// ascending order.
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
  run_team(threads, [&](const Team& team) {
    ConvolutionGradientWorker<T> worker(plan, *shared, has_sums, team.thread());
    team.in_turn_nowait(states, [&](std::int64_t n) {
      if (!cancellation.requested()) worker.pass_state(n / plan.channel_blocks, n % plan.channel_blocks);
    });
    team.in_turn(tasks, [&](std::int64_t n) {
      if (!cancellation.requested()) worker.run_block(n % plan.row_blocks, n / plan.row_blocks);
    });
    team.in_parts(reductions, [&](std::int64_t n) {
      if (!cancellation.requested()) reduce_sums(p, shared->sums, n * kReducedChannels);
    });
  });
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
