// SPDX-License-Identifier: Apache-2.0
#include "library/attention/cpu/prefix_mask.hpp"

#include <algorithm>
#include <cstdint>

namespace headgate {

bool PrefixMask::may_suit(const Problem& p) {
  const ConstTensorView& mask = p.inputs.mask;
  const auto is_shared = [&](std::size_t n) { return mask.shape[n] == 1 || mask.strides[n] == 0; };
  // Declines a batch of one, because packed batches keep their masks.
  // Results must be bitwise identical to a packed batch with the same sequence.
  return mask.present() && mask.numel() > 0 && p.B > 1 && is_shared(1) && is_shared(2);
}

bool PrefixMask::fill(const Problem& p) const {
  const ConstTensorView& mask = p.inputs.mask;
  const auto* shown = static_cast<const std::uint8_t*>(mask.data);
  for (std::int64_t b = 0; b < p.B; ++b, shown += mask.strides[0]) {
    std::int64_t count = 0, end = 0;
    for (std::int64_t j = 0; j < p.S; ++j) {
      if (shown[j * mask.strides[3]] == 0) continue;
      ++count;
      end = j + 1;
    }
    if (count != end) return false;
    keys(b) = std::min(end, p.sequence(b).keys);
  }
  return true;
}

}  // namespace headgate
