// SPDX-License-Identifier: Apache-2.0
#include "library/call/overlap.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>

namespace headgate {
namespace {

/// One dimension's share of the distance between two elements: step · n bytes. n is the difference of the elements'
/// indices in this dimension, with low ≤ n ≤ high. step is positive.
struct Term {
  std::int64_t step, low, high;
};

/// The distance between two elements in bytes: the sum of the terms of all dimensions. Terms are sorted by descending
/// step.
struct Terms {
  std::array<Term, 8> term{};
  std::size_t count = 0;

  void add(std::int64_t stride_bytes, std::int64_t steps, bool negated) {
    const bool down = (stride_bytes < 0) != negated;
    const Term next{std::abs(stride_bytes), down ? -steps : 0, down ? 0 : steps};
    std::size_t at = 0;
    while (at < count && term[at].step > next.step) ++at;
    if (at < count && term[at].step == next.step) {
      term[at].low += next.low;
      term[at].high += next.high;
      return;
    }
    for (std::size_t i = count++; i > at; --i) term[i] = term[i - 1];
    term[at] = next;
  }

  void add(const ConstTensorView& view, bool negated) {
    const std::int64_t bytes = dtype_bytes(view.dtype);
    for (std::size_t d = 0; d < 4; ++d) {
      if (view.shape[d] > 1 && view.strides[d] != 0) add(view.strides[d] * bytes, view.shape[d] - 1, negated);
    }
  }
};

std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b > 0 ? 1 : 0); }

/// Returns whether the terms from index i on can sum to a value in [low, high]. Tries values n for term i, and calls
/// itself for the terms after it. Skips values of n from which the later terms cannot reach the interval. Each try
/// takes 1 from `budget`. Returns false if the budget becomes negative.
bool reachable(const Terms& terms, std::size_t i, std::int64_t low, std::int64_t high, int& budget) {
  if (i == terms.count) return low <= 0 && 0 <= high;
  std::int64_t rest_low = 0;
  std::int64_t rest_high = 0;
  for (std::size_t j = i + 1; j < terms.count; ++j) {
    rest_low += terms.term[j].step * terms.term[j].low;
    rest_high += terms.term[j].step * terms.term[j].high;
  }
  const Term& t = terms.term[i];
  const std::int64_t last = std::min(t.high, floor_div(high - rest_low, t.step));
  for (std::int64_t n = std::max(t.low, ceil_div(low - rest_high, t.step)); n <= last; ++n) {
    if (--budget < 0) return false;
    if (reachable(terms, i + 1, low - n * t.step, high - n * t.step, budget)) return true;
  }
  return false;
}

struct Range {
  std::uintptr_t begin, end;
};

Range byte_range(const ConstTensorView& view) {
  const std::int64_t bytes = dtype_bytes(view.dtype);
  std::int64_t low = 0;
  std::int64_t high = bytes;
  for (std::size_t d = 0; d < 4; ++d) {
    const std::int64_t reach = view.shape[d] > 1 ? (view.shape[d] - 1) * view.strides[d] * bytes : 0;
    (reach < 0 ? low : high) += reach;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(view.data);
  return {address + static_cast<std::uintptr_t>(low), address + static_cast<std::uintptr_t>(high)};
}

}  // namespace

bool provably_overlap(const ConstTensorView& a, const ConstTensorView& b) {
  if (a.numel() == 0 || b.numel() == 0) return false;
  const Range range_a = byte_range(a);
  const Range range_b = byte_range(b);
  if (range_a.begin >= range_b.end || range_b.begin >= range_a.end) return false;

  Terms terms;  // offset of an element of a minus offset of an element of b, in bytes, each from its view's data
  terms.add(a, false);
  terms.add(b, true);
  const auto distance =
      static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(a.data) - reinterpret_cast<std::uintptr_t>(b.data));
  const std::int64_t bytes_a = dtype_bytes(a.dtype);
  const std::int64_t bytes_b = dtype_bytes(b.dtype);
  int budget = 4096;  // limit of the search; nested strides need fewer than 100 tries
  return reachable(terms, 0, 1 - bytes_a - distance, bytes_b - 1 - distance, budget);
}

bool elements_overlap(const ConstTensorView& view) {
  if (view.numel() == 0) return false;
  // Finds the range of index differences in each dimension. Leaves out dimensions of size 1.
  std::array<Term, 4> dims{};
  std::size_t count = 0;
  for (std::size_t d = 0; d < 4; ++d) {
    const std::int64_t steps = view.shape[d] - 1;
    if (steps > 0 && view.strides[d] == 0) return true;
    if (steps > 0) dims[count++] = {std::abs(view.strides[d]), -steps, steps};
  }
  std::sort(dims.begin(), dims.end(), [](const Term& a, const Term& b) { return a.step > b.step; });
  // Elements cannot overlap if each stride exceeds the span of all dimensions with smaller strides.
  std::int64_t span = 0;
  bool nests = true;
  for (std::size_t d = count; d-- > 0;) {
    nests = nests && dims[d].step > span;
    span += dims[d].step * dims[d].high;
  }
  if (nests) return false;
  int budget = 1 << 20;
  for (std::size_t first = 0; first < count; ++first) {
    // Considers pairs of elements whose indices differ in dimension `first` and are equal in all dimensions before it.
    // Positive differences suffice, because exchanging the two elements changes the sign.
    Terms terms;
    for (std::size_t d = first; d < count; ++d) terms.term[terms.count++] = dims[d];
    terms.term[0].low = 1;
    if (reachable(terms, 0, 0, 0, budget) || budget < 0) return true;
  }
  return false;
}

}  // namespace headgate
