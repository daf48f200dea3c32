// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "library/core/words.hpp"
#include "models/layers/arguments.hpp"

namespace headgate::layers {

/// Selects the kind of RMSNorm.
/// - plain: y = x·rstd·w, and w starts at 1.
/// - zero_centred: y = x·rstd·(1 + w), and w starts at 0.
enum class NormKind { plain, zero_centred };

struct NormOptions {
  NormKind kind = NormKind::plain;
  double eps = 1e-6;
};

/// Computes y(N,H,D) = x·rstd·w with w(D) and rstd(N,H) = 1/√(mean_d x² + eps). For NormKind::zero_centred, the
/// factor w becomes 1 + w. Stores rstd if it is present. y may be x. One of Y and X may be bf16 while the other is f32.
template <typename Y, typename X = Y>
void rmsnorm_forward(View<Y, 3> y, View<Wide<Y>, 2> rstd, ConstView<X, 3> x, ConstView<Wide<Y>, 1> w,
                     const NormOptions& options, const ExecutionContext& context);

/// Computes the gradients of x and w. Overwrites dx(N,H,D) or adds to it, as `update_dx` selects. Adds to dw(D), if
/// present. With g = dy·w and x̂ = x·rstd:
///   dx = rstd·(g − x̂·mean_d(g·x̂)),  dw = Σ_n Σ_h dy·x̂
/// For NormKind::zero_centred, g = dy·(1 + w). With overwrite, dx may be dy. dy may be f32 if dx and x are bf16.
template <typename DX, typename DY = DX, typename X = DX>
void rmsnorm_backward(View<DX, 3> dx, View<Wide<DX>, 1> dw, ConstView<DY, 3> dy, ConstView<X, 3> x,
                      ConstView<Wide<DX>, 1> w, ConstView<Wide<DX>, 2> rstd, const NormOptions& options,
                      Update update_dx, const ExecutionContext& context);

}  // namespace headgate::layers

namespace headgate {

template <>
struct Words<layers::NormKind> {
  static constexpr std::array<Word<layers::NormKind>, 2> kAll{
      {{layers::NormKind::plain, "plain"}, {layers::NormKind::zero_centred, "zero_centred"}}};
};

}  // namespace headgate
