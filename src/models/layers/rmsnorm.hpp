// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "library/core/words.hpp"
#include "models/layers/arguments.hpp"

namespace headgate::layers {

/// plain y = x·rstd·w (w starts at 1); zero_centred y = x·rstd·(1 + w) (w starts at 0).
enum class NormKind { plain, zero_centred };

struct NormOptions {
  NormKind kind = NormKind::plain;
  double eps = 1e-6;
};

/// y(N,H,D) = x·rstd·w, w(D), with rstd(N,H) = 1/√(mean_d x² + eps), which is saved if present. y may be x.
template <typename T>
void rmsnorm_forward(View<T, 3> y, View<T, 2> rstd, ConstView<T, 3> x, ConstView<T, 1> w, const NormOptions& options,
                     const ExecutionContext& context);

/// dx(N,H,D) = or +=; dw(D) +=, if present. With overwrite, dx may be dy. With g = dy·w and x̂ = x·rstd:  dx = rstd·(g
/// − x̂·mean_d(g·x̂)),  dw = Σ_n Σ_h dy·x̂.
template <typename T>
void rmsnorm_backward(View<T, 3> dx, View<T, 1> dw, ConstView<T, 3> dy, ConstView<T, 3> x, ConstView<T, 1> w,
                      ConstView<T, 2> rstd, const NormOptions& options, Update update_dx,
                      const ExecutionContext& context);

}  // namespace headgate::layers

namespace headgate {

template <>
struct Words<layers::NormKind> {
  static constexpr std::array<Word<layers::NormKind>, 2> kAll{
      {{layers::NormKind::plain, "plain"}, {layers::NormKind::zero_centred, "zero_centred"}}};
};

}  // namespace headgate
