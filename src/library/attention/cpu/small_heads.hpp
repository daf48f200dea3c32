// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "library/attention/cpu/kernels.hpp"
#include "library/attention/problem.hpp"
#include "library/core/sum_blocks.hpp"

namespace headgate {

/// The most queries, and keys, of a sequence whose heads are small, and the most features of a head.
inline constexpr std::int64_t kSmallHeadRows = 256;
inline constexpr std::int64_t kSmallHeadDim = 256;

/// Whether the sequence's heads are small, and nothing is asked for that changes scores before the softmax. Neither
/// threads nor other sequences have a say: the kernels differ in their last bits.
inline bool has_small_heads(const Problem& p, const Sequence& s) {
  const auto& in = p.inputs;
  const bool plain = p.softcap == 0.0 && !in.alibi_slopes.present() && !in.bias.present() && !in.mask.present();
  return plain && s.T > 0 && s.T <= kSmallHeadRows && s.S > 0 && s.S <= kSmallHeadRows && p.D > 0 &&
         p.D <= kSmallHeadDim && p.Dv > 0 && p.Dv <= kSmallHeadDim;
}

/// Whether the small kernels compute the sequence.
inline bool suits_small_heads(const ForwardProblem& p, const Sequence& s) {
  return has_small_heads(p, s) && !p.outputs.weights.present() && !suits_few_queries(p, s);
}
inline bool suits_small_heads(const BackwardProblem& p, const Sequence& s) {
  // More keys are several blocks, which the other kernels share out among threads where heads are few.
  constexpr std::int64_t kManyHeads = 8;
  const bool one_thread_a_head = s.S <= kBackwardKeys || p.B * p.Hkv >= kManyHeads;
  return has_small_heads(p, s) && one_thread_a_head && !p.inputs.sinks.present();
}

}  // namespace headgate
