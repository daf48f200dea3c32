// SPDX-License-Identifier: Apache-2.0
// Computes the gated norm, forward and backward, in tiles of rows. The second read of a row hits the L1 cache.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "library/core/cancellation.hpp"
#include "library/core/dispatch.hpp"
#include "library/core/team.hpp"
#include "library/core/workspace.hpp"
#include "library/linear_attention/gated_norm.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "library/linear_attention/cpu/gated_norm_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// The headers below are compiled once per target, so foreach_target.h must come first.
#include "library/core/head_rows-inl.hpp"
#include "library/linear_attention/cpu/gated_norm_rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Number of tokens and of heads in a tile. dweight is first summed within each tile, and then over tiles. The last
/// bits of dweight therefore depend on these sizes.
inline constexpr std::int64_t kTileTokens = 32;
inline constexpr std::int64_t kTileHeads = 32;

/// Divides the rows of x into tiles. Row (b,h,i) is the row of batch b, head h and token i.
struct NormPlan {
  const GatedNormProblem& p;
  std::int64_t token_blocks = divide_up(p.T, kTileTokens);
  std::int64_t head_blocks = divide_up(p.H, kTileHeads);
  /// Whether x has a smaller stride between heads than between tokens.
  bool heads_inside = std::abs(p.inputs.x.strides[1]) < std::abs(p.inputs.x.strides[2]);
  /// Number of rows in NormBuffers::sums, the partial sums of dweight:
  ///   - one row per head and block of kTileTokens tokens, if each head has its own weight
  ///   - one row per tile, if all heads share one weight
  ///   - none, if dweight is not requested
  std::int64_t sums = !p.gradients.dweight.present() ? 0
                      : p.weight_of_head()           ? p.B * token_blocks * p.H
                                                     : p.B * token_blocks * head_blocks;

  std::int64_t tiles() const { return p.B * token_blocks * head_blocks; }

  /// Returns the row of NormBuffers::sums to which head h of a tile adds its dweight.
  std::int64_t sums_of(std::int64_t tile, std::int64_t h) const {
    return p.weight_of_head() ? tile / head_blocks * p.H + h : tile;
  }
  std::int64_t first_head(std::int64_t tile) const { return tile % head_blocks * kTileHeads; }
  std::int64_t end_head(std::int64_t tile) const { return std::min(first_head(tile) + kTileHeads, p.H); }

  /// Calls visit(b, h, i) for each row of a tile, in memory order.
  template <class Visit>
  void each_row(std::int64_t tile, const Visit& visit) const {
    const std::int64_t block = tile / head_blocks, b = block / token_blocks;
    const std::int64_t i0 = block % token_blocks * kTileTokens, i1 = std::min(i0 + kTileTokens, p.T);
    const std::int64_t h0 = first_head(tile), h1 = end_head(tile);
    if (heads_inside) {
      for (std::int64_t i = i0; i < i1; ++i) {
        for (std::int64_t h = h0; h < h1; ++h) visit(b, h, i);
      }
    } else {
      for (std::int64_t h = h0; h < h1; ++h) {
        for (std::int64_t i = i0; i < i1; ++i) visit(b, h, i);
      }
    }
  }
};

/// Scratch rows of one thread. A row has D elements, rounded up to whole vectors.
template <typename T>
struct NormScratch {
  NormScratch(Workspace& ws, std::int64_t padded) {
    for (auto* row : {&x, &z, &dy, &dx, &dz, &dweight}) *row = ws.take<T>("row", padded);
  }
  View<T, 1> x, z, dy, dx, dz, dweight;
};

template <typename T>
struct NormBuffers {
  NormBuffers(Workspace& ws, const NormPlan& plan, int threads) {
    const std::int64_t padded = round_up(plan.p.D, kLanes<T>);
    weights = ws.take<T>("weights", plan.p.weight_of_head() ? plan.p.H : 1, padded);
    sums = ws.take<T>("sums", plan.sums, padded);
    totals = ws.take<double>("sums", plan.p.gradients.dweight.present() ? plan.p.D : 0);
    scratch = ws.take<std::byte>("threads", threads, count_bytes<NormScratch<T>>(padded));
  }
  View<T, 2> weights;  ///< (H or 1, padded D) weights as T, padded with zeros; 1 if there are no weights
  View<T, 2> sums;     ///< (plan.sums, padded D) partial sums of dweight
  View<double, 1> totals;
  View<std::byte, 2> scratch;  ///< (threads, bytes) memory for the NormScratch of each thread
};

/// Loads row i, converts it to T and pads it with zeros to whole vectors.
template <typename T>
void load_padded(T* to, const HeadRows<const void>& from, std::int64_t i) {
  load_row(to, from, i, 0, from.cols);
  std::fill(to + from.cols, to + round_up(from.cols, kLanes<T>), T{0});
}

template <typename T>
void load_weights(const View<T, 2>& weights, const GatedNormProblem& p) {
  for (std::int64_t h = 0; h < weights.shape[0]; ++h) {
    if (p.inputs.weight.present()) {
      load_padded(weights.at(h), HeadRows<const void>(p.inputs.weight, 0, h), 0);
    } else {
      std::fill_n(weights.at(h), weights.shape[1], T{1});
    }
  }
}

/// Computes the tiles that one thread takes.
template <typename T>
class NormWorker {
 public:
  using Half = std::conditional_t<std::is_same_v<T, float>, BFloat16, T>;

  NormWorker(const NormPlan& plan, const NormBuffers<T>& shared, int thread)
      : plan_(plan),
        p_(plan.p),
        shared_(shared),
        padded_(shared.weights.shape[1]),
        scratch_(place_buffers<NormScratch<T>>(shared.scratch.at(thread), padded_)) {}

  void forward(std::int64_t tile) const {
    if (can_run_in_place(dtype_of<T>())) return forward_in_place<T>(tile);
    if (can_run_in_place(dtype_of<Half>())) return forward_in_place<Half>(tile);
    plan_.each_row(tile, [this](std::int64_t b, std::int64_t h, std::int64_t i) { forward_buffered(b, h, i); });
  }

  void backward(std::int64_t tile) const {
    const bool sums = plan_.sums > 0;
    for (std::int64_t h = plan_.first_head(tile); sums && h < plan_.end_head(tile); ++h)
      std::fill_n(shared_.sums.at(plan_.sums_of(tile, h)), padded_, T{0});
    plan_.each_row(tile, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
      backward_row(b, h, i, sums ? shared_.sums.at(plan_.sums_of(tile, h)) : scratch_.dweight.data);
    });
  }

 private:
  /// Returns whether the kernels can work without copies. x, y and the gate must have dtype `dtype` and dense rows of
  /// whole vectors.
  bool can_run_in_place(DType dtype) const {
    const auto fits = [&](const ConstTensorView& view) { return view.dtype == dtype && view.strides[3] == 1; };
    return p_.D == padded_ && fits(p_.inputs.x) && fits(p_.y) && (!p_.gated() || fits(p_.inputs.gate));
  }

  const T* weight_of(std::int64_t h) const { return shared_.weights.at(p_.weight_of_head() ? h : 0); }

  /// Normalises the rows of a tile without copying them, four at a time. While the CPU computes the square root for one
  /// row's scale, it already sums the squares of the next row.
  template <typename Stored>
  void forward_in_place(std::int64_t tile) const {
    constexpr std::int64_t kMost = 4;
    NormRow<T, Stored> rows[kMost];
    std::int64_t count = 0;
    const auto flush = [&] {
      norm_rows(rows, count, padded_, p_.gate_fn);
      count = 0;
    };
    plan_.each_row(tile, [&](std::int64_t b, std::int64_t h, std::int64_t i) HWY_ATTR {
      NormRow<T, Stored>& row = rows[count];
      row.x = HeadRows<const void>(p_.inputs.x, b, h).template at<Stored>(i, 0, p_.D);
      RowScale<T> scale;
      if (!find_scale(sum_of_squares<T>(row.x, padded_), p_.D, p_.eps, scale)) return forward_buffered(b, h, i);
      row.z = p_.gated() ? HeadRows<const void>(p_.inputs.gate, b, h).template at<Stored>(i, 0, p_.D) : nullptr;
      row.y = HeadRows<void>(p_.y, b, h).template at<Stored>(i, 0, p_.D);
      row.weight = weight_of(h);
      row.factor = scale.factor;
      if (++count == kMost) flush();
    });
    flush();
  }

  /// Loads a row of x into the scratch and returns the row's scale. The scratch row may be multiplied by a power of
  /// two, see RowScale.
  RowScale<T> load_x(std::int64_t b, std::int64_t h, std::int64_t i) const {
    T* const x = scratch_.x.data;
    load_padded(x, HeadRows<const void>(p_.inputs.x, b, h), i);
    RowScale<T> scale;
    if (!find_scale(sum_of_squares<T>(x, padded_), p_.D, p_.eps, scale)) scale = scale_row(x, padded_, p_.D, p_.eps);
    return scale;
  }

  void load_z(std::int64_t b, std::int64_t h, std::int64_t i) const {
    if (p_.gated()) load_padded(scratch_.z.data, HeadRows<const void>(p_.inputs.gate, b, h), i);
  }

  void forward_buffered(std::int64_t b, std::int64_t h, std::int64_t i) const {
    const RowScale<T> scale = load_x(b, h, i);
    load_z(b, h, i);
    T* const y = scratch_.dx.data;
    const NormRow<T, T> row{scratch_.x.data, scratch_.z.data, y, weight_of(h), scale.factor};
    norm_rows(&row, 1, padded_, p_.gate_fn);
    store_row(HeadRows<void>(p_.y, b, h), y, i, 0, p_.D);
  }

  void backward_row(std::int64_t b, std::int64_t h, std::int64_t i, T* dweight) const {
    const RowScale<T> scale = load_x(b, h, i);
    load_z(b, h, i);
    load_padded(scratch_.dy.data, HeadRows<const void>(p_.dy, b, h), i);
    T *const dx = scratch_.dx.data, *const dz = scratch_.dz.data;
    norm_row_backward({scratch_.x.data, scratch_.dy.data, scratch_.z.data, weight_of(h), dx, dz, dweight}, scale,
                      padded_, p_.D, p_.gate_fn);
    const GatedNormGradients& to = p_.gradients;
    if (to.dx.present()) store_row(HeadRows<void>(to.dx, b, h), dx, i, 0, p_.D);
    if (to.dgate.present()) store_row(HeadRows<void>(to.dgate, b, h), dz, i, 0, p_.D);
  }

  const NormPlan& plan_;
  const GatedNormProblem& p_;
  const NormBuffers<T>& shared_;
  std::int64_t padded_;
  NormScratch<T> scratch_;
};

/// Computes dweight: adds up the partial sums in ascending order.
template <typename T>
void reduce_dweight(const NormPlan& plan, const NormBuffers<T>& shared) {
  const GatedNormProblem& p = plan.p;
  const std::int64_t heads = p.weight_of_head() ? p.H : 1;
  for (std::int64_t h = 0; h < heads; ++h) {
    double* HWY_RESTRICT totals = shared.totals.data;
    std::fill_n(totals, p.D, 0.0);
    for (std::int64_t n = h; n < plan.sums; n += heads) {
      const T* HWY_RESTRICT sums = shared.sums.at(n);
      for (std::int64_t i = 0; i < p.D; ++i) totals[i] += static_cast<double>(sums[i]);
    }
    store_row(HeadRows<void>(p.gradients.dweight, 0, h), totals, 0, 0, p.D);
  }
}

template <typename T>
void gated_norm_typed(const GatedNormProblem& p) {
  const NormPlan plan{p};
  const std::int64_t tiles = plan.tiles();
  const int threads = static_cast<int>(std::clamp<std::int64_t>(tiles, 1, p.context.threads));
  const bool backward = p.dy.present();
  const Placed<NormBuffers<T>> shared(plan, threads);
  Cancellation cancellation(p.context);
  load_weights(shared->weights, p);
  run_team(threads, [&](const Team& team) {
    const NormWorker<T> worker(plan, *shared, team.thread());
    team.in_turn_nowait(tiles, [&](std::int64_t tile) {
      if (cancellation.requested()) return;
      backward ? worker.backward(tile) : worker.forward(tile);
    });
  });
  cancellation.throw_if_seen();
  if (p.gradients.dweight.present()) reduce_dweight(plan, *shared);
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate {

HEADGATE_TARGET_TABLE(gated_norm_typed);

void cpu_gated_norm(const GatedNormProblem& problem) {
  HEADGATE_FOR_DTYPE(gated_norm_typed, problem.dtype, problem.context.target)(problem);
}

}  // namespace headgate
#endif  // HWY_ONCE
