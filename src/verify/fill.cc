// SPDX-License-Identifier: Apache-2.0
#include "verify/fill.hpp"

#include <algorithm>

#include "headgate/merge.hpp"

namespace headgate::verify {

void store_integer(const TensorView& view, std::int64_t n, std::int64_t value) {
  const std::int64_t at = offset_of(view, 0, 0, 0, n);
  if (view.dtype == DType::i32) {
    static_cast<std::int32_t*>(view.data)[at] = static_cast<std::int32_t>(value);
  } else {
    static_cast<std::int64_t*>(view.data)[at] = value;
  }
}

void fill_bounds(const TensorView& bounds, std::int64_t total, const std::vector<std::int64_t>& given, Random random) {
  const std::int64_t n = bounds.shape[3] - 1;
  std::vector<std::int64_t> at(n + 1, 0);
  at[n] = total;
  const bool one_long = random.below(3) == 0;
  const std::int64_t longest = random.below(std::max<std::int64_t>(n, 1)) + 1;
  for (std::int64_t i = 1; i < n; ++i) {
    const std::int64_t some = random.below(one_long ? 2 : total + 1);
    if (!given.empty()) {
      at[i] = at[i - 1] + given[i - 1];
    } else if (one_long) {
      at[i] = i == longest ? std::max(at[i - 1], total - (n - i)) : std::min(at[i - 1] + some, total);
    } else {
      at[i] = some;
    }
  }
  std::sort(at.begin(), at.end());
  for (std::int64_t i = 0; i <= n; ++i) store_integer(bounds, i, at[i]);
}

void fill_snapshot_lengths(const TensorView& lengths, const ConstTensorView& cu_seqlens, std::int64_t T,
                           Random random) {
  const std::int64_t rows = lengths.shape[2], M = lengths.shape[3];
  const auto tokens = [&cu_seqlens, T](std::int64_t n) {
    return cu_seqlens.present() ? load_index(cu_seqlens, n + 1) - load_index(cu_seqlens, n) : T;
  };
  for (std::int64_t r = 0; r < rows; ++r) {
    std::int64_t most = tokens(r);
    if (rows == 1 && cu_seqlens.present()) {
      for (std::int64_t n = 0; n + 1 < cu_seqlens.shape[3]; ++n) most = std::min(most, tokens(n));
    }
    std::vector<std::int64_t> row(M);
    for (std::int64_t& length : row) length = random.below(most + 1);
    if (random.below(2) == 0) {
      row.front() = 0;
      row.back() = most;
    }
    std::sort(row.begin(), row.end());
    for (std::int64_t m = 0; m < M; ++m) store_integer(narrow(lengths, 2, r, r + 1), m, row[m]);
  }
}

}  // namespace headgate::verify
