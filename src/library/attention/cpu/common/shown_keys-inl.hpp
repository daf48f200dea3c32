// SPDX-License-Identifier: Apache-2.0
// Finds the keys that a mask or a bias shows to a strip of queries; included once per Highway target.
#if defined(HEADGATE_ATTENTION_SHOWN_KEYS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_SHOWN_KEYS_INL_
#undef HEADGATE_ATTENTION_SHOWN_KEYS_INL_
#else
#define HEADGATE_ATTENTION_SHOWN_KEYS_INL_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>

#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/cpu/common/visibility.hpp"
#include "library/attention/problem.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// One row of a mask or bias. An element hides its key if its bits equal `hidden` (0 in a mask, −∞ in a bias).
template <typename Bits>
struct HidingRow {
  const char* elements;
  std::int64_t stride;
  Bits hidden;

  /// Returns the first column in [begin, end) whose key is not hidden, or `end` if all are hidden.
  std::int64_t first_shown(std::int64_t begin, std::int64_t end) const {
    while (begin + kRun <= end && run_is_hidden(begin)) begin += kRun;
    while (begin < end && is_hidden(begin)) ++begin;
    return begin;
  }
  /// Returns one past the last column in [begin, end) whose key is not hidden, or `begin` if all are hidden.
  std::int64_t end_of_shown(std::int64_t begin, std::int64_t end) const {
    while (begin + kRun <= end && run_is_hidden(end - kRun)) end -= kRun;
    while (begin < end && is_hidden(end - 1)) --end;
    return end;
  }

 private:
  static constexpr std::size_t kWords = 4;
  static constexpr std::int64_t kRun = kWords * sizeof(std::uint64_t) / sizeof(Bits);

  const char* at(std::int64_t column) const {
    return elements + column * stride * static_cast<std::int64_t>(sizeof(Bits));
  }
  bool is_hidden(std::int64_t column) const {
    Bits found;
    std::memcpy(&found, at(column), sizeof(found));
    return found == hidden;
  }
  /// Returns true if all kRun elements from `column` on hide their keys. Always returns false if stride ≠ 1.
  bool run_is_hidden(std::int64_t column) const {
    if (stride != 1) return false;
    constexpr std::uint64_t kOnes = std::numeric_limits<std::uint64_t>::max() / std::numeric_limits<Bits>::max();
    std::uint64_t found[kWords], differences = 0;
    std::memcpy(found, at(column), sizeof(found));
    for (const std::uint64_t word : found) differences |= word ^ (kOnes * hidden);
    return differences == 0;
  }
};

/// Finds the keys that a strip of queries has to visit. Kernels skip all other keys.
/// A key must be visited if mask, bias and key bias each show it to at least one query of the strip.
/// The first key that a row visits affects the last bits of its softmax, but results must not depend on strides.
/// Mask and biases are therefore read in the same way for all dtypes and strides.
class ShownKeys {
 public:
  explicit ShownKeys(const Problem& p) : maps_{&p.inputs.mask, &p.inputs.bias, &p.inputs.key_bias} {}

  /// Returns true if a mask or bias differs among query heads.
  bool by_head() const {
    return std::any_of(std::begin(maps_), std::end(maps_),
                       [](const ConstTensorView* map) { return map->present() && map->strides[1] != 0; });
  }

  /// Returns the range of columns that the queries query_of(0) … query_of(rows − 1) of head h must visit.
  /// Columns belong to a block of n keys that begins at key j0. Keys outside `visited` are ignored.
  /// The range is the smallest possible, but may contain hidden keys between visible ones. It is {} if no key is
  /// visible.
  template <class QueryOf>
  KeyRange columns(const KeyRange& visited, std::int64_t j0, std::int64_t n, const Sequence& s, std::int64_t h,
                   std::int64_t rows, const QueryOf& query_of) const {
    KeyRange keys{std::max(visited.begin, j0), std::min(visited.end, j0 + n)};
    for (const ConstTensorView* map : maps_) {
      if (!map->present() || keys.empty()) continue;
      const HeadRows<const void> from = map_rows(*map, s, h);
      switch (from.dtype) {
        case DType::boolean: keys = narrow_to<std::uint8_t>(from, 0, keys, rows, query_of); break;
        case DType::bf16: keys = narrow_to<std::uint16_t>(from, 0xff80, keys, rows, query_of); break;
        case DType::f16: keys = narrow_to<std::uint16_t>(from, 0xfc00, keys, rows, query_of); break;
        case DType::f64: keys = narrow_to<std::uint64_t>(from, 0xfff0000000000000, keys, rows, query_of); break;
        default: keys = narrow_to<std::uint32_t>(from, 0xff800000, keys, rows, query_of);
      }
    }
    return keys.empty() ? KeyRange{} : KeyRange{keys.begin - j0, keys.end - j0};
  }

 private:
  /// Returns the smallest range within `keys` that contains every key that `map` shows to any of the queries.
  template <typename Bits, class QueryOf>
  static KeyRange narrow_to(const HeadRows<const void>& map, Bits hidden, const KeyRange& keys, std::int64_t rows,
                            const QueryOf& query_of) {
    KeyRange shown{keys.end, keys.begin};
    const std::int64_t different = map.row_stride == 0 ? 1 : rows;  // row stride 0: all queries share one row
    for (std::int64_t m = 0; m < different; ++m) {
      const std::int64_t offset = (map.start + query_of(m) * map.row_stride) * static_cast<std::int64_t>(sizeof(Bits));
      const HidingRow<Bits> row{static_cast<const char*>(map.data) + offset, map.stride, hidden};
      shown.begin = row.first_shown(keys.begin, shown.begin);
      if (shown.begin < keys.end) shown.end = row.end_of_shown(shown.end, keys.end);
    }
    return shown;
  }

  const ConstTensorView* maps_[3];
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_SHOWN_KEYS_INL_
