// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "library/attention/problem.hpp"

namespace headgate {

/// Calls visit(e) for each entry e ≥ 0 in the key list of query i, for key/value head h_kv.
/// Entry e is the number of a block of keys. If key_block_size is 128, entry 2 means keys 256 to 383.
/// Entries may be in any order and may repeat.
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
