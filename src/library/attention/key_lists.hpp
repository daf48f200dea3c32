// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "library/attention/problem.hpp"

namespace headgate {

/// Calls visit(e) for every entry e ≥ 0 in the list of query i of a sequence, for key/value head h_kv. The list may be
/// unordered, and may have an entry several times. Entry e lists key_block_size keys from e · key_block_size on.
template <class Visit>
void visit_listed_blocks(const Problem& p, const Sequence& sequence, std::int64_t h_kv, std::int64_t i,
                         const Visit& visit) {
  const ConstTensorView& lists = p.inputs.key_indices;
  const std::int64_t at =
      sequence.b * lists.strides[0] + h_kv * lists.strides[1] + (sequence.q0 + i) * lists.strides[2];
  const auto visit_entries = [&](const auto* list) {
    for (std::int64_t n = 0; n < lists.shape[3]; ++n) {
      const std::int64_t e = list[n * lists.strides[3]];
      if (e >= 0) visit(e);
    }
  };
  if (lists.dtype == DType::i32) return visit_entries(static_cast<const std::int32_t*>(lists.data) + at);
  visit_entries(static_cast<const std::int64_t*>(lists.data) + at);
}

}  // namespace headgate
