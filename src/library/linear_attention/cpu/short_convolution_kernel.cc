// SPDX-License-Identifier: Apache-2.0
// Computes the forward pass of the short convolution. Reads x once and writes y once. Vectors run along channels or
// along tokens.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "library/core/cancellation.hpp"
#include "library/core/dispatch.hpp"
#include "library/core/team.hpp"
#include "library/core/workspace.hpp"
#include "library/linear_attention/short_convolution.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "library/linear_attention/cpu/short_convolution_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// The headers below are compiled once per target, so foreach_target.h must come first.
#include "library/linear_attention/cpu/convolution_plan-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Limits of the task sizes if vectors run along channels:
///   - kWideTasks: for kernels that read x and write y in place.
///   - kBufferedTasks: for kernels that copy rows to buffers. The buffers of such a task stay in the L2 cache.
inline constexpr TaskSizes kWideTasks{32, 256, 64, 8192};
inline constexpr TaskSizes kBufferedTasks{32, 256, 64, 1024};
/// Number of channels in a task that computes whole sequences. The task's buffers then stay in the L1 cache.
inline constexpr std::int64_t kSequenceChannels = 256;
/// Tasks compute whole sequences if the average length of a call's sequences is at most this number.
inline constexpr std::int64_t kShortSequence = kStripRows;
/// Limits of the task sizes if vectors run along tokens.
inline constexpr TaskSizes kTokensTasks{2048, 2048, 1, 16};
/// Number of tokens that are copied to a buffer at a time:
///   - kHeadTokens: in kernels that work in place. They copy only the first tokens of a sequence, whose y depends on
///     the state.
///   - kBufferedTokens: in all other kernels.
inline constexpr std::int64_t kHeadTokens = 64;
inline constexpr std::int64_t kBufferedTokens = 256;

/// Returns whether the kernels can load vectors from x and store them to y without copies.
template <typename T>
bool can_run_in_place(const ShortConvolutionProblem& p, Along along) {
  const std::size_t dim = along == Along::tokens ? 2 : 3;
  const bool has_vectors = p.dtype == dtype_of<T>() || p.dtype == dtype_of<HalfOf<T>>();
  return has_vectors && p.inputs.x.strides[dim] == 1 && p.outputs.y.strides[dim] == 1;
}

/// Returns whether the kernels can load and store states without copies. There must be no snapshots, and both states
/// must have dense rows of x's dtype.
inline bool can_use_states_in_place(const ShortConvolutionProblem& p) {
  const auto fits = [&p](const ConstTensorView& state) { return state.dtype == p.dtype && state.strides[3] == 1; };
  return p.snapshots() == 0 && fits(p.inputs.state) && fits(p.outputs.state);
}

/// Scratch buffers of one thread.
template <typename T>
struct ConvolutionScratch {
  ConvolutionScratch(Workspace& ws, const ConvolutionPlan& plan) {
    const std::int64_t K = plan.p.K;
    const std::int64_t width = round_up(plan.channel_block, kLanes<T>);
    state = ws.take<T>("state", width);
    if (plan.along == Along::tokens) {
      x = ws.take<T>("x", 1, kBufferedTokens + K);
      y = ws.take<T>("y", 1, kBufferedTokens);
      return;
    }
    taps = ws.take<T>("taps", K + 1, width);
    weight = ws.take<T>("taps", K * width);
    x = ws.take<T>("x", kStripRows + K - 1, width);
    y = ws.take<T>("y", kStripRows, width);
  }
  View<T, 2> taps, x, y;
  View<T, 1> weight, state;
};

template <typename T>
struct ConvolutionBuffers {
  ConvolutionBuffers(Workspace& ws, const ConvolutionPlan& plan, int threads) {
    scratch = ws.take<std::byte>("threads", threads, count_bytes<ConvolutionScratch<T>>(plan));
  }
  View<std::byte, 2> scratch;  ///< (threads, bytes) memory for the ConvolutionScratch of each thread
};

/// Computes y for the blocks of rows and channels that one thread takes.
template <typename T>
class ConvolutionWorker {
 public:
  using Half = HalfOf<T>;

  ConvolutionWorker(const ConvolutionPlan& plan, const ConvolutionBuffers<T>& shared, int thread)
      : plan_(plan),
        p_(plan.p),
        kernels_(tap_kernels<ForwardTapKernels<T>>(plan.p.K)),
        scratch_(place_buffers<ConvolutionScratch<T>>(shared.scratch.at(thread), plan)),
        in_place_(can_run_in_place<T>(plan.p, plan.along)),
        states_in_place_(in_place_ && can_use_states_in_place(plan.p)) {}

  /// Computes y of one block of rows and channels.
  void run_block(std::int64_t row_block, std::int64_t channel_block) {
    select_channels(channel_block);
    const std::int64_t begin = row_block * plan_.row_block;
    p_.each_range(begin, std::min(begin + plan_.row_block, p_.rows()), [this](const ConvolutionRange& range) {
      plan_.along == Along::channels ? run_rows(range) : run_channels(range);
    });
  }

  /// Computes y, the snapshots and the new state of one sequence, for one block of channels. If the sequence is short,
  /// reads each row of x and of the old state only once.
  void run_sequence(std::int64_t n, std::int64_t channel_block) {
    select_channels(channel_block);
    const ConvolutionRange sequence = p_.sequence(n);
    if (sequence.T > kShortSequence) {
      run_rows(sequence);
      return write_states(n, channel_block);
    }
    if (sequence.T == 1 && states_in_place_ && cols_ % kLanes<T> == 0) {
      return p_.dtype == dtype_of<T>() ? token_in_place(kernels_.token, sequence)
                                       : token_in_place(kernels_.half_token, sequence);
    }
    const SequenceReader reader(p_.inputs.x, p_.inputs.state, sequence);
    buffered_strip(reader, sequence, 0, sequence.T, 0);
    const auto store_state = [&](const HeadRows<void>& to, std::int64_t length) {
      for (std::int64_t i = 0; i < p_.K - 1; ++i) store_row(to, scratch_.x.at(length + i), i, first_, cols_);
    };
    for (std::int64_t m = 0; m < p_.snapshots(); ++m)
      store_state({p_.outputs.snapshots, n * p_.snapshots() + m, 0}, snapshot_length(p_.inputs.snapshot_lengths, n, m));
    if (p_.outputs.state.present()) store_state({p_.outputs.state, n, 0}, sequence.T);
  }

  /// Writes the snapshots and then the new state of one sequence, for one block of channels. The new state may be the
  /// old one, updated in place: each old row is read before it is overwritten.
  void write_states(std::int64_t n, std::int64_t channel_block) const {
    const ConvolutionRange sequence = p_.sequence(n);
    for (std::int64_t m = 0; m < p_.snapshots(); ++m) {
      const std::int64_t length = snapshot_length(p_.inputs.snapshot_lengths, n, m);
      write_state({p_.outputs.snapshots, n * p_.snapshots() + m, 0}, sequence, length, channel_block);
    }
    if (p_.outputs.state.present()) write_state({p_.outputs.state, n, 0}, sequence, sequence.T, channel_block);
  }

 private:
  void select_channels(std::int64_t channel_block) {
    first_ = plan_.first_channel(channel_block);
    cols_ = plan_.channels(channel_block);
    if (plan_.along == Along::tokens || channel_block == loaded_block_) return;
    load_taps(scratch_.taps, p_, first_, cols_, scratch_.weight.data);
    loaded_block_ = channel_block;
  }

  /// Writes the state after `length` tokens of a sequence: the K−1 rows before the next token.
  void write_state(const HeadRows<void>& to, const ConvolutionRange& sequence, std::int64_t length,
                   std::int64_t channel_block) const {
    const SequenceReader reader(p_.inputs.x, p_.inputs.state, sequence);
    const std::int64_t first = plan_.first_channel(channel_block), cols = plan_.channels(channel_block);
    for (std::int64_t i = 0; i < p_.K - 1; ++i) {
      reader.load_rows(scratch_.state.data, 0, length - (p_.K - 1) + i, 1, first, cols, cols);
      store_row(to, scratch_.state.data, i, first, cols);
    }
  }

  void run_rows(const ConvolutionRange& range) const {
    const SequenceReader reader(p_.inputs.x, p_.inputs.state, range);
    for (std::int64_t t = range.begin; t < range.end; t += kStripRows) {
      const std::int64_t rows = std::min(kStripRows, range.end - t);
      std::int64_t done = 0;
      if (in_place_ && rows == kStripRows && t >= p_.K - 1) {
        done = cols_ / kLanes<T> * kLanes<T>;
        p_.dtype == dtype_of<T>() ? strip_in_place(kernels_.strip, range, t, done)
                                  : strip_in_place(kernels_.half_strip, range, t, done);
      }
      if (done < cols_) buffered_strip(reader, range, t, rows, done);
    }
  }

  /// Computes y and the new state of a sequence with one token. Reads and writes the tensors directly, without buffers.
  template <typename Stored>
  void token_in_place(void (*convolve)(const ConvolvedToken<T, Stored>&), const ConvolutionRange& sequence) const {
    ConvolvedToken<T, Stored> token;
    token.taps = scratch_.taps.data;
    token.taps_stride = scratch_.taps.strides[0];
    const HeadRows<const void> old_state(p_.inputs.state, sequence.n, 0);
    const HeadRows<void> new_state(p_.outputs.state, sequence.n, 0);
    for (std::int64_t i = 0; i < p_.K - 1; ++i) {
      token.rows[i] = old_state.at<Stored>(i, first_, cols_);
      token.new_rows[i] = new_state.at<Stored>(i, first_, cols_);
    }
    token.rows[p_.K - 1] = HeadRows<const void>(p_.inputs.x, sequence.b, 0).at<Stored>(sequence.t0, first_, cols_);
    token.y = HeadRows<void>(p_.outputs.y, sequence.b, 0).at<Stored>(sequence.t0, first_, cols_);
    token.n = cols_;
    token.silu = p_.silu();
    convolve(token);
  }

  /// Computes the first `n` channels of a strip of kStripRows tokens. Reads x and writes y directly, without buffers.
  template <typename Stored>
  void strip_in_place(void (*convolve)(const ConvolvedRows<T, Stored>&), const ConvolutionRange& range, std::int64_t t,
                      std::int64_t n) const {
    const HeadRows<const void> x(p_.inputs.x, range.b, 0);
    const HeadRows<void> y(p_.outputs.y, range.b, 0);
    const std::int64_t row = range.t0 + t;
    const View<T, 2>& taps = scratch_.taps;
    convolve({taps.data, taps.strides[0], x.at<Stored>(row - (p_.K - 1), first_, n), x.row_stride,
              y.at<Stored>(row, first_, n), y.row_stride, n, p_.silu()});
  }

  /// Computes the channels of the strip after the first `done`. Copies x to a buffer, and y from a buffer.
  void buffered_strip(const SequenceReader& reader, const ConvolutionRange& range, std::int64_t t, std::int64_t rows,
                      std::int64_t done) const {
    const std::int64_t cols = cols_ - done, padded = round_up(cols, kLanes<T>);
    const std::int64_t stride = scratch_.x.strides[0];
    reader.load_rows(scratch_.x.data, stride, t - (p_.K - 1), rows + p_.K - 1, first_ + done, cols, padded);
    convolve_all_rows(kernels_,
                      {scratch_.taps.data + done, scratch_.taps.strides[0], scratch_.x.data, stride, scratch_.y.data,
                       stride, padded, p_.silu()},
                      rows);
    const HeadRows<void> y(p_.outputs.y, range.b, 0);
    for (std::int64_t r = 0; r < rows; ++r) store_row(y, scratch_.y.at(r), range.t0 + t + r, first_ + done, cols);
  }

  void run_channels(const ConvolutionRange& range) const {
    const SequenceReader reader(p_.inputs.x, p_.inputs.state, range);
    for (std::int64_t c = first_; c < first_ + cols_; ++c) {
      T taps[kMaxTaps + 1];
      load_channel_taps(taps, p_, c);
      for (std::int64_t t = range.begin; t < range.end;) {
        const std::int64_t left = range.end - t;
        const bool starts = t < p_.K - 1;
        if (in_place_ && !starts && left >= kLanes<T>) {
          const std::int64_t n = left / kLanes<T> * kLanes<T>;
          p_.dtype == dtype_of<T>() ? tokens_in_place(kernels_.tokens, taps, range, t, n, c)
                                    : tokens_in_place(kernels_.half_tokens, taps, range, t, n, c);
          t += n;
        } else {
          const std::int64_t n = std::min(left, in_place_ && starts ? kHeadTokens : kBufferedTokens);
          buffered_tokens(reader, taps, range, t, n, c);
          t += n;
        }
      }
    }
  }

  template <typename Stored>
  void tokens_in_place(void (*convolve)(const ConvolvedRows<T, Stored>&), const T* taps, const ConvolutionRange& range,
                       std::int64_t t, std::int64_t n, std::int64_t c) const {
    const HeadRows<const void> x(transposed(p_.inputs.x), range.b, 0);
    const HeadRows<void> y(transposed(p_.outputs.y), range.b, 0);
    const std::int64_t row = range.t0 + t;
    convolve({taps, 0, x.at<Stored>(c, row - (p_.K - 1), n + p_.K - 1), 0, y.at<Stored>(c, row, n), 0, n, p_.silu()});
  }

  void buffered_tokens(const SequenceReader& reader, const T* taps, const ConvolutionRange& range, std::int64_t t,
                       std::int64_t n, std::int64_t c) const {
    const std::int64_t padded = round_up(n, kLanes<T>);
    reader.load_tokens(scratch_.x.data, t - (p_.K - 1), n + p_.K - 1, c);
    std::fill(scratch_.x.data + n + p_.K - 1, scratch_.x.data + padded + p_.K - 1, T{0});
    kernels_.tokens({taps, 0, scratch_.x.data, 0, scratch_.y.data, 0, padded, p_.silu()});
    store_row(HeadRows<void>(transposed(p_.outputs.y), range.b, 0), scratch_.y.data, c, range.t0 + t, n);
  }

  const ConvolutionPlan& plan_;
  const ShortConvolutionProblem& p_;
  const ForwardTapKernels<T>& kernels_;
  ConvolutionScratch<T> scratch_;
  bool in_place_;                      ///< whether x and y can be read and written in place
  bool states_in_place_;               ///< whether the states can also be read and written in place
  std::int64_t first_ = 0, cols_ = 0;  ///< first channel and number of channels of the current block
  std::int64_t loaded_block_ = -1;     ///< channel block whose taps the scratch holds; −1 for none
};

/// Computes y in blocks of rows and channels, and then writes the states.
template <typename T>
void convolve_in_blocks(const ConvolutionPlan& plan, Cancellation& cancellation) {
  const ShortConvolutionProblem& p = plan.p;
  const std::int64_t tasks = plan.tasks();
  const std::int64_t states = p.states() > 0 ? p.N * plan.channel_blocks : 0;
  const int threads = static_cast<int>(std::clamp<std::int64_t>(std::max(tasks, states), 1, p.context.threads));
  const Placed<ConvolutionBuffers<T>> shared(plan, threads);
  run_team(threads, [&](const Team& team) {
    ConvolutionWorker<T> worker(plan, *shared, team.thread());
    // in_turn() waits for all threads. The old states have thus been read before write_states() overwrites them.
    team.in_turn(tasks, [&](std::int64_t n) {
      if (!cancellation.requested()) worker.run_block(n % plan.row_blocks, n / plan.row_blocks);
    });
    team.in_parts_nowait(states, [&](std::int64_t n) {
      if (!cancellation.requested()) worker.write_states(n / plan.channel_blocks, n % plan.channel_blocks);
    });
  });
}

/// Computes short sequences. A task computes y and the states of one sequence, for one block of channels. A thread
/// takes the same channels in each call. States that are updated in place then stay in the caches of one core.
template <typename T>
void convolve_sequences(const ConvolutionPlan& plan, Cancellation& cancellation) {
  const ShortConvolutionProblem& p = plan.p;
  const std::int64_t tasks = p.N * plan.channel_blocks;
  const int threads = static_cast<int>(std::clamp<std::int64_t>(tasks, 1, p.context.threads));
  const Placed<ConvolutionBuffers<T>> shared(plan, threads);
  run_team(threads, [&](const Team& team) {
    ConvolutionWorker<T> worker(plan, *shared, team.thread());
    team.in_parts_nowait(tasks, [&](std::int64_t n) {
      if (!cancellation.requested()) worker.run_sequence(n % p.N, n / p.N);
    });
  });
}

template <typename T>
void short_convolution_typed(const ShortConvolutionProblem& p) {
  Cancellation cancellation(p.context);
  if (p.rows() <= p.N * kShortSequence) {
    convolve_sequences<T>(plan_sequences(p, kSequenceChannels), cancellation);
  } else {
    const Along along = direction_of<T>(p);
    const TaskSizes& channel_tasks = can_run_in_place<T>(p, along) ? kWideTasks : kBufferedTasks;
    const TaskSizes& sizes = along == Along::tokens ? kTokensTasks : channel_tasks;
    convolve_in_blocks<T>(plan_convolution(p, along, sizes), cancellation);
  }
  cancellation.throw_if_seen();
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate {

HEADGATE_TARGET_TABLE(short_convolution_typed);

void cpu_short_convolution(const ShortConvolutionProblem& problem) {
  HEADGATE_FOR_DTYPE(short_convolution_typed, problem.dtype, problem.context.target)(problem);
}

}  // namespace headgate
#endif  // HWY_ONCE
