// SPDX-License-Identifier: Apache-2.0
#ifndef HEADGATE_GATED_NORM_HPP_
#define HEADGATE_GATED_NORM_HPP_

#include <cstdint>

#include "headgate/attention.hpp"
#include "headgate/error.hpp"
#include "headgate/export.h"
#include "headgate/runtime.hpp"
#include "headgate/tensor.hpp"

/// @file
/// The norm and the gate that stand behind gated linear attention, of each row of D features:
///
///     r = 1 / √( (1/D) Σ x² + eps )        y = x · r · weight · g(z)
///
/// Letters: B batch, H heads, T tokens, D features of a head.

namespace headgate {

/// The norm and its gate function.
struct GatedNormOptions {
  double eps = 1e-6;              ///< ≥ 0, finite
  GateFn gate_fn = GateFn::silu;  ///< read only when `gate` is present
  ExecutionContext context{};     ///< how the call runs; the same bits for any number of threads
};

/// What the operation reads. x is required. Any strides.
struct GatedNormInputs {
  ConstTensorView x{};       ///< (B,H,T,D), D ≥ 1; f32, f64, bf16 or f16
  ConstTensorView weight{};  ///< (1,1|H,1,D), dtype of x, or f32; absent means 1
  ConstTensorView gate{};    ///< z (B,H,T,D), raw gate logits; dtype of x, or f32; absent: y = x · r · weight
};

/// y (B,H,T,D), dtype of x, is overwritten. Sums in f32 or better; one rounding to storage. The squares of a row
/// neither overflow nor underflow, whatever its magnitude. A row of zeros with eps 0 has r = 0, and gives zeros; so
/// have rows with an infinity, in which that element alone is NaN. The same bits for any number of threads. y must not
/// overlap the inputs. Throws headgate::Error, before anything is written, on arguments that do not fit; std::bad_alloc
/// when memory runs out; Cancelled, with unspecified outputs, where options.context asks for it.
HEADGATE_API void gated_norm_forward(const TensorView& y, const GatedNormInputs& inputs,
                                     const GatedNormOptions& options = {});

/// Gradients to write; each may be absent. All are overwritten, never added to, and have the shape and dtype of what
/// they are gradients of.
struct GatedNormGradients {
  TensorView dx{};       ///< (B,H,T,D)
  TensorView dweight{};  ///< (1,1|H,1,D), summed over all rows that share it
  TensorView dgate{};    ///< (B,H,T,D)
};

/// Gradients of Σ dy∘y. With n = x·r and e = dy · weight · g(z):
///
///     dx = r (e − n (1/D) Σ e n);   dweight = Σ dy · n · g(z);   dgate = dy · n · weight · g′(z).
///
/// r is computed again. Accumulated in f32 or better; the same bits for any number of threads. dy (B,H,T,D), dtype of
/// x. Errors as in gated_norm_forward, and on a dgate where gate_fn is none.
HEADGATE_API void gated_norm_backward(const GatedNormGradients& gradients, const GatedNormInputs& inputs,
                                      const ConstTensorView& dy, const GatedNormOptions& options = {});

}  // namespace headgate

#endif  // HEADGATE_GATED_NORM_HPP_
