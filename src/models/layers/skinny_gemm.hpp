// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "headgate/tensor.hpp"
#include "models/layers/arguments.hpp"

namespace headgate::layers {

/// The type to which elements M of a matrix are widened: f32 for bf16, otherwise M.
template <typename M>
using Widened = std::conditional_t<std::is_same_v<M, BFloat16>, float, M>;

/// Largest number of rows of x for which a product reads w in place. With so few rows, packing w would cost more than
/// multiplying by it.
inline constexpr std::int64_t kSkinnyRows = 32;

/// y(N,O) = or += x(N,C) wᵀ, w(O,C), for N ≤ kSkinnyRows. Reads w once, in place, one tile of rows at a time. Threads
/// compute ranges of w's rows. The order of each sum depends on neither N nor the threads, so a row of y depends
/// bitwise only on its row of x.
template <typename M>
void skinny_gemm(View<Widened<M>, 2> y, ConstView<Widened<M>, 2> x, ConstView<M, 2> w, Update update,
                 const ExecutionContext& context);

}  // namespace headgate::layers
