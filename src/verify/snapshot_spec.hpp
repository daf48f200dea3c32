// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>

#include "headgate/tensor.hpp"
#include "verify/pick.hpp"

namespace headgate::verify {

/// Describes the snapshots of a test problem. A snapshot is a copy of the state after some of the tokens.
/// The problem's seed determines after how many tokens.
struct SnapshotSpec {
  DType dtype = DType::none;   // dtype of the snapshots; none: no snapshots
  DType lengths = DType::i64;  // dtype of snapshot_lengths: i32 or i64
  std::int64_t count = 1;      // M, the number of snapshots of each sequence
  bool shared = false;         // true: all sequences share one row of snapshot_lengths; false: each has its own

  bool present() const { return dtype != DType::none; }
  Shape shape_of_lengths(std::int64_t sequences) const { return {1, 1, shared ? 1 : sequences, count}; }
};

inline std::string describe(const SnapshotSpec& spec) {
  return fmt::format("snapshots={}:{}:{}{}", dtype_name(spec.dtype), spec.count, dtype_name(spec.lengths),
                     spec.shared ? ":shared" : "");
}

/// Draws the snapshots of a problem. A third of the problems have snapshots, of a dtype drawn from `dtypes`.
inline SnapshotSpec draw_snapshots(const Pick& pick, const std::array<DType, 2>& dtypes) {
  SnapshotSpec spec;
  if (!maybe(pick, 3)) return spec;
  spec.dtype = one_of(pick, dtypes);
  spec.lengths = one_of(pick, std::array{DType::i64, DType::i32});
  spec.count = one_of(pick, std::array<std::int64_t, 5>{1, 2, 3, 5, 8});
  spec.shared = maybe(pick, 3);
  return spec;
}

}  // namespace headgate::verify
