// SPDX-License-Identifier: Apache-2.0
// Divides a short convolution into tasks, and loads its operands into dense buffers; included once per Highway target.
#if defined(HEADGATE_LINEAR_ATTENTION_CONVOLUTION_PLAN_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_LINEAR_ATTENTION_CONVOLUTION_PLAN_INL_
#undef HEADGATE_LINEAR_ATTENTION_CONVOLUTION_PLAN_INL_
#else
#define HEADGATE_LINEAR_ATTENTION_CONVOLUTION_PLAN_INL_
#endif

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "library/core/head_rows-inl.hpp"
#include "library/core/view.hpp"
#include "library/linear_attention/cpu/convolution_rows-inl.hpp"
#include "library/linear_attention/short_convolution.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Dimension of x along which a vector register holds consecutive elements.
enum class Along { channels, tokens };

/// Divides a convolution into tasks. Each task computes a block of rows (tokens) and a block of channels. Rows of all
/// batches are numbered consecutively.
struct ConvolutionPlan {
  const ShortConvolutionProblem& p;
  Along along;
  std::int64_t row_block, row_blocks;
  std::int64_t channel_block, channel_blocks;

  std::int64_t tasks() const { return row_blocks * channel_blocks; }
  std::int64_t first_channel(std::int64_t block) const { return block * channel_block; }
  std::int64_t channels(std::int64_t block) const { return std::min(channel_block, p.C - first_channel(block)); }
};

/// Returns the dimension of x with the smaller stride. Returns channels if sequences are short, because a vector of
/// tokens must not cross sequences.
template <typename T>
Along direction_of(const ShortConvolutionProblem& p) {
  const Shape& strides = p.inputs.x.strides;
  const bool long_sequences = p.rows() / std::max<std::int64_t>(p.N, 1) >= 4 * kLanes<T>;
  return long_sequences && std::abs(strides[2]) < std::abs(strides[3]) ? Along::tokens : Along::channels;
}

/// Returns Along::channels for short sequences, because a vector of tokens must not cross sequences. Otherwise, returns
/// the dimension of x with the smaller stride.
struct TaskSizes {
  std::int64_t least_rows, most_rows;
  std::int64_t least_channels, most_channels;
};

/// Plans the tasks. If there are too few tasks, reduces the rows of a task before its channels: the channels of a row
/// are contiguous in memory.
inline ConvolutionPlan plan_convolution(const ShortConvolutionProblem& p, Along along, const TaskSizes& sizes) {
  const std::int64_t wanted = 4 * std::int64_t{p.context.threads};  // tasks
  const std::int64_t rows = round_up(divide_up(p.rows(), wanted), sizes.least_rows);
  const std::int64_t row_block = std::clamp(rows, sizes.least_rows, sizes.most_rows);
  const std::int64_t row_blocks = divide_up(p.rows(), row_block);
  const std::int64_t share = divide_up(p.C, divide_up(wanted, std::max<std::int64_t>(row_blocks, 1)));
  const std::int64_t channels =
      std::clamp(round_up(share, sizes.least_channels), sizes.least_channels, sizes.most_channels);
  return {p, along, row_block, row_blocks, channels, divide_up(p.C, channels)};
}

/// Plans tasks that each compute all tokens of one sequence, for one block of channels.
inline ConvolutionPlan plan_sequences(const ShortConvolutionProblem& p, std::int64_t channels) {
  channels = std::clamp<std::int64_t>(p.C, 1, channels);
  return {p, Along::channels, p.rows(), 1, channels, divide_up(p.C, channels)};
}

/// Exchanges the last two dimensions of a view, such as tokens and channels, or channels and taps.
template <typename Void>
BasicTensorView<Void> transposed(BasicTensorView<Void> view) {
  std::swap(view.shape[2], view.shape[3]);
  std::swap(view.strides[2], view.strides[3]);
  return view;
}

/// Reads rows of one sequence. Rows before token 0 come from the sequence's state, or are zeros without a state. Rows
/// after the end of the sequence are zeros.
class SequenceReader {
 public:
  SequenceReader(const ConstTensorView& tensor, const ConstTensorView& state, const ConvolutionRange& sequence)
      : T_(sequence.T),
        rows_(HeadRows<const void>(tensor, sequence.b, 0).range(sequence.t0, sequence.T)),
        columns_(HeadRows<const void>(transposed(tensor), sequence.b, 0).columns(sequence.t0, sequence.T)),
        state_rows_(state, sequence.n, 0),
        state_columns_(transposed(state), sequence.n, 0) {}

  /// Copies channels [first_channel, first_channel + cols) of tokens [first, first + count) to rows of `to`, which are
  /// `stride` elements apart. Pads each row with zeros to `padded` columns.
  template <typename T>
  void load_rows(T* to, std::int64_t stride, std::int64_t first, std::int64_t count, std::int64_t first_channel,
                 std::int64_t cols, std::int64_t padded) const {
    for (std::int64_t t = first; t < first + count; ++t, to += stride) {
      if (t >= 0 && t < T_) {
        load_row(to, rows_, t, first_channel, cols);
      } else if (t < 0 && state_rows_.present()) {
        load_row(to, state_rows_, state_rows_.rows + t, first_channel, cols);
      } else {
        std::fill_n(to, cols, T{0});
      }
      std::fill(to + cols, to + padded, T{0});
    }
  }

  /// Copies tokens [first, first + count) of one channel to to[0 … count).
  template <typename T>
  void load_tokens(T* to, std::int64_t first, std::int64_t count, std::int64_t channel) const {
    const std::int64_t before = std::clamp<std::int64_t>(-first, 0, count);
    if (before > 0 && state_columns_.present()) {
      load_row(to, state_columns_, channel, state_columns_.cols + first, before);
    } else {
      std::fill_n(to, before, T{0});
    }
    const std::int64_t inside = std::clamp<std::int64_t>(T_ - first - before, 0, count - before);
    if (inside > 0) load_row(to + before, columns_, channel, first + before, inside);
    std::fill(to + before + inside, to + count, T{0});
  }

 private:
  std::int64_t T_;
  HeadRows<const void> rows_, columns_, state_rows_, state_columns_;
};

/// Loads taps and biases of channels [first, first + cols) into `taps`, (K + 1, width). Row j holds tap j of each
/// channel, and row K the biases. Pads the rows with zeros to `width`, a multiple of kLanes. `buffer` is scratch of
/// width · K elements.
template <typename T>
void load_taps(const View<T, 2>& taps, const ShortConvolutionProblem& p, std::int64_t first, std::int64_t cols,
               T* buffer) {
  const ConstTensorView& weight = p.inputs.weight;
  const std::int64_t width = taps.shape[1];
  if (weight.strides[2] == p.K * weight.strides[3]) {
    ConstTensorView flat = weight;
    flat.shape = {1, 1, 1, p.C * p.K};
    const HeadRows<const void> stored = HeadRows<const void>(flat, 0, 0).columns(first * p.K, cols * p.K);
    const T* const dense = cols == width ? dense_row(stored, 0, buffer) : buffer;
    if (cols < width) {
      load_row(buffer, stored, 0, 0, cols * p.K);
      std::fill(buffer + cols * p.K, buffer + width * p.K, T{0});
    }
    tap_kernels<TapKernels<T>>(p.K).transpose(taps.data, width, dense, width);
  } else {
    for (std::int64_t j = 0; j < p.K; ++j) {
      load_row(taps.at(j), HeadRows<const void>(transposed(weight), 0, 0), j, first, cols);
      std::fill(taps.at(j) + cols, taps.at(j) + width, T{0});
    }
  }
  T* const bias = taps.at(p.K);
  std::fill_n(bias, width, T{0});
  if (p.inputs.bias.present()) load_row(bias, HeadRows<const void>(p.inputs.bias, 0, 0), 0, first, cols);
}

/// Loads the K taps of one channel to taps[0 … K). Loads the channel's bias, or 0, to taps[K].
template <typename T>
void load_channel_taps(T* taps, const ShortConvolutionProblem& p, std::int64_t channel) {
  load_row(taps, HeadRows<const void>(p.inputs.weight, 0, 0), channel, 0, p.K);
  taps[p.K] = 0;
  if (p.inputs.bias.present()) load_row(taps + p.K, HeadRows<const void>(p.inputs.bias, 0, 0), 0, channel, 1);
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_LINEAR_ATTENTION_CONVOLUTION_PLAN_INL_
