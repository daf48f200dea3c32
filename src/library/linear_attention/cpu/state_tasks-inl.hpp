// SPDX-License-Identifier: Apache-2.0
// Divides scans into tasks for the threads; included once per Highway target.
#if defined(HEADGATE_LINEAR_STATE_TASKS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_LINEAR_STATE_TASKS_INL_
#undef HEADGATE_LINEAR_STATE_TASKS_INL_
#else
#define HEADGATE_LINEAR_STATE_TASKS_INL_
#endif

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <type_traits>

#include "library/linear_attention/cpu/state_rows-inl.hpp"
#include "library/linear_attention/problem.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// A task of the forward pass: the column blocks [first, end) of the states of sequence n and heads [h, h + heads).
struct StateTask {
  std::int64_t n, h;
  std::int64_t heads;
  std::int64_t first, end;

  /// Returns the part of this task that belongs to its i-th head.
  StateTask head(std::int64_t i) const { return {n, h + i, 1, first, end}; }
};

/// Divides the states of a problem into tasks. If there are too few states to keep all threads busy, several tasks
/// share a state: each takes some of the state's column blocks. Columns of a state are independent, so this does not
/// change results.
class StateTasks {
 public:
  StateTasks(const LinearProblem& p, std::int64_t blocks)
      : heads_(p.Hv), states_(p.N * p.Hv), blocks_(blocks), static_schedule_(p.B * p.T <= p.N) {
    // Dividing a state has a cost: each task packs the state's tokens, even if it computes only some of the columns.
    // Packing is a seventh of the work of a whole state.
    const std::int64_t threads = p.context.threads;
    if (states_ % threads != 0 && states_ < 4 * threads) pieces_ = std::min(threads, blocks);
    // Uses one thread, plus one for each kLeastPerThread updates of state elements. Fewer updates take less time than
    // waking a thread. One token of four heads with D = Dv = 128 takes 2^16 updates.
    constexpr double kLeastPerThread = 1 << 16;
    const double work = static_cast<double>(p.B * p.T * p.Hv) * static_cast<double>(p.D * p.Dv);
    const auto useful = static_cast<std::int64_t>(std::min(work / kLeastPerThread, 1e6)) + 1;
    if (pieces_ == 1 && !static_schedule_ && heads_are_interleaved(p)) take_heads_together(threads);
    threads_ = static_cast<int>(std::clamp<std::int64_t>(std::min(count(), useful), 1, p.context.threads));
  }

  std::int64_t count() const { return states_ / together_ * pieces_; }
  /// Returns the number of heads of each task.
  std::int64_t together() const { return together_; }
  int threads() const { return threads_; }
  /// Returns whether tasks need static scheduling: each thread then takes the same states in every call. Returns true
  /// for calls that decode, with at most one token per sequence on average. States that are updated in place then stay
  /// in the caches of one core.
  bool static_schedule() const { return static_schedule_; }
  StateTask operator()(std::int64_t task) const {
    const std::int64_t state = task / pieces_ * together_, piece = task % pieces_;
    return {state / heads_, state % heads_, together_, blocks_ * piece / pieces_, blocks_ * (piece + 1) / pieces_};
  }

 private:
  /// Returns whether the rows of a token's heads are neighbours in memory, as in the layout (B,T,H,D).
  static bool heads_are_interleaved(const LinearProblem& p) {
    return std::abs(p.inputs.v.strides[1]) < std::abs(p.inputs.v.strides[2]);
  }

  /// Makes tasks of several heads. A thread computes a chunk of one head and then the same chunk of the next head. The
  /// rows that these heads have for one token share a page, so the page's address is still in the TLB. Eight rows
  /// of D = 128 fill a page, and eight states take 512 KiB of the outer caches. With several threads, leaves at least
  /// two tasks for each thread.
  void take_heads_together(std::int64_t threads) {
    constexpr std::int64_t kMostTogether = 8;
    for (together_ = kMostTogether; together_ > 1; together_ /= 2) {
      if (heads_ % together_ == 0 && states_ / together_ >= (threads > 1 ? 2 * threads : 1)) return;
    }
  }

  std::int64_t heads_, states_, blocks_;
  std::int64_t pieces_ = 1, together_ = 1;
  int threads_ = 1;
  bool static_schedule_;
};

/// Calls visit(count), where the std::integral_constant `count` equals `vectors`.
template <class Visit>
HWY_INLINE void with_vectors(std::int64_t vectors, const Visit& visit) {
  static_assert(kMostVectors == 2);
  vectors == 1 ? visit(std::integral_constant<std::int64_t, 1>()) : visit(std::integral_constant<std::int64_t, 2>());
}

/// Calls visit(block, columns, index) for each block from task.first to task.end. `state` holds all blocks of a state
/// with `rows` rows and `cols` columns, one block after the other.
template <typename T, class Task, class Visit>
HWY_INLINE void for_state_blocks(T* state, std::int64_t rows, std::int64_t cols, const Task& task, const Visit& visit) {
  const ColumnBlocks<T> blocks(cols);
  for (std::int64_t n = task.first; n < task.end; ++n) {
    const auto block = blocks(n);
    with_vectors(block.vectors, [&](auto vectors) HWY_ATTR {
      constexpr std::int64_t kVectors = decltype(vectors)::value;
      T* const at = state + block.first * kLanes<T> * rows;
      visit(StateBlock<T, kVectors>{at, rows}, columns_of<T, kVectors>(block.first, cols), n);
    });
  }
}

/// Returns the range of columns that the blocks of a task cover.
template <typename T, class Task>
StateColumns task_columns(const Task& task, std::int64_t cols) {
  const ColumnBlocks<T> blocks(cols);
  const std::int64_t first = blocks(task.first).first * kLanes<T>;
  const auto last = blocks(task.end - 1);
  return {first, std::min((last.first + last.vectors) * kLanes<T>, cols) - first};
}

/// Runs a pass with the given rescaling. Not inlined, because a pass has hundreds of instructions.
template <class PassT, typename T, std::int64_t kVectors>
HWY_NOINLINE void run_pass(PassT& pass, const StateBlock<T, kVectors>& block, Rescaling rescaling) {
  switch (rescaling) {
    case Rescaling::none: return pass.template run<Rescaling::none>(block);
    case Rescaling::rows: return pass.template run<Rescaling::rows>(block);
    case Rescaling::columns: return pass.template run<Rescaling::columns>(block);
  }
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_LINEAR_STATE_TASKS_INL_
