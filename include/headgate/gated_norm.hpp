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
/// Applies an RMS norm and a gate to each row of D features, as after gated linear attention:
///
///     r = 1 / √( (1/D) Σ x² + eps )        y = x · r · weight · g(z)
///
/// Letters: B batch, H heads, T tokens, D features of a head.

namespace headgate {

/// The options of the gated norm.
struct GatedNormOptions {
  double eps = 1e-6;              ///< added to the mean square; finite, ≥ 0
  GateFn gate_fn = GateFn::silu;  ///< ignored unless `gate` is present
  ExecutionContext context{};     ///< threads and target; results do not depend on the number of threads
};

/// The inputs of the gated norm, with any strides. x is required.
struct GatedNormInputs {
  ConstTensorView x{};       ///< (B,H,T,D), D ≥ 1; f32, f64, bf16 or f16
  ConstTensorView weight{};  ///< (1,1|H,1,D), dtype of x, or f32; absent means 1
  ConstTensorView gate{};    ///< z (B,H,T,D), raw gate logits; dtype of x, or f32; absent means no gate
};

/// Computes y (B,H,T,D), dtype of x. Sums are f32 or better. Results are rounded to the storage type once. The squares
/// of a row neither overflow nor underflow, whatever their magnitude. A row of zeros with eps 0 has r = 0 and gives
/// zeros. A row with an infinity has r = 0 too: the infinite element gives NaN, the others 0. Results are bitwise
/// identical for any number of threads.
///
/// y must not overlap the inputs. Throws headgate::Error for invalid arguments, before anything is written, and
/// std::bad_alloc if memory runs out. Throws Cancelled if options.context cancels the call; y is then unspecified.
HEADGATE_API void gated_norm_forward(const TensorView& y, const GatedNormInputs& inputs,
                                     const GatedNormOptions& options = {});

/// Gradients to compute; each may be absent. Existing values are overwritten, not added to. Each gradient has the shape
/// and dtype of its input.
struct GatedNormGradients {
  TensorView dx{};       ///< (B,H,T,D)
  TensorView dweight{};  ///< (1,1|H,1,D), summed over all rows that share a weight
  TensorView dgate{};    ///< (B,H,T,D)
};

/// Computes the gradients of Σ dy∘y. With n = x·r and e = dy · weight · g(z):
///
///     dx = r (e − n (1/D) Σ e n);   dweight = Σ dy · n · g(z);   dgate = dy · n · weight · g′(z).
///
/// dy is (B,H,T,D), dtype of x. Recomputes r. Sums are f32 or better. Results are bitwise identical for any number of
/// threads. Throws like gated_norm_forward. Also throws Error if dgate is present and gate_fn is none.
HEADGATE_API void gated_norm_backward(const GatedNormGradients& gradients, const GatedNormInputs& inputs,
                                      const ConstTensorView& dy, const GatedNormOptions& options = {});

}  // namespace headgate

#endif  // HEADGATE_GATED_NORM_HPP_
