// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>

#include "headgate/tensor.hpp"
#include "library/call/call.hpp"
#include "library/linear_attention/token_range.hpp"

// Checks snapshots, which are states of sequences after chosen numbers of tokens.

namespace headgate {

/// Fails if snapshot lengths are given to a function that writes no snapshots.
inline void refuse_snapshots(const Call& call, const ConstTensorView& lengths) {
  if (call.given({"snapshot_lengths", lengths})) {
    call.fail("snapshot_lengths is given, but only the forward pass writes snapshots: leave it out");
  }
}

/// Checks the snapshot lengths (1,1,N|1,M). Entries of a row must not decrease, and no entry may exceed the number of
/// tokens of its sequences.
template <class Problem>
void check_snapshot_lengths(const Call& call, const ConstTensorView& lengths, const Problem& p) {
  for (std::int64_t n = 0; n < p.N; ++n) {
    const std::int64_t row = lengths.shape[2] == 1 ? 0 : n, T = p.sequence(n).T;
    std::int64_t before = 0;
    for (std::int64_t m = 0; m < lengths.shape[3]; ++m) {
      const std::int64_t length = snapshot_length(lengths, row, m);
      if (length < before || length > T) {
        call.fail(
            "snapshot_lengths[{},{}] is {} but must be {} to {}: rows do not decrease, and sequence {} has {} "
            "tokens",
            row, m, length, before, T, n, T);
      }
      before = length;
    }
  }
}

/// Checks the lengths and the output `snapshots`. Fails if only one of the two is given. `state` is the shape of the
/// states of all N sequences. `letters` is the shape of `snapshots` as text for messages. Returns the lengths broadcast
/// to (1,1,N,M).
template <class Problem>
ConstTensorView check_snapshots(Call& call, const ConstTensorView& lengths, const TensorView& snapshots,
                                std::initializer_list<DType> dtypes, const char* letters, Shape state,
                                const Problem& p) {
  const Argument chosen{"snapshot_lengths", lengths}, written{"snapshots", snapshots};
  if (call.given(chosen) != call.given(written)) {
    const bool has_lengths = lengths.present();
    call.fail("{} is given but {} is absent: give both or neither", has_lengths ? chosen.name : written.name,
              has_lengths ? written.name : chosen.name);
  }
  if (!lengths.present()) return {};
  call.input(chosen, {DType::i32, DType::i64});
  call.output(written, dtypes);
  const std::int64_t N = state[0], M = lengths.shape[3];
  const Shape all{1, 1, N, M}, one{1, 1, 1, M};
  if (lengths.shape != all && lengths.shape != one) {
    call.fail("snapshot_lengths has shape {} but must be (1,1,N,M) = {} or (1,1,1,M) = {}", shape_text(lengths.shape),
              shape_text(all), shape_text(one));
  }
  if (!product_fits(all)) call.fail("snapshot_lengths are N * M = {} * {} entries, which overflows 64 bits", N, M);
  state[0] = N * M;
  call.shape(written, letters, state);
  check_snapshot_lengths(call, lengths, p);
  return broadcast_to(lengths, all);
}

}  // namespace headgate
