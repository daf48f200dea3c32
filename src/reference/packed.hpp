// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headgate/attention.hpp"
#include "reference/oracle.hpp"

namespace headgate::reference {

/// forward and backward of a packed batch: each sequence by itself, on views of its rows and columns; then put
/// together.
Forward packed_forward(const AttentionInputs& inputs, const AttentionOptions& options);
Backward packed_backward(const AttentionInputs& inputs, const AttentionIncoming& incoming,
                         const AttentionOptions& options);

}  // namespace headgate::reference
