// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "core/words.hpp"
#include "layers/view.hpp"

namespace headgate::layers {

/// plain y = x·rstd·w (w starts at 1); zero_centred y = x·rstd·(1 + w) (w starts at 0).
enum class NormKind { plain, zero_centred };

struct NormOptions {
  NormKind kind = NormKind::plain;
  double eps = 1e-6;
  /// Elements between the weights of one head and the next: 0 when all heads share w(D), D for w(H,D).
  std::int64_t w_head_stride = 0;
};

/// y(N,H,D) = x·rstd·w with rstd(N,H) = 1/√(mean_d x² + eps), which is saved (null: not saved). y may be x itself.
template <typename T>
void rmsnorm_forward(HeadView<T> y, T* rstd, ConstHeadView<T> x, const T* w, const HeadShape& shape,
                     const NormOptions& options);

/// dx(N,H,D) = or +=; dw += (null: skipped), shape of w. With overwrite, dx may be dy itself.
/// With g = dy·w and x̂ = x·rstd:  dx = rstd·(g − x̂·mean_d(g·x̂)),  dw = Σ_n dy·x̂ (Σ_h too where heads share w).
template <typename T>
void rmsnorm_backward(HeadView<T> dx, T* dw, ConstHeadView<T> dy, ConstHeadView<T> x, const T* w, const T* rstd,
                      const HeadShape& shape, const NormOptions& options, Store store_dx = Store::add);

}  // namespace headgate::layers

namespace headgate {

template <>
struct Words<layers::NormKind> {
  static constexpr std::array<Word<layers::NormKind>, 2> kAll{
      {{layers::NormKind::plain, "plain"}, {layers::NormKind::zero_centred, "zero_centred"}}};
};

}  // namespace headgate
