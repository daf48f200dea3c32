// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace headgate::layers {

/// y(N,C) = rows of table(V,C) named by tokens(N), each in [0, V).
template <typename T>
void embedding_forward(T* y, const T* table, const std::int32_t* tokens, std::int64_t N, std::int64_t C);

/// dtable(V,C) += the rows of dy(N,C), in the order of tokens: the same bits at any number of threads.
template <typename T>
void embedding_backward(T* dtable, const T* dy, const std::int32_t* tokens, std::int64_t N, std::int64_t C);

}  // namespace headgate::layers
