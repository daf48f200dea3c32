// SPDX-License-Identifier: Apache-2.0
// Provides the k or v rows of a split in order of use; included once per Highway target.
#if defined(HEADGATE_ATTENTION_SPLIT_ROWS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_SPLIT_ROWS_INL_
#undef HEADGATE_ATTENTION_SPLIT_ROWS_INL_
#else
#define HEADGATE_ATTENTION_SPLIT_ROWS_INL_
#endif

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/cpu/decode/cpu_tuning.hpp"
#include "library/attention/cpu/decode/stored_rows-inl.hpp"
#include "library/core/sum_blocks.hpp"
#include "library/core/view.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Number of k or v rows that are converted to T at a time. The converted rows stay in the first-level cache.
inline constexpr std::int64_t kWidenedKeys = 64;

/// Largest number of keys per split, for elements of type E.
template <typename E>
inline constexpr std::int64_t kMostSplitKeys = sizeof(E) <= 2 ? kLongSplitKeys : kSplitKeys;

/// Returns the number of keys per split in a sequence of S keys.
/// Narrow types have longer splits, because memory streams best from long runs (docs/design/decoding.md).
/// Short sequences of 16-bit keys have shorter splits, so that there are enough splits for all threads.
template <typename E>
constexpr std::int64_t split_keys(std::int64_t S) {
  if (sizeof(E) == 2 && S < kLongSplits * kLongSplitKeys) return kSplitKeys;
  return kMostSplitKeys<E>;
}

/// Largest number of keys in any register tile. Tiles of bf16 dot products hold two keys per vector.
inline constexpr std::int64_t kMostTileKeys = 2 * kTileKeys;

/// Order in which a split uses its keys, which are keys first … first + count:
///   1. the first `before_streams` keys, ascending; they include all keys with unrounded rows;
///   2. the next `streamed` keys, cut into kTileKeys streams of equal length; a stream is a run of consecutive keys;
///      the order takes key 0 of every stream, then key 1 of every stream, and so on;
///   3. the remaining keys, ascending.
/// Hardware prefetchers follow each stream (docs/design/decoding.md).
struct OrderedKeys {
  std::int64_t first = 0, count = 0;
  std::int64_t before_streams = 0;  ///< number of keys before the streams; a multiple of kTileKeys, or `count`
  std::int64_t streamed = 0;        ///< number of keys in all kTileKeys streams together

  /// Returns the number of keys per stream.
  std::int64_t stream_keys() const { return streamed / kTileKeys; }
  /// Returns the position at which the streams end in this order of the keys.
  std::int64_t streams_end() const { return before_streams + streamed; }
  /// Returns the key at position n of this order.
  std::int64_t key(std::int64_t n) const {
    const std::int64_t in_streams = n - before_streams;
    if (in_streams < 0 || in_streams >= streamed) return first + n;
    return first + before_streams + in_streams % kTileKeys * stream_keys() + in_streams / kTileKeys;
  }
};

/// Rows of k or v of one sequence and head. Elements are stored as E, and products are computed in T.
/// Holds the row addresses of one split in an array. The entries of the array are called slots, and are filled shortly
/// before use.
template <typename T, typename E>
class SplitRows {
 public:
  static constexpr std::int64_t kMostKeys = kMostSplitKeys<E>;

  SplitRows(const View<T, 2>& widened, const CpuTuning& tuning) : widened_(widened), tuning_(tuning) {}

  /// Selects the rows of a sequence and head. Each row will be multiplied by `rows_against` query rows.
  /// Rows are read in one of two ways:
  ///   - In place: each query tile converts them to T. With `dots`, it multiplies bf16 rows without conversion.
  ///   - From a buffer, to which they are converted once. This is slower. It is used only if the layout does not permit
  ///     reading in place.
  void select(const KeyRows& rows, std::int64_t rows_against, bool dots = false) {
    rows_ = rows;
    rows_against_ = rows_against;
    in_place_ = dots || (loads_stored<T, E>() && rows.stride() == 1 && rows.cols % kLanes<T> == 0);
  }

  /// Sets the keys of the split, and gives their row addresses the slots from `slots` on.
  /// Returns the end of these slots.
  /// The slots are filled later. Their number is a multiple of kMostTileKeys.
  const E** assign(const E** slots, const OrderedKeys& keys) {
    keys_ = keys;
    slots_ = slots;
    filled_ = 0;
    return slots + slots_used();
  }

  /// Moves the row addresses to other slots, which begin at `slots`. Returns the end of these slots.
  const E** move(const E** slots) {
    std::copy(slots_, slots_ + filled_, slots);
    slots_ = slots;
    return slots + slots_used();
  }

  const OrderedKeys& keys() const { return keys_; }

  /// Visits all slots in ranges: calls visit(rows, first, n) with the StoredRows of slots first … first + n.
  /// Between these calls, prefetches the rows that come `distance` slots later.
  /// After the last slot, prefetches the first rows of `following`, unless it is null.
  template <class Visit>
  void visit_rows(std::int64_t distance, SplitRows* following, const Visit& visit) {
    if constexpr (loads_stored<T, E>()) {
      if (in_place_) {
        visit_converted_rows(keys_.before_streams, distance, following, visit);
        if (keys_.before_streams == keys_.count) return;
        fill_with_following(keys_.count + distance, following);
        const StoredRows<E> rows{slots_, distance, prefetch_settings().into_first_level};
        return visit(rows.from(keys_.before_streams), keys_.before_streams, keys_.count - keys_.before_streams);
      }
    }
    visit_converted_rows(keys_.count, distance, following, visit);
  }

  /// Returns how many slots before their use rows are prefetched.
  std::int64_t prefetch_distance() const { return rows_in(prefetch_settings().distance_bytes); }

  /// Returns how many value rows are added to the outputs at a time:
  ///   Few rows are read in the order of their prefetches, which is fastest from memory.
  ///   More rows load and store sums less often, which is faster if arithmetic is the limit.
  std::int64_t values_at_a_time() const {
    if (!in_place_) return kWidenedKeys;
    if (!std::is_same_v<T, E>) return rows_in(kChunk_bytes);
    if (rows_against_ > kHighRows) return kWidenedKeys;
    return rows_against_ < kTileRows ? kTileKeys : 2 * kTileKeys;
  }

  /// Fills the first `n` slots, and prefetches their rows.
  void prefetch_first(std::int64_t n) {
    fill_to(n);
    PrefetchedRows<E> prefetcher = prefetched_rows(0, std::min(n, keys_.count));
    for (std::int64_t r = 0; r < n; r += kTileKeys) prefetch_whole_rows(prefetcher);
  }

  /// Writes the rows' scales to `buffer` (kMostKeys elements) in the order of the slots, and returns `buffer`.
  /// Pads the scales with zeros to whole vectors. Returns null if rows have no scales.
  const T* scales(T* HWY_RESTRICT buffer) const {
    if (!rows_->scaled()) return nullptr;
    const KeyRows::Run<float> run = rows_->scales_from(keys_.first);
    if (run.first != nullptr && run.step == 1) {
      to_slots(buffer, 0, keys_.count, run.first);
    } else {
      T scales[kMostKeys];
      rows_->scales(scales, keys_.first, keys_.count);
      to_slots(buffer, 0, keys_.count, scales);
    }
    std::fill_n(buffer, std::clamp<std::int64_t>(rows_->unrounded_rows() - keys_.first, 0, keys_.before_streams), T{1});
    std::fill(buffer + keys_.count, buffer + round_up(keys_.count, kLanes<T>), T{0});
    return buffer;
  }

 private:
  /// Visits the first `end` slots, as visit_rows() does. Converts their rows to T in a buffer.
  template <class Visit>
  void visit_converted_rows(std::int64_t end, std::int64_t distance, SplitRows* following, const Visit& visit) {
    for (std::int64_t first = 0; first < end; first += kWidenedKeys) {
      const std::int64_t n = std::min(kWidenedKeys, end - first);
      const T* wide[kWidenedKeys];
      fill_with_following(first + n + distance, following);
      PrefetchedRows<E> prefetcher = prefetched_rows(first + distance, n);
      for (std::int64_t r = 0; r < n; ++r) {
        T* row = widened_.at(r);
        wide[r] = row;
        if (r % kTileKeys == 0) prefetch_whole_rows(prefetcher);
        load_row(row, rows_->row(keys_.key(first + r)), 0, 0, rows_->cols);
        std::fill(row + rows_->cols, row + round_up(rows_->cols, kLanes<T>), T{0});
      }
      std::fill(wide + n, wide + round_up(n, kTileKeys), wide[n - 1]);
      visit(StoredRows<T>{wide}, first, n);
    }
  }

  /// bytes of value rows that are added at a time, so that they fit in the first-level cache
  static constexpr std::int64_t kChunk_bytes = 8192;

  const CpuTuning::PrefetchSettings& prefetch_settings() const {
    return tuning_.prefetch_settings(rows_against_, sizeof(E));
  }

  std::int64_t slots_used() const { return round_up(keys_.count, kMostTileKeys); }

  /// Fills the slots before `end`, rounded up to kMostTileKeys. Slots after the last key repeat the last row.
  void fill_to(std::int64_t end) {
    end = round_up(end, kMostTileKeys);
    const std::int64_t rows_end = std::min(end, keys_.count);
    if (filled_ < rows_end) {
      const KeyRows::Run<E> run = rows_->rows_from<E>(keys_.first);
      if (run.first != nullptr) {
        run_to_slots(run, filled_, rows_end);
      } else {
        const E* rows[kMostKeys];
        rows_->each_row<E>(keys_.first, keys_.count, [&rows](std::int64_t r, const E* row) { rows[r] = row; });
        to_slots(slots_, filled_, rows_end, rows);
      }
      filled_ = rows_end;
    }
    if (filled_ < end) {
      std::fill(slots_ + filled_, slots_ + end, slots_[keys_.count - 1]);
      filled_ = end;
    }
  }

  /// Fills the slots before `end`. Unless `following` is null, its first slots come after the slots of this split.
  void fill_with_following(std::int64_t end, SplitRows* following) {
    const std::int64_t own_end = following != nullptr ? std::min(end, slots_used()) : end;
    fill_to(own_end);
    if (own_end < end) following->fill_to(end - own_end);
  }

  /// Writes row addresses to slots [begin, end). `run` has the rows in ascending order of keys, at a constant stride.
  void run_to_slots(const KeyRows::Run<E>& run, std::int64_t begin, std::int64_t end) {
    const E** HWY_RESTRICT slots = slots_;
    const std::int64_t apart = keys_.stream_keys() * run.step;  // distance between streams, in elements
    std::int64_t r = begin;
    for (; r < std::min(end, keys_.before_streams); ++r) slots[r] = run.first + r * run.step;
    // Computes each address from the first address. Incrementing four pointers would be shorter, but GCC 12 miscompiles
    // that for SSE4.
    const E* const streams = run.first + keys_.before_streams * run.step;
    for (; r < std::min(end, keys_.streams_end()); r += kTileKeys) {
      const E* row = streams + (r - keys_.before_streams) / kTileKeys * run.step;
      for (std::int64_t s = 0; s < kTileKeys; ++s) slots[r + s] = row + s * apart;
    }
    for (; r < end; ++r) slots[r] = run.first + r * run.step;
  }

  /// Writes to[begin … end): the elements of `keys` in the order of the slots. `keys` has one element per key.
  template <typename Each, typename From>
  void to_slots(Each* HWY_RESTRICT to, std::int64_t begin, std::int64_t end, const From* HWY_RESTRICT keys) const {
    const std::int64_t apart = keys_.stream_keys();
    std::int64_t r = begin;
    for (; r < std::min(end, keys_.before_streams); ++r) to[r] = static_cast<Each>(keys[r]);
    const From* HWY_RESTRICT streams = keys + keys_.before_streams;
    for (std::int64_t k = (r - keys_.before_streams) / kTileKeys; r < std::min(end, keys_.streams_end());
         ++k, r += kTileKeys) {
      for (std::int64_t s = 0; s < kTileKeys; ++s) to[r + s] = static_cast<Each>(streams[s * apart + k]);
    }
    std::copy(keys + r, keys + end, to + r);
  }

  std::int64_t rows_in(std::int64_t bytes) const { return rows_in_bytes<E>(bytes, rows_->cols, kMostKeys); }

  /// Returns an object that prefetches the rows in n slots, from slot number `slot` on.
  /// Returns an empty one if the elements of a row are not adjacent.
  PrefetchedRows<E> prefetched_rows(std::int64_t slot, std::int64_t n) const {
    return {slots_ + slot, rows_->stride() == 1 ? n : 0, rows_->cols, prefetch_settings().into_first_level};
  }
  /// Prefetches kTileKeys whole rows.
  static void prefetch_whole_rows(PrefetchedRows<E>& prefetcher) {
    for (std::int64_t line = 0; line < prefetcher.lines_a_row(); ++line) prefetcher.prefetch_lines();
  }

  View<T, 2> widened_;
  CpuTuning tuning_;
  std::optional<KeyRows> rows_;
  std::int64_t rows_against_ = 0;
  bool in_place_ = false;
  OrderedKeys keys_;
  const E** slots_ = nullptr;
  std::int64_t filled_ = 0;  ///< slots before this index are filled
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_SPLIT_ROWS_INL_
