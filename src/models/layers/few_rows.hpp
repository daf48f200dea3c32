// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "headgate/tensor.hpp"
#include "models/layers/arguments.hpp"

namespace headgate::layers {

/// The type that elements of a matrix are widened to.
template <typename M>
using Widened = std::conditional_t<std::is_same_v<M, BFloat16>, float, M>;

/// Rows of x for which a product reads w in place, since packing it would cost more than using it.
inline constexpr std::int64_t kFewRows = 8;

/// y(N,O) = or += x(N,C) wᵀ, w(O,C), for N of at most kFewRows: reads w once, in place, a tile of its rows at a time.
/// Threads take ranges of w's rows, and each sum has one order, whatever N and the threads: the bits of a row of y
/// depend on its row of x alone.
template <typename M>
void few_rows_forward(View<Widened<M>, 2> y, ConstView<Widened<M>, 2> x, ConstView<M, 2> w, Update update,
                      const ExecutionContext& context);

}  // namespace headgate::layers
