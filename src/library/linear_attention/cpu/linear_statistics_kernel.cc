// SPDX-License-Identifier: Apache-2.0
// Computes statistics of linear attention: the weights of chosen queries, and statistics of all weights and of the
// states.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "library/core/cancellation.hpp"
#include "library/core/dispatch.hpp"
#include "library/core/linear_statistics_rows.hpp"
#include "library/core/team.hpp"
#include "library/core/workspace.hpp"
#include "library/linear_attention/linear_statistics.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "library/linear_attention/cpu/linear_statistics_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// The headers below are compiled once per target, so foreach_target.h must come first.
#include "library/linear_attention/cpu/query_walk-inl.hpp"
#include "library/linear_attention/cpu/state_statistics-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Returns the number of threads for `tasks` tasks with `work` multiply-adds in total. Uses one thread, plus one for
/// each 2^14 multiply-adds, because waking a thread takes as long. Uses at most one thread per task.
inline int useful_threads(const LinearProblem& p, std::int64_t tasks, double work) {
  const auto useful = static_cast<std::int64_t>(std::min(work / (1 << 14), 1e6)) + 1;
  return static_cast<int>(std::clamp<std::int64_t>(std::min(tasks, useful), 1, p.context.threads));
}

/// Returns the number of multiply-adds that QueryWalk (query_walk-inl.hpp) needs for all tiles.
template <class TokenOf>
double walked(const LinearProblem& p, const std::vector<QueryTile>& tiles, const TokenOf& last_token) {
  double products = 0.0;
  for (const QueryTile& tile : tiles)
    products += static_cast<double>(tile.count) * static_cast<double>(last_token(tile));
  return 2.0 * products * static_cast<double>(p.Ho() * p.D);
}

inline std::int64_t most_queries(const std::vector<QueryTile>& tiles) {
  std::int64_t most = 0;
  for (const QueryTile& tile : tiles) most = std::max(most, tile.count);
  return most;
}

// --- the weights of chosen queries ---

template <typename T>
struct WeightsScratch {
  WeightsScratch(Workspace& ws, const LinearWeightsProblem& p, std::int64_t queries)
      : walk(ws, static_cast<const LinearProblem&>(p), queries),
        weights(ws.take<T>("weights", kChunk, walk.padded)),
        row(ws.take<T>("row", std::max(kChunk, p.D))) {}

  QueryWalkBuffers<T> walk;
  View<T, 2> weights;  ///< (kChunk, columns): weights at the steps of a chunk; each column belongs to one query
  View<T, 1> row;      ///< scratch for one row of an output
};

/// Writes the outputs `weights` and `state_query` for the chosen queries of a tile, on one thread. This class is a
/// Sink: QueryWalk computes the weights and passes them to it step by step.
template <typename T>
class WeightsWorker {
 public:
  /// QueryWalk must process one token at a time. With two, the last bits of a query's weights would depend on the other
  /// queries in the same block.
  static constexpr bool kPairs = false;

  WeightsWorker(const LinearWeightsProblem& p, std::int64_t queries, std::byte* memory)
      : p_(p), b_(place_buffers<WeightsScratch<T>>(memory, p, queries)) {}

  template <std::int64_t kVectors>
  struct Block {
    Block(WeightsWorker& worker, const StateColumns& columns, const Chunk& /*chunk*/)
        : weights(worker.b_.weights), first(columns.first) {}
    void enter(std::int64_t /*lane*/) const {}
    HWY_INLINE void receive(const BlockRow<T, kVectors>& row, std::int64_t n) const { row.store(weights.at(n, first)); }
    void finish() const {}

    const View<T, 2>& weights;
    std::int64_t first;
  };

  void run(const QueryTile& tile, std::int64_t ho, Cancellation& cancellation) {
    tile_ = tile;
    s_ = p_.sequence(tile.n);
    ho_ = ho;
    for (std::int64_t c = 0; c < tile.count; ++c) b_.walk.tokens(c) = query(c).token - s_.t0;
    clear_hidden();
    QueryWalk<T, WeightsWorker> walk(p_, b_.walk);
    walk.run(s_, ho, tile.count, *this, cancellation);
    if (!p_.outputs.state_query.present() || cancellation.seen()) return;
    const HeadRows<void> rows(p_.outputs.state_query, s_.b, ho);
    for (std::int64_t c = 0; c < tile.count; ++c) {
      walk.copy_column(c, tile.count, b_.row.data);
      store_row(rows, b_.row.data, query(c).row, 0, p_.D);
    }
  }

  void end_chunk(const Chunk& chunk) {
    if (!p_.outputs.weights.present()) return;
    const HeadRows<void> rows(p_.outputs.weights, s_.b, ho_);
    for (std::int64_t c = 0; c < tile_.count; ++c) {
      const std::int64_t own = b_.walk.tokens(c);
      if (own < chunk.t0) continue;
      for (std::int64_t n = 0; n < chunk.count; ++n) {
        const std::int64_t token = chunk.token(n);
        b_.row(token - chunk.t0) = token <= own ? b_.weights(n, c) : T{0};
      }
      store_row(rows, b_.row.data, query(c).row, s_.t0 + chunk.t0, chunk.count);
    }
  }

 private:
  const ChosenQuery& query(std::int64_t c) const { return p_.chosen[static_cast<std::size_t>(tile_.first + c)]; }

  /// Writes the zero weights of each query: those of tokens in chunks after the query's chunk, and those of tokens in
  /// other sequences.
  void clear_hidden() const {
    if (!p_.outputs.weights.present()) return;
    const HeadRows<void> rows(p_.outputs.weights, s_.b, ho_);
    std::fill_n(b_.row.data, kChunk, T{0});
    const auto clear = [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
      for (std::int64_t at = begin; at < end; at += kChunk)
        store_row(rows, b_.row.data, row, at, std::min(kChunk, end - at));
    };
    for (std::int64_t c = 0; c < tile_.count; ++c) {
      const std::int64_t written = std::min((b_.walk.tokens(c) / kChunk + 1) * kChunk, s_.T);
      clear(query(c).row, 0, s_.t0);
      clear(query(c).row, s_.t0 + written, p_.T);
    }
  }

  const LinearWeightsProblem& p_;
  WeightsScratch<T> b_;
  QueryTile tile_{};
  TokenRange s_;
  std::int64_t ho_ = 0;
};

struct WalkMemory {
  WalkMemory(Workspace& ws, int threads, std::size_t bytes) : scratch(ws.take<std::byte>("threads", threads, bytes)) {}
  View<std::byte, 2> scratch;
};

template <typename T>
void linear_weights_typed(const LinearWeightsProblem& p) {
  const std::int64_t heads = p.Ho(), tasks = static_cast<std::int64_t>(p.tiles.size()) * heads;
  const std::int64_t queries = most_queries(p.tiles);
  const double work = walked(p, p.tiles, [&p](const QueryTile& tile) {
    return p.chosen[static_cast<std::size_t>(tile.first + tile.count - 1)].token - p.sequence(tile.n).t0 + 1;
  });
  const int threads = useful_threads(p, tasks, work);
  const Placed<WalkMemory> memory(threads, count_bytes<WeightsScratch<T>>(p, queries));
  Cancellation cancellation(p.context);
  run_team(threads, [&](const Team& team) {
    WeightsWorker<T> worker(p, queries, memory->scratch.at(team.thread()));
    team.in_turn(tasks, [&](std::int64_t n) {
      if (!cancellation.requested()) worker.run(p.tiles[static_cast<std::size_t>(n / heads)], n % heads, cancellation);
    });
  });
  cancellation.throw_if_seen();
}

// --- statistics that depend on all weights ---

/// Indices of sums: WalkSum of those over the weights of one query, TileSum of those over the queries of a tile.
enum WalkSum : std::int64_t { kAbsolute, kMoment, kFirstToken, kWalkSums };
enum TileSum : std::int64_t { kTileShare, kTileReach, kTileAbsolute, kTileSums };

template <typename T>
struct TileScratch {
  TileScratch(Workspace& ws, const LinearStatisticsProblem& p, std::int64_t queries)
      : walk(ws, static_cast<const LinearProblem&>(p), queries),
        sums(ws.take<double>("sums", std::int64_t{kWalkSums}, walk.padded)) {}

  QueryWalkBuffers<T> walk;
  View<double, 2> sums;  ///< (kWalkSums, columns)
};

/// Computes the statistics that depend on every weight of a query, for tiles of queries, on one thread.
/// This class is a Sink of QueryWalk, which computes the weights. Sums within a chunk have type T. Sums over chunks
/// have type double.
template <typename T>
class TileWorker {
 public:
  /// QueryWalk may process two tokens at a time. For a block of queries, it does so in every chunk except the one in
  /// which these queries start. All queries of a block start in the same chunk: tiles begin at multiples of kChunk, and
  /// the width of a block divides kChunk.
  static constexpr bool kPairs = true;
  static_assert(kWalkQueries % kChunk == 0 && kChunk % (kMostVectors * kLanes<T>) == 0);

  TileWorker(const LinearStatisticsProblem& p, std::int64_t queries, std::byte* memory)
      : p_(p), b_(place_buffers<TileScratch<T>>(memory, p, queries)) {}

  template <std::int64_t kVectors>
  struct Block {
    using Row = BlockRow<T, kVectors>;

    Block(const TileWorker& worker, const StateColumns& columns_in, const Chunk& chunk_in)
        : sums(worker.b_.sums), columns(columns_in), chunk(chunk_in) {
      T tokens[StateBlock<T, kVectors>::kWidth] = {};
      for (std::int64_t lane = 0; lane < columns.count; ++lane)
        tokens[lane] = static_cast<T>(worker.b_.walk.tokens(columns.first + lane));
      own = Row::load(tokens);
    }

    void enter(std::int64_t lane) {
      for (Row* row : {&absolute, &moment}) {
        T lanes[StateBlock<T, kVectors>::kWidth];
        row->store(lanes);
        lanes[lane] = T{0};
        *row = Row::load(lanes);
      }
    }

    HWY_INLINE void receive(const Row& weights, std::int64_t n) {
      const auto token = hn::Set(Tag<T>(), static_cast<T>(chunk.token(n)));
      for (std::int64_t c = 0; c < kVectors; ++c) {
        last.at[c] = hn::Abs(weights.at[c]);
        absolute.at[c] = hn::Add(absolute.at[c], last.at[c]);
        moment.at[c] = hn::MulAdd(last.at[c], hn::Sub(own.at[c], token), moment.at[c]);
      }
    }

    void finish() const {
      T lanes[StateBlock<T, kVectors>::kWidth];
      const auto add = [&](const Row& row, WalkSum sum) {
        row.store(lanes);
        for (std::int64_t lane = 0; lane < columns.count; ++lane)
          sums(std::int64_t{sum}, columns.first + lane) += static_cast<double>(lanes[lane]);
      };
      add(absolute, kAbsolute);
      add(moment, kMoment);
      if (chunk.t0 == 0) add(last, kFirstToken);
    }

    const View<double, 2>& sums;
    StateColumns columns;
    Chunk chunk;
    Row own;  ///< for each column, the token of the column's query
    Row absolute = Row::zero(), moment = Row::zero(), last = Row::zero();
  };

  /// Computes one tile of queries for output head `ho`. Writes the sums over the tile's queries, one for each TileSum,
  /// to `tile_sums`.
  void run(const QueryTile& tile, std::int64_t ho, double* tile_sums, Cancellation& cancellation) {
    const TokenRange s = p_.sequence(tile.n);
    for (std::int64_t c = 0; c < tile.count; ++c) b_.walk.tokens(c) = tile.first + c;
    std::fill_n(b_.sums.data, b_.sums.count(), 0.0);
    QueryWalk<T, TileWorker> walk(p_, b_.walk);
    walk.run(s, ho, tile.count, *this, cancellation);
    std::fill_n(tile_sums, std::int64_t{kTileSums}, 0.0);
    for (std::int64_t c = 0; c < tile.count; ++c) {
      const double absolute = b_.sums(std::int64_t{kAbsolute}, c);
      const auto share = [absolute](double of) { return absolute == 0.0 ? 0.0 : of / absolute; };
      const double first_share = share(b_.sums(std::int64_t{kFirstToken}, c));
      const double reach = share(b_.sums(std::int64_t{kMoment}, c));
      const std::int64_t t = s.t0 + tile.first + c;
      store_statistic(kQueryFirstShare, s.b, ho, t, first_share);
      store_statistic(kQueryReach, s.b, ho, t, reach);
      store_statistic(kQueryAbsoluteSum, s.b, ho, t, absolute);
      if (tile.first + c == 0) continue;  // means exclude query 0
      tile_sums[kTileShare] += first_share;
      tile_sums[kTileReach] += reach;
      tile_sums[kTileAbsolute] += absolute;
    }
  }

  void end_chunk(const Chunk& /*chunk*/) const {}

 private:
  void store_statistic(QueryStatistic statistic, std::int64_t b, std::int64_t ho, std::int64_t t, double value) const {
    const TensorView& to = query_statistic(p_.outputs, statistic);
    if (to.present()) store_row(HeadRows<void>(to, b, ho), &value, t, 0, 1);
  }

  const LinearStatisticsProblem& p_;
  TileScratch<T> b_;
};

/// Memory of one call.
template <typename T>
struct LinearStatisticsMemory {
  LinearStatisticsMemory(Workspace& ws, const LinearStatisticsProblem& p, int threads, std::size_t tile_bytes,
                         std::size_t state_bytes)
      : states(ws.take<T>("states", p.needs_state() ? p.N : 0, p.Hv, p.D, p.Dv)),
        tile_sums(ws.take<double>("tile sums", p.tiles.size(), p.Ho(), std::int64_t{kTileSums})),
        scratch(ws.take<std::byte>("threads", threads, std::max(tile_bytes, state_bytes))) {}

  View<T, 4> states;          ///< (N,Hv,D,Dv) S_T
  View<double, 3> tile_sums;  ///< (tiles,Ho,kTileSums)
  /// (threads, bytes) memory for each thread: first its TileScratch, later its StateScratch
  View<std::byte, 2> scratch;
};

/// Stores the means over the queries of each sequence. Adds up the sums of the tiles in ascending order.
inline void store_tile_means(const LinearStatisticsProblem& p, const View<double, 3>& tile_sums) {
  constexpr QueryStatistic kTileStatistics[kTileSums] = {kQueryFirstShare, kQueryReach, kQueryAbsoluteSum};
  for (std::int64_t sum = 0; sum < kTileSums; ++sum) {
    const TensorView& to = mean_of_query_statistic(p.outputs, kTileStatistics[sum]);
    if (!to.present()) continue;
    for (std::int64_t ho = 0; ho < p.Ho(); ++ho) {
      std::size_t tile = 0;
      for (std::int64_t n = 0; n < p.N; ++n) {
        double total = 0.0;
        for (; tile < p.tiles.size() && p.tiles[tile].n == n; ++tile)
          total += tile_sums(static_cast<std::int64_t>(tile), ho, sum);
        const double mean = mean_of(total, counted_queries(p.sequence(n)));
        store_row(HeadRows<void>(to, n, ho), &mean, 0, 0, 1);
      }
    }
  }
}

/// Computes S_T of all states with a forward pass that omits y.
template <typename T>
void run_to_last_state(const LinearStatisticsProblem& p, const View<T, 4>& states) {
  LinearForwardProblem forward{static_cast<const LinearProblem&>(p), {}};
  forward.precision = Precision::exact;
  forward.outputs.state = make_view(states.data, {p.N, p.Hv, p.D, p.Dv});
  cpu_linear_forward(forward);
}

template <typename T>
void linear_statistics_typed(const LinearStatisticsProblem& p) {
  const std::int64_t heads = p.Ho(), tiles = static_cast<std::int64_t>(p.tiles.size()) * heads;
  const std::int64_t states = p.scans() || p.needs_state() ? p.N * p.Hv : 0;
  const std::int64_t queries = most_queries(p.tiles);
  const double work = walked(p, p.tiles, [](const QueryTile& tile) { return tile.first + tile.count; }) +
                      static_cast<double>(states) * static_cast<double>(p.D * p.Dv + p.T * p.D);
  const int threads = useful_threads(p, tiles + states, work);
  const Placed<LinearStatisticsMemory<T>> memory(p, threads, count_bytes<TileScratch<T>>(p, queries),
                                                 count_bytes<StateScratch<T>>(p));
  if (p.needs_state()) run_to_last_state(p, memory->states);
  Cancellation cancellation(p.context);
  run_team(threads, [&](const Team& team) {
    std::byte* const scratch = memory->scratch.at(team.thread());
    TileWorker<T> tile_worker(p, queries, scratch);
    // Starts with the last tiles of the last sequence. Late queries visit the most tokens and take longest.
    team.in_turn(tiles, [&](std::int64_t n) {
      if (cancellation.requested()) return;
      const std::int64_t tile = (tiles - 1 - n) / heads, ho = (tiles - 1 - n) % heads;
      tile_worker.run(p.tiles[static_cast<std::size_t>(tile)], ho, memory->tile_sums.at(tile, ho), cancellation);
    });
    const StateStatistics<T> state_worker(p, memory->states, scratch);
    team.in_turn(states, [&](std::int64_t n) {
      if (!cancellation.requested()) state_worker.run(n / p.Hv, n % p.Hv);
    });
  });
  cancellation.throw_if_seen();
  store_tile_means(p, memory->tile_sums);
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate {

HEADGATE_TARGET_TABLE(linear_weights_typed);
HEADGATE_TARGET_TABLE(linear_statistics_typed);

void cpu_linear_weights(const LinearWeightsProblem& problem) {
  HEADGATE_FOR_DTYPE(linear_weights_typed, problem.inputs.q.dtype, problem.context.target)(problem);
}

void cpu_linear_statistics(const LinearStatisticsProblem& problem) {
  HEADGATE_FOR_DTYPE(linear_statistics_typed, problem.inputs.q.dtype, problem.context.target)(problem);
}

}  // namespace headgate
#endif  // HWY_ONCE
