// SPDX-License-Identifier: Apache-2.0
#ifndef HEADGATE_SHORT_CONVOLUTION_HPP_
#define HEADGATE_SHORT_CONVOLUTION_HPP_

#include <cstdint>

#include "headgate/attention.hpp"
#include "headgate/error.hpp"
#include "headgate/export.h"
#include "headgate/runtime.hpp"
#include "headgate/tensor.hpp"

/// @file
/// Causal depthwise convolution with an activation, for the inputs of gated linear attention:
///
///     y_{t,c} = act( bias_c + Σ_{j=0}^{K−1} weight_{c,j} · x_{t−K+1+j, c} )
///
/// Letters: B batch, T tokens, C channels, K taps. The state holds the rows of x before the first token: row −i of x is
/// row K−1−i of the state, or 0 without a state. A packed batch (varlen) holds N sequences one after the other: B is 1,
/// and token i of sequence n is row cu_seqlens[n] + i. Each sequence has its own state. Without cu_seqlens, N is B.

namespace headgate {

/// Smallest and largest number of taps K.
inline constexpr std::int64_t kMinTaps = 2;
inline constexpr std::int64_t kMaxTaps = 8;

/// The options of the short convolution.
struct ShortConvolutionOptions {
  GateFn activation = GateFn::silu;  ///< silu or none
  ExecutionContext context{};        ///< threads and target; results do not depend on the number of threads
};

/// The inputs of the short convolution, with any strides. x and weight are required. The kernels read memory of layout
/// (B,T,C) and of layout (B,C,T) without a copy.
struct ShortConvolutionInputs {
  ConstTensorView x{};       ///< (B,1,T,C), f32, f64, bf16 or f16
  ConstTensorView weight{};  ///< (1,1,C,K), 2 ≤ K ≤ 8; dtype of x, or f32; the last tap is for the current token
  ConstTensorView bias{};    ///< (1,1,1,C), dtype of x, or f32; absent means 0
  ConstTensorView state{};  ///< (N,1,K−1,C), dtype of x, or f32: the K−1 rows of x before the first token, oldest first
  ConstTensorView cu_seqlens{};  ///< (1,1,1,N+1), i32 or i64: bounds of a packed batch, non-decreasing from 0 to T
  /// Lengths after which to write states to `snapshots`: (1,1,N,M), or (1,1,1,M) for all sequences, i32 or i64. Entry
  /// [n,m] is a number of tokens of sequence n, from 0 (the old state) to all its tokens. Entries of a row do not
  /// decrease. Only the forward pass accepts snapshot_lengths; the backward pass refuses it.
  ConstTensorView snapshot_lengths{};
};

/// The outputs of the forward pass, which overwrites them. y is required.
struct ShortConvolutionOutputs {
  TensorView y{};  ///< (B,1,T,C), dtype of x
  /// The new state, (N,1,K−1,C), dtype of x, or f32: the last K−1 rows of x. If T < K−1, the oldest of these rows come
  /// from the old state. May be the same view as inputs.state, to update the state in place.
  TensorView state{};
  /// States after chosen numbers of tokens, (N·M,1,K−1,C), dtype of x, or f32. Row n·M + m holds the K−1 rows of x
  /// before token snapshot_lengths[n,m] of sequence n. Must be present if snapshot_lengths is, and absent otherwise.
  TensorView snapshots{};
};

/// Computes the convolution and the activation. Sums are f32 or better. Results are rounded to the storage type once.
/// With silu, a sum of −∞ gives NaN, because −∞ · 0 is NaN.
///
/// Results are bitwise identical for any number of threads, any layout, and packed or separate sequences.
///
/// A sequence may also be computed in several calls. Each call then starts from the state that the previous call
/// returned. Results are bitwise identical to one call if states are not rounded: their dtype is that of x, or f32 if x
/// is bf16 or f16. Snapshots are bitwise identical to the states between such calls.
///
/// Outputs must not overlap inputs or each other, except for a state updated in place. Throws headgate::Error for
/// invalid arguments, before anything is written, and std::bad_alloc if memory runs out. Throws Cancelled if
/// options.context cancels the call; the outputs are then unspecified.
HEADGATE_API void short_convolution_forward(const ShortConvolutionOutputs& outputs,
                                            const ShortConvolutionInputs& inputs,
                                            const ShortConvolutionOptions& options = {});

/// Incoming gradients. dy is required.
struct ShortConvolutionIncoming {
  ConstTensorView dy{};      ///< (B,1,T,C), dtype of x
  ConstTensorView dstate{};  ///< gradient of the new state (N,1,K−1,C), dtype of x, or f32; absent means zero
};

/// Gradients to compute; each may be absent. Existing values are overwritten, not added to. Each gradient has the shape
/// and dtype of its input.
struct ShortConvolutionGradients {
  TensorView dx{};       ///< (B,1,T,C)
  TensorView dweight{};  ///< (1,1,C,K), summed over batches and tokens
  TensorView dbias{};    ///< (1,1,1,C)
  TensorView dstate{};   ///< gradient of the old state (N,1,K−1,C)
};

/// Computes the gradients of Σ dy∘y + Σ dstate∘(new state). Recomputes the input of the activation. inputs.state must
/// be the state before the forward pass, even if the forward pass updated it in place. Accumulates in f32 or better.
/// Results are bitwise identical for any number of threads. Throws like short_convolution_forward().
HEADGATE_API void short_convolution_backward(const ShortConvolutionGradients& gradients,
                                             const ShortConvolutionInputs& inputs,
                                             const ShortConvolutionIncoming& incoming,
                                             const ShortConvolutionOptions& options = {});

}  // namespace headgate

#endif  // HEADGATE_SHORT_CONVOLUTION_HPP_
