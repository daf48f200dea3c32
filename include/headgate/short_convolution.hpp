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
/// The causal depthwise convolution that stands before gated linear attention, with its activation:
///
///     y_{t,c} = act( bias_c + Σ_{j=0}^{K−1} weight_{c,j} · x_{t−K+1+j, c} )
///
/// Letters: B batch, T tokens, C channels, K taps. Row −i of x, before the first token, is row K−1−i of the state, or 0
/// without a state. A packed batch holds N sequences one after the other: B is 1, and token i of sequence n is row
/// cu_seqlens[n] + i. Each sequence has a state of its own. Without cu_seqlens, N is B.

namespace headgate {

/// The fewest and the most taps.
inline constexpr std::int64_t kMinTaps = 2;
inline constexpr std::int64_t kMaxTaps = 8;

/// How the short convolution is computed.
struct ShortConvolutionOptions {
  GateFn activation = GateFn::silu;  ///< silu, or none for the sum itself; no other
  ExecutionContext context{};        ///< how the call runs; the same bits for any number of threads
};

/// What the operation reads. x and weight are required. Any strides; both (B,T,C) and (B,C,T) memory is read without a
/// copy.
struct ShortConvolutionInputs {
  ConstTensorView x{};       ///< (B,1,T,C), f32, f64, bf16 or f16
  ConstTensorView weight{};  ///< (1,1,C,K), 2 ≤ K ≤ 8; dtype of x, or f32; the last tap meets the token itself
  ConstTensorView bias{};    ///< (1,1,1,C), dtype of x, or f32; absent means 0
  ConstTensorView state{};  ///< (N,1,K−1,C), dtype of x, or f32: the K−1 rows of x before the first token, oldest first
  ConstTensorView cu_seqlens{};  ///< (1,1,1,N+1), i32 or i64: a packed batch. 0 first, never decreasing, T last
};

/// What the forward pass writes (overwrites). y is required.
struct ShortConvolutionOutputs {
  TensorView y{};  ///< (B,1,T,C), dtype of x
  /// (N,1,K−1,C), dtype of x, or f32: the last K−1 rows of x, from the old state where T < K−1. It may be the very view
  /// that the inputs have, to update it in place.
  TensorView state{};
};

/// Sums in f32 or better; one rounding to storage. Every element has the same bits for any number of threads, in any
/// layout, in a packed batch or by itself, and in one call or in several that pass the state on in the dtype of x (f32
/// also beside bf16 and f16). A sum of −∞ gives NaN under silu: −∞ · 0. Outputs must not overlap inputs or each other;
/// outputs.state alone may be the very view that inputs.state is. Throws headgate::Error, before anything is written,
/// on arguments that do not fit; std::bad_alloc when memory runs out; Cancelled, with unspecified outputs, where
/// options.context asks for it.
HEADGATE_API void short_convolution_forward(const ShortConvolutionOutputs& outputs,
                                            const ShortConvolutionInputs& inputs,
                                            const ShortConvolutionOptions& options = {});

/// Incoming gradients. dy is required.
struct ShortConvolutionIncoming {
  ConstTensorView dy{};      ///< (B,1,T,C), dtype of x
  ConstTensorView dstate{};  ///< of the new state (N,1,K−1,C), dtype of x, or f32; absent means zero
};

/// Gradients to write; each may be absent. All are overwritten, never added to, and have the shape and dtype of what
/// they are gradients of.
struct ShortConvolutionGradients {
  TensorView dx{};       ///< (B,1,T,C)
  TensorView dweight{};  ///< (1,1,C,K), summed over batch and tokens
  TensorView dbias{};    ///< (1,1,1,C)
  TensorView dstate{};   ///< of the old state (N,1,K−1,C)
};

/// Gradients of Σ dy∘y + Σ dstate∘(new state). The sums before the activation are computed again. Accumulated in f32 or
/// better; the same bits for any number of threads. With inputs.state as it was before a forward pass that has updated
/// it in place. Errors as in short_convolution_forward.
HEADGATE_API void short_convolution_backward(const ShortConvolutionGradients& gradients,
                                             const ShortConvolutionInputs& inputs,
                                             const ShortConvolutionIncoming& incoming,
                                             const ShortConvolutionOptions& options = {});

}  // namespace headgate

#endif  // HEADGATE_SHORT_CONVOLUTION_HPP_
