// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace headgate::layers {

/// h(N,F) = silu(a) ∘ b, where ab(N,2F) holds a in its first F columns and b in its last.
template <typename T>
void swiglu_forward(T* h, const T* ab, std::int64_t N, std::int64_t F);

/// dab(N,2F) = gradient of ab; may be ab itself. dh(N,F); where h_out is not null, h_out(N,F) = h as in the forward
/// pass, so that h need not be kept; it may be dh itself.
template <typename T>
void swiglu_backward(T* dab, T* h_out, const T* dh, const T* ab, std::int64_t N, std::int64_t F);

}  // namespace headgate::layers
