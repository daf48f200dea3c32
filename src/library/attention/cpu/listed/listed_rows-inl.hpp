// SPDX-License-Identifier: Apache-2.0
// Gives the k and v rows of listed keys to products; included once per Highway target.
#if defined(HEADGATE_ATTENTION_LISTED_ROWS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_LISTED_ROWS_INL_
#undef HEADGATE_ATTENTION_LISTED_ROWS_INL_
#else
#define HEADGATE_ATTENTION_LISTED_ROWS_INL_
#endif

#include <algorithm>
#include <cstdint>
#include <optional>

#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/attention/cpu/decode/cpu_tuning.hpp"
#include "library/attention/cpu/decode/stored_rows-inl.hpp"
#include "library/core/view.hpp"
#include "library/core/workspace.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Number of listed keys in a block. Kernels compute one block after another.
/// The k and v rows of a block stay in the second-level cache.
inline constexpr std::int64_t kListedBlock = 128;
/// Row stride of scores, in elements. A row is one cache line longer than a block, so that rows map to different cache
/// sets.
inline constexpr std::int64_t kListedStride = kListedBlock + 16;

/// Returns the number of blocks into which n listed keys are cut.
inline std::int64_t listed_blocks(std::int64_t n) { return (n + kListedBlock - 1) / kListedBlock; }

/// One block of a query's listed keys: keys[0 … count). The rest of the list follows in memory.
struct ListedBlock {
  const std::int64_t* keys = nullptr;
  std::int64_t count = 0, following = 0;

  /// Returns block `number` of a query's list of n keys.
  static ListedBlock of(const std::int64_t* keys, std::int64_t n, std::int64_t number) {
    const std::int64_t first = number * kListedBlock, count = std::min(kListedBlock, n - first);
    return {keys + first, count, n - first - count};
  }
};

/// Rows of k or v, for products in T. Rows with elements E are read in place if their layout allows this.
/// Other rows are converted to T first.
template <typename T, typename E>
class ListedRows {
 public:
  /// Takes scratch memory for rows of `columns` elements from the workspace `ws`.
  ListedRows(Workspace& ws, std::int64_t columns)
      : slots_(ws.take<const E*>("row addresses", 2 * kListedBlock)),
        widened_(ws.take<T>("widened", kWidened, round_up(columns, kLanes<T>))) {}

  /// Selects a sequence and key/value head.
  /// `rows_against` is the number of query rows by which each row of k or v is multiplied.
  void select(const KeyRows& rows, std::int64_t rows_against) {
    rows_ = rows;
    in_place_ =
        loads_stored<T, E>() && rows.dtype() == dtype_of<E>() && rows.stride() == 1 && rows.cols % kLanes<T> == 0;
    const CpuTuning::PrefetchSettings settings = tuning_of_cpu().prefetch_settings(rows_against, sizeof(E));
    prefetch_distance_ = rows_in_bytes<E>(settings.distance_bytes, rows.cols, kListedBlock);
    into_first_level_ = settings.into_first_level;
  }

  std::int64_t columns() const { return rows_->cols; }

  /// Visits the rows of a block in ranges: calls visit(rows, first, n) for the block's keys first … first + n.
  /// `rows` are the StoredRows of these keys.
  /// If rows are read in place, `rows` also has later rows of the list to prefetch.
  template <class Visit>
  void visit_rows(const ListedBlock& block, const Visit& visit) const {
    if constexpr (loads_stored<T, E>()) {
      if (in_place_ && !has_unrounded_rows(block)) return visit(in_place(block), std::int64_t{0}, block.count);
    }
    for (std::int64_t first = 0; first < block.count; first += kWidened) {
      const std::int64_t n = std::min(kWidened, block.count - first);
      const T* wide[kWidened];
      for (std::int64_t r = 0; r < n; ++r) {
        T* row = widened_.at(r);
        wide[r] = row;
        load_row(row, rows_->row(block.keys[first + r]), 0, 0, rows_->cols);
        std::fill(row + rows_->cols, row + round_up(rows_->cols, kLanes<T>), T{0});
      }
      std::fill(wide + n, wide + round_up(n, kTileKeys), wide[n - 1]);
      visit(StoredRows<T>{wide}, first, n);
    }
  }

  /// Writes the scales of the block's rows to `buffer`, zero-padded to whole vectors, and returns `buffer`.
  /// Returns null if rows have no scales.
  const T* scales(const ListedBlock& block, T* HWY_RESTRICT buffer) const {
    if (!rows_->scaled()) return nullptr;
    for (std::int64_t r = 0; r < block.count; ++r) buffer[r] = static_cast<T>(rows_->scale(block.keys[r]));
    std::fill(buffer + block.count, buffer + round_up(block.count, kLanes<T>), T{0});
    return buffer;
  }

 private:
  static constexpr std::int64_t kWidened = 64;

  /// Returns true if the block lists a key whose row is unrounded (KeyRows), and therefore not stored as E.
  bool has_unrounded_rows(const ListedBlock& block) const {
    const std::int64_t unrounded = rows_->unrounded_rows();
    return unrounded > 0 &&
           std::any_of(block.keys, block.keys + block.count, [=](std::int64_t j) { return j < unrounded; });
  }

  const E* address(std::int64_t key, const KeyRows::Run<E>& run) const {
    return run.first != nullptr ? run.first + key * run.step : rows_->stored_row(key).template at<E>(0, 0, rows_->cols);
  }

  StoredRows<E> in_place(const ListedBlock& block) const {
    const KeyRows::Run<E> run = rows_->rows_from<E>(0);
    const E** const slots = slots_.data;
    const std::int64_t listed = block.count + std::min(block.following, prefetch_distance_);
    for (std::int64_t r = 0; r < listed; ++r) slots[r] = address(block.keys[r], run);
    std::fill(slots + listed, slots + round_up(block.count, kTileKeys) + prefetch_distance_, slots[listed - 1]);
    return {slots, prefetch_distance_, into_first_level_};
  }

  View<const E*, 1> slots_;  // row addresses of a block, then of the next rows in the list
  View<T, 2> widened_;
  std::optional<KeyRows> rows_;
  std::int64_t prefetch_distance_ = 0;
  bool in_place_ = false, into_first_level_ = false;
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_LISTED_ROWS_INL_
