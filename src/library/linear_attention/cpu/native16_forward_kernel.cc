// SPDX-License-Identifier: Apache-2.0
// Computes the forward pass of gated linear attention with bf16 products (Precision::native16), in chunks of tokens.
// native16_chunk-inl.hpp has the formulas.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "library/call/native16.hpp"
#include "library/core/cancellation.hpp"
#include "library/core/dispatch.hpp"
#include "library/core/team.hpp"
#include "library/core/workspace.hpp"
#include "library/linear_attention/cpu/kernels.hpp"
#include "library/linear_attention/problem.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "library/linear_attention/cpu/native16_forward_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// The headers below are compiled once per target, so foreach_target.h must come first.
#include "library/linear_attention/cpu/forward_scan-inl.hpp"
#include "library/linear_attention/cpu/native16_chunk-inl.hpp"
#include "library/linear_attention/cpu/state_tasks-inl.hpp"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Scratch buffers of one thread.
struct Native16LinearBuffers {
  Native16LinearBuffers(Workspace& ws, const LinearForwardProblem& p, std::int64_t heads, bool scans)
      : D(whole_squares(p.D)),
        cols(whole_squares(p.Dv)),
        keys(ws, D),
        decays(ws, p),
        states(ws.take<float>("state", heads, D, cols + kRowPadding)),
        state_panels(ws.take<BFloat16>("state panels", cols / kTileCols, D * kTileCols)),
        queries(ws.take<BFloat16>("queries", kSquare, D)),
        products(ws.take<float>("products", kSquare, kSquare)),
        decayed_products(ws.take<float>("products", kSquare, kSquare)),
        weights(ws.take<BFloat16>("weights", kSquare, kSquare)),
        updates(ws.take<float>("updates", kSquare, cols + kRowPadding)),
        outputs(ws.take<float>("outputs", kSquare, cols + kRowPadding)),
        update_panels(ws.take<BFloat16>("updates", cols / kTileCols, kSquare * kTileCols)),
        decayed_panels(ws.take<BFloat16>("updates", cols / kTileCols, kSquare * kTileCols)),
        betas(ws.take<float>("operands", kSquare)),
        row(ws.take<float>("operands", D)),
        scan(ws.take<std::byte>(
            "scan",
            scans ? count_bytes<LinearForwardBuffers<float>>(static_cast<const LinearProblem&>(p), heads) : 0)) {}

  std::int64_t D, cols;  ///< D and Dv, padded to multiples of kSquare
  ChunkKeys keys;
  ChunkDecays decays;
  View<float, 3> states;  ///< (heads,D,cols): S of each head of a task; column 0 is the first column of the task
  View<BFloat16, 2> state_panels;                   ///< right operand of K S and Q S: S rounded to bf16
  View<BFloat16, 2> queries;                        ///< Q (kSquare,D)
  View<float, 2> products;                          ///< Q Kᵀ
  View<float, 2> decayed_products;                  ///< A
  View<BFloat16, 2> weights;                        ///< the weights (Q Kᵀ) ∘ F
  View<float, 2> updates;                           ///< rows of V, and later of U
  View<float, 2> outputs;                           ///< K S, and later the rows of y
  View<BFloat16, 2> update_panels, decayed_panels;  ///< right operands of products: U, and F_last ∘ U
  View<float, 1> betas;                             ///< (kSquare): β of the chunk's tokens, then zeros
  View<float, 1> row;                               ///< scratch for one row of q or k
  View<std::byte, 1> scan;  ///< memory of the scan, which computes parts of few tokens; empty if there are none
};

/// Computes the tasks of one thread. The range of a task counts blocks of kSquare columns.
template <class Unit>
class Native16LinearWorker {
 public:
  Native16LinearWorker(const LinearForwardProblem& p, std::int64_t heads, bool scans, std::byte* memory)
      : p_(p), heads_(heads), b_(place_buffers<Native16LinearBuffers>(memory, p, heads, scans)) {
    if (!b_.decays.present) b_.decays.fill();
  }

  /// Computes the task's columns of the states, and the same columns of y, for all tokens of the sequence. Snapshots
  /// divide the sequence into parts. Uses the scan for parts of few tokens.
  void run(const StateTask& task, Cancellation& cancellation) {
    static_assert(kMostVectors * kLanes<float> == kSquare);  // the range of a task counts the same blocks in the scan
    for_parts(
        p_, task.n, cancellation, [&](const TokenRange& s, const ConstStates& old_states, const States& new_states) {
          if (s.T >= kLeastNative16Tokens) return run_part(task, s, old_states, new_states, cancellation);
          LinearForwardWorker<float>(p_, heads_, b_.scan.data).run_part(task, s, old_states, new_states, cancellation);
        });
  }

 private:
  /// Computes the tokens `s`, one part of a sequence. Reads the states before the part from `old_states`, and writes
  /// the states after it to `new_states`. Computes kSquare tokens for all heads of the task before the next kSquare
  /// tokens, so that heads share packed keys.
  void run_part(const StateTask& task, const TokenRange& s, const ConstStates& old_states, const States& new_states,
                Cancellation& cancellation) {
    first_ = task.first * kSquare;
    cols_ = std::min(task.end * kSquare, p_.Dv) - first_;
    padded_ = whole_squares(cols_);
    packed_keys_ = packed_queries_ = {};
    for (std::int64_t i = 0; i < task.heads; ++i) load_state(i, old_states(task.h + i));
    for (std::int64_t t = 0; t < s.T && !cancellation.requested(); t += kSquare) {
      const std::int64_t count = std::min(kSquare, s.T - t);
      for (std::int64_t i = 0; i < task.heads; ++i) run_tokens(task.h + i, i, s, t, count);
    }
    for (std::int64_t i = 0; new_states.tensor.present() && i < task.heads; ++i) store_state(i, new_states(task.h + i));
  }

  void load_state(std::int64_t i, const HeadRows<const void>& from) const {
    const View<float, 2> state = b_.states[i];
    std::fill(state.data, state.data + state.count(), 0.0F);
    for (std::int64_t x = 0; from.present() && x < p_.D; ++x) load_row(state.at(x), from, x, first_, cols_);
  }

  void store_state(std::int64_t i, const HeadRows<void>& to) const {
    for (std::int64_t x = 0; x < p_.D; ++x) store_row(to, b_.states.at(i, x), x, first_, cols_);
  }

  /// Computes tokens [t, t + count) of state h, which is states[i]. Divides the tokens into several chunks if products
  /// of their decays exceed kMostFactor.
  void run_tokens(std::int64_t h, std::int64_t i, const TokenRange& s, std::int64_t t, std::int64_t count) {
    const ChunkDecays& decays = b_.decays;
    if (decays.present) {
      const HeadRows<const void> rows = token_rows(p_.inputs.decay, s, h);
      for (std::int64_t n = 0; n < count; ++n) load_row(decays.logs.at(n), rows, t + n, 0, 1);
    }
    for (std::int64_t n = 0; n < count;) {
      const std::int64_t tokens = decays.present ? tokens_of_chunk(decays.logs.at(n), count - n) : count;
      decays.make(n, tokens);
      run_chunk(h, i, s, {t + n, tokens, Direction::forward});
      n += tokens;
    }
  }

  /// Computes a chunk of state h: its rows of y, and the state after the chunk.
  void run_chunk(std::int64_t h, std::int64_t i, const TokenRange& s, const Chunk& chunk) {
    const ChunkDecays& decays = b_.decays;
    const float* const last_decays = decays.pair_decays.at(chunk.count - 1);
    HWY_ALIGN float whole_decays[kSquare];  // f_last, once for each row of a square of the state
    std::fill_n(whole_decays, kSquare, decays.prefix_decays(chunk.count - 1));
    const PairPanels state{b_.state_panels.data, b_.state_panels.shape[1]};
    pack_keys(p_.key_head(h), s, chunk);
    pack_and_decay_state(state, b_.states[i], 1.0F, padded_);  // the update of the state applies its decay
    load_updates(h, s, chunk);
    if (p_.has_delta) {
      multiply_rows(b_.keys.rows, state);
      lower_products(b_.decayed_products, b_.keys.products, decays.pair_decays, chunk.count);
      substitute(b_.updates, b_.outputs, b_.decayed_products, decays.prefix_decays.data, b_.betas.data, chunk.count,
                 padded_);
    }
    const PairPanels plain{b_.update_panels.data, b_.update_panels.shape[1]};
    const PairPanels decayed = decays.present ? PairPanels{b_.decayed_panels.data, plain.panel_stride} : plain;
    const unsigned overflowing =
        pack_updates(plain, decayed, b_.updates, decays.present ? last_decays : nullptr, chunk.count, padded_);
    for (std::int64_t r = 0; r < p_.heads_per_state(); ++r)
      write_rows(h * p_.heads_per_state() + r, s, chunk, state, plain, overflowing);
    for (std::int64_t x = 0; x < b_.D; x += kSquare) {
      for (std::int64_t c = 0; c < padded_; c += kSquare) {
        Unit::template multiply<SquareWrite::scale_and_accumulate>(
            b_.keys.transposed_rows.at(x), kSquare, decayed.from(c / kTileCols, 0), kSquare, b_.states.at(i, x, c),
            b_.states.shape[2], whole_decays);
      }
    }
  }

  /// Identifies the rows that a buffer holds in packed form: `count` tokens of a head, from token t0 on.
  struct Packed {
    std::int64_t head = -1, t0 = 0, count = 0;
    bool operator==(const Packed&) const = default;
  };

  /// Packs the chunk's keys of a head. Does nothing if the buffer still holds them from an earlier call.
  void pack_keys(std::int64_t head, const TokenRange& s, const Chunk& chunk) {
    const Packed wanted{head, chunk.t0, chunk.count};
    if (packed_keys_ == wanted) return;
    packed_keys_ = wanted;
    packed_queries_ = {};  // discards Q Kᵀ, which is out of date
    const ChunkKeys& keys = b_.keys;
    pack_token_rows(keys.rows, token_rows(p_.inputs.k, s, head), chunk, p_, b_.row);
    keys.transpose();
    if (p_.has_delta) multiply_square(keys.rows, keys.products);
  }

  /// Packs the chunk's queries of a head, and multiplies them by the keys. Does nothing if the buffers still hold the
  /// results of an earlier call.
  void pack_queries(std::int64_t head, const TokenRange& s, const Chunk& chunk) {
    const Packed wanted{head, chunk.t0, chunk.count};
    if (packed_queries_ == wanted) return;
    packed_queries_ = wanted;
    pack_token_rows(b_.queries, token_rows(p_.inputs.q, s, head), chunk, p_, b_.row, static_cast<float>(p_.scale));
    multiply_square(b_.queries, b_.products);
  }

  /// Computes to = rows · Kᵀ.
  void multiply_square(const View<BFloat16, 2>& rows, const View<float, 2>& to) const {
    multiply_rows_by<Unit, SquareWrite::overwrite>(to, kSquare, rows, b_.keys.transposed(), b_.D);
  }

  /// Computes outputs = rows · S.
  void multiply_rows(const View<BFloat16, 2>& rows, const PairPanels& state) const {
    multiply_rows_by<Unit, SquareWrite::overwrite>(b_.outputs, padded_, rows, state, b_.D);
  }

  /// Loads the chunk's columns of V and its β. Fills padding rows and columns with zeros.
  void load_updates(std::int64_t h, const TokenRange& s, const Chunk& chunk) const {
    load_padded(b_.updates, token_rows(p_.inputs.v, s, h), chunk, first_, cols_);
    std::fill(b_.betas.data + chunk.count, b_.betas.data + kSquare, 0.0F);
    load_betas(b_.betas, p_, s, h, chunk);
  }

  /// Computes and writes the chunk's rows of y for one output head. `updates` holds U, in blocks of kSquare columns.
  /// Bit n of `overflowing` is set if block n has an infinity or NaN. In such blocks, skips the weights above the
  /// diagonal: they are zero, and 0 · ∞ is NaN. Each block belongs to one task, so the division into tasks does not
  /// change y.
  void write_rows(std::int64_t head, const TokenRange& s, const Chunk& chunk, const PairPanels& state,
                  const PairPanels& updates, unsigned overflowing) {
    pack_queries(p_.query_head(head), s, chunk);
    multiply_rows(b_.queries, state);
    weigh_products(b_.weights, b_.products, b_.decays.pair_decays, chunk.count);
    for (std::int64_t c = 0; c < padded_; c += kSquare) {
      if ((overflowing >> static_cast<unsigned>(c / kSquare) & 1U) != 0) {
        add_lower_product(b_.outputs, b_.weights, b_.updates, b_.decays.prefix_decays.data, chunk.count, c);
      } else {
        Unit::template multiply<SquareWrite::scale_and_accumulate>(
            b_.weights.data, kSquare, updates.from(c / kTileCols, 0), kSquare, b_.outputs.at(0, c), b_.outputs.shape[1],
            b_.decays.prefix_decays.data);
      }
    }
    const HeadRows<void> y = token_rows(p_.outputs.y, s, head);
    for (std::int64_t n = 0; n < chunk.count; ++n) store_row(y, b_.outputs.at(n), chunk.token(n), first_, cols_);
  }

  const LinearForwardProblem& p_;
  std::int64_t heads_;
  const Native16LinearBuffers b_;
  [[no_unique_address]] Unit unit_;  // holds the thread's AMX configuration while this object exists
  Packed packed_keys_, packed_queries_;
  // The task's columns of v: the first one, their number, and their number padded to a multiple of kSquare.
  std::int64_t first_ = 0, cols_ = 0, padded_ = 0;
};

struct Native16LinearMemory {
  Native16LinearMemory(Workspace& ws, int threads, std::size_t bytes)
      : scratch(ws.take<std::byte>("threads", threads, bytes)) {}
  View<std::byte, 2> scratch;  ///< (threads, bytes) memory for the Native16LinearBuffers of each thread
};

template <class Unit>
void native16_linear_forward_with(const LinearForwardProblem& p, bool scans) {
  const StateTasks tasks(p, divide_up(p.Dv, kSquare));
  const int threads = tasks.threads();
  const Placed<Native16LinearMemory> memory(threads, count_bytes<Native16LinearBuffers>(p, tasks.together(), scans));
  Cancellation cancellation(p.context);
  run_team(threads, [&](const Team& team) {
    Native16LinearWorker<Unit> worker(p, tasks.together(), scans, memory->scratch.at(team.thread()));
    team.in_turn_nowait(tasks.count(), [&](std::int64_t n) {
      if (!cancellation.requested()) worker.run(tasks(n), cancellation);
    });
  });
  cancellation.throw_if_seen();
}

void native16_linear_forward_on(const LinearForwardProblem& p, bool scans) {
  if (native16_unit(p.context.target) == Native16Unit::tiles) {
    native16_linear_forward_with<Tiles>(p, scans);
  } else {
    native16_linear_forward_with<Dots>(p, scans);
  }
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET == HWY_AVX3

#if HWY_ONCE
namespace headgate {
namespace {

/// The smallest and the largest number of tokens of a part. Snapshots divide a sequence into parts.
struct PartLengths {
  std::int64_t least, most;
};

PartLengths part_lengths(const LinearForwardProblem& p) {
  PartLengths lengths{p.T, 0};
  const auto add = [&lengths](std::int64_t T) { lengths = {std::min(lengths.least, T), std::max(lengths.most, T)}; };
  for (std::int64_t n = 0; n < p.N; ++n) {
    std::int64_t from = 0;
    for (std::int64_t m = 0; m < p.snapshots(); ++m) {
      const std::int64_t to = snapshot_length(p.inputs.snapshot_lengths, n, m);
      add(to - from);
      from = to;
    }
    add(p.sequence(n).T - from);
  }
  return lengths;
}

}  // namespace

const char* declines_native16(const LinearForwardProblem& p) {
  if (p.precision != Precision::native16) return "precision is exact";
  if (native16_unit(p.context.target) == Native16Unit::none) return "this CPU or target has no fast bf16 products";
  if (p.decays_by_feature()) return "each feature has its own decay";
  if (part_lengths(p).most < kLeastNative16Tokens)
    return "sequences, or parts between snapshots, have fewer than 32 tokens";
  return nullptr;
}

void native16_linear_forward([[maybe_unused]] const LinearForwardProblem& p) {
#if (HWY_TARGETS & HWY_AVX3) != 0
  N_AVX3::native16_linear_forward_on(p, part_lengths(p).least < kLeastNative16Tokens);
#endif
}

}  // namespace headgate
#endif  // HWY_ONCE
