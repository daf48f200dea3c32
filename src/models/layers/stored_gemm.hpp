// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headgate/tensor.hpp"
#include "models/layers/arguments.hpp"
#include "models/layers/stored_matrix.hpp"

// Multiplies and widens matrices in the blocks of a GGUF file. Decoded weights are bitwise identical to the output of
// io::widen_blocks.

namespace headgate::layers {

/// Returns whether stored_gemm() and widen_rows() support the format. They support the same formats as
/// io::widen_blocks.
bool is_multiplied(const io::GgufFormat& format);

/// Decodes rows [first, first + R) of w(O,C) to out(R,C). Runs on the calling thread, with the kernels of SIMD target
/// `target`.
void widen_rows(View<float, 2> out, const StoredMatrix& w, std::int64_t first, std::int64_t target);

/// Computes y(N,O) = x(N,C) wᵀ or y += x wᵀ, as `update` selects, for N ≤ kSkinnyRows. Decodes each weight once per
/// four rows of x. The result is bitwise identical to skinny_gemm() with the widened matrix. Each row of y depends only
/// on w and its row of x.
void stored_gemm(View<float, 2> y, ConstView<float, 2> x, const StoredMatrix& w, Update update,
                 const ExecutionContext& context);

}  // namespace headgate::layers
