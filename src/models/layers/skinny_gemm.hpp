// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "headgate/tensor.hpp"
#include "models/layers/arguments.hpp"

namespace headgate::layers {

/// The type in which elements M of a matrix are multiplied: f32 for bf16, otherwise M.
template <typename M>
using Widened = std::conditional_t<std::is_same_v<M, BFloat16>, float, M>;

/// Largest number of rows of x for which a product reads w in place. With so few rows, packing w would cost more than
/// the multiplications.
inline constexpr std::int64_t kSkinnyRows = 32;

/// Computes y(N,O) = x(N,C) wᵀ or y += x wᵀ with w(O,C) and N ≤ kSkinnyRows. `update` selects = or +=. Reads w once and
/// in place. Each thread multiplies a range of w's rows. The order of additions is fixed, so each row of y depends
/// bitwise only on w and its row of x.
template <typename M>
void skinny_gemm(View<Widened<M>, 2> y, ConstView<Widened<M>, 2> x, ConstView<M, 2> w, Update update,
                 const ExecutionContext& context);

}  // namespace headgate::layers
