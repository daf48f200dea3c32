// SPDX-License-Identifier: Apache-2.0
// Sizes and buffers of one backward call; included once per Highway target.
#if defined(HEADGATE_ATTENTION_BACKWARD_PLAN_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_BACKWARD_PLAN_INL_
#undef HEADGATE_ATTENTION_BACKWARD_PLAN_INL_
#else
#define HEADGATE_ATTENTION_BACKWARD_PLAN_INL_
#endif

#include <algorithm>
#include <cstdint>

#include "attention/backend.hpp"
#include "attention/cpu/multiply-inl.hpp"
#include "attention/cpu/scores-inl.hpp"
#include "core/arena.hpp"
#include "core/sum_blocks.hpp"
#include "core/turnstile.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Work is cut into tiles of kTile queries by kBlock keys. One thread owns a key block: its dk and dv stay in its cache
/// while the query tiles pass. dq is shared: the key blocks add to it in ascending order (Turnstile).
///
/// Both tile sides are multiples of the register tile's rows and columns on every target.
template <typename T>
struct BackwardPlan {
  static constexpr std::size_t kTile = kQueryTile;
  static constexpr std::size_t kBlock = kBackwardKeys;
  static constexpr std::size_t kScoreStride = kBlock + 16;  // a cache line more, so that rows lie in different sets
  static constexpr std::size_t kRows = 5 + kMR;             ///< row buffers of a thread
  /// Packed operands of as many key/value heads as fit here are held at a time, at least one, as in the forward pass.
  static constexpr std::size_t kPackedBudget_bytes = std::size_t{24} << 20;
  static_assert(kTile % kMR == 0 && kBlock % kMR == 0 && kBlock % kNR<T> == 0);

  using StripLeft = LeftLayout<1, kMR>;            // packed strips of q or do
  using ScoreLeft = LeftLayout<kScoreStride, 1>;   // a score tile, rows = queries
  using ScoreLeftT = LeftLayout<1, kScoreStride>;  // a score tile, rows = keys

  explicit BackwardPlan(const BackwardCall& c)
      : call(c),
        p(c.problem),
        rules(c.problem),
        D(static_cast<std::size_t>(p.D)),
        Dv(static_cast<std::size_t>(p.Dv)),
        D_padded(round_up(D, kLanes<T>)),
        Dv_padded(round_up(Dv, kLanes<T>)),
        tiles(divide_up(p.T, kTile)),
        blocks(divide_up(p.S, kBlock)),
        heads(p.B * p.Hkv) {
    query_rows = static_cast<std::size_t>(tiles) * kTile;
    key_rows = static_cast<std::size_t>(blocks) * kBlock;
    const std::size_t per_head = key_rows * (D + Dv + D_padded) +
                                 static_cast<std::size_t>(p.group) * query_rows * (D + 2 * D_padded + Dv + Dv_padded);
    const auto fit = static_cast<std::int64_t>(kPackedBudget_bytes / std::max<std::size_t>(per_head * sizeof(T), 1));
    heads_at_once = std::clamp<std::int64_t>(fit, 1, std::max<std::int64_t>(heads, 1));
    const std::int64_t tasks = heads_at_once * std::max(blocks, p.group * tiles);
    threads = static_cast<int>(std::clamp<std::int64_t>(tasks, 1, p.context.threads));
    lay_out_packed();
    lay_out_bias();
    Arena one;
    lay_out_scratch(one);
    scratch_bytes = one.size_bytes();
    scratch_at = arena.reserve(static_cast<std::size_t>(threads) * scratch_bytes, 1);
    arena.allocate();
  }

  static std::int64_t divide_up(std::int64_t n, std::size_t by) {
    return (n + static_cast<std::int64_t>(by) - 1) / static_cast<std::int64_t>(by);
  }

  void lay_out_packed() {
    const auto held = static_cast<std::size_t>(heads_at_once);
    const std::size_t held_q = held * static_cast<std::size_t>(p.group);
    keys_t_at = arena.reserve(held * key_rows * D, sizeof(T));
    keys_at = arena.reserve(held * key_rows * D_padded, sizeof(T));
    values_t_at = arena.reserve(held * key_rows * Dv, sizeof(T));
    query_strips_at = arena.reserve(held_q * query_rows * D, sizeof(T));
    query_panels_at = arena.reserve(held_q * query_rows * D_padded, sizeof(T));
    out_strips_at = arena.reserve(held_q * query_rows * Dv, sizeof(T));
    out_panels_at = arena.reserve(held_q * query_rows * Dv_padded, sizeof(T));
    dq_at = arena.reserve(held_q * query_rows * D_padded, sizeof(T));
    lse_at = arena.reserve(held_q * query_rows, sizeof(T));
    delta_at = arena.reserve(held_q * query_rows, sizeof(T));
    sink_parts_at = arena.reserve(static_cast<std::size_t>(p.B * p.Hq * tiles), sizeof(double));
    dq_turns_at = arena.reserve(held_q * static_cast<std::size_t>(tiles), sizeof(std::uint32_t));
  }

  /// dbias accumulates in place where its dtype is T or each element has one term; else in a dense copy of its shape.
  void lay_out_bias() {
    if (!call.gradients.dbias.present()) return;
    dbias = call.gradients.dbias;
    const Shape& shape = dbias.shape;
    bias_over_t = shape[2] == 1 && p.T != 1;
    const bool one_term = shape[0] == p.B && shape[1] == p.Hq && !bias_over_t;
    if (dbias.dtype != dtype_of<T>() && !one_term) {
      bias_copy_at = arena.reserve(static_cast<std::size_t>(dbias.numel()), sizeof(T));
      bias_copied = true;
    }
    bias_turns = static_cast<std::size_t>(shape[0] * shape[1] * blocks * (bias_over_t ? 1 : tiles));
    bias_turns_at = arena.reserve(bias_turns, sizeof(std::uint32_t));
  }

  void lay_out_scratch(Arena& a) {
    row_stride = round_up(std::max({D, Dv, kBlock}), kLanes<T>);
    p_at = a.reserve(kTile * kScoreStride, sizeof(T));
    ds_at = a.reserve(kTile * kScoreStride, sizeof(T));
    dk_at = a.reserve(kBlock * D_padded, sizeof(T));
    dv_at = a.reserve(kBlock * Dv_padded, sizeof(T));
    rows_at = a.reserve(std::max(std::max(kNR<T>, kMR) * std::max(D, Dv), kRows * row_stride), sizeof(T));
    slope_at = a.reserve(rules.capped() ? kMR * kScoreStride : 0, sizeof(T));
    bias_sum_at = a.reserve(bias_over_t ? kBlock : 0, sizeof(T));
  }

  template <typename U = T>
  U* at(std::size_t offset, std::size_t index = 0) const {
    return arena.template at<U>(offset) + index;
  }

  /// Where dbias accumulates.
  TensorView dbias_target() const {
    if (!bias_copied) return dbias;
    return {at(bias_copy_at), dtype_of<T>(), dbias.shape, contiguous_strides(dbias.shape)};
  }

  const BackwardCall& call;
  const Problem& p;
  ScoreRules<T> rules;
  std::size_t D, Dv, D_padded, Dv_padded;
  std::int64_t tiles, blocks, heads, heads_at_once = 1;
  std::size_t query_rows = 0, key_rows = 0, row_stride = 0;
  // Offsets of what is shared. Left operands are strips, right operands panels; _t: transposed.
  std::size_t keys_t_at = 0, keys_at = 0, values_t_at = 0;
  std::size_t query_strips_at = 0, query_panels_at = 0, out_strips_at = 0, out_panels_at = 0;
  std::size_t dq_at = 0, lse_at = 0, delta_at = 0, sink_parts_at = 0, dq_turns_at = 0;
  TensorView dbias;
  bool bias_over_t = false, bias_copied = false;
  std::size_t bias_copy_at = 0, bias_turns = 0, bias_turns_at = 0;
  // Offsets of one thread's scratch.
  std::size_t scratch_at = 0, scratch_bytes = 0;
  std::size_t p_at = 0, ds_at = 0, dk_at = 0, dv_at = 0, rows_at = 0, slope_at = 0, bias_sum_at = 0;
  int threads = 1;
  Arena arena;
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_BACKWARD_PLAN_INL_
