// SPDX-License-Identifier: Apache-2.0
// Plans the memory and the tasks of the backward pass of gated linear attention; included once per Highway target.
#if defined(HEADGATE_LINEAR_BACKWARD_PLAN_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_LINEAR_BACKWARD_PLAN_INL_
#undef HEADGATE_LINEAR_BACKWARD_PLAN_INL_
#else
#define HEADGATE_LINEAR_BACKWARD_PLAN_INL_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "library/linear_attention/cpu/state_tasks-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Buffers of one StateGroup: the packed inputs, and results that one scan writes and a later scan reads.
/// backward_kernel.cc defines the state S, the update u of a token, and its gradient du. Letters in the shapes:
///   G: number of states of the group.
///   Gq, Gk: numbers of heads of q and of k that these states use. No other group uses these heads.
///   R: number of output heads that read each state.
template <typename T>
struct StateGroupBuffers {
  StateGroupBuffers(Workspace& ws, const LinearBackwardProblem& p, std::int64_t tokens) {
    const std::int64_t G = p.group_states(), D = padded_dim<T>(p.D), Dv = padded_dim<T>(p.Dv);
    const std::int64_t chunks = divide_up(tokens, kChunk);
    const std::int64_t Gq = p.Hq / p.groups(), Gk = p.Hk / p.groups();
    const bool keys_too = p.needs_key_scans();
    const bool decay = p.gradients.ddecay.present();
    keys = ws.take<T>("keys", Gk, tokens, D);
    queries = ws.take<T>("queries", Gq, tokens, D);
    key_norms = ws.take<T>("norms", Gk, tokens);
    query_norms = ws.take<T>("norms", Gq, tokens);
    dy = ws.take<T>("dy", G * p.heads_per_state(), tokens, Dv);
    differences = ws.take<T>("differences", G, tokens, Dv);
    du = ws.take<T>("du", G, tokens, Dv);
    updates = ws.take<T>("updates", keys_too ? G : 0, tokens, Dv);
    dvalues = ws.take<T>("dvalues", keys_too ? G : 0, tokens, Dv);
    dq = ws.take<T>("dq", keys_too ? Gq : 0, tokens, D);
    dk = ws.take<T>("dk", keys_too ? Gk : 0, tokens, D);
    ddecays = ws.take<T>("ddecays", decay ? G : 0, tokens, D);
    states = ws.take<T>("states", decay ? G : 0, chunks, D * Dv);
  }

  View<T, 3> keys;  ///< (Gk,T,D): rows of k, divided by their L2 norms if the problem normalises
  /// (Gq,T,D): scale · q, with rows of q divided by their L2 norms if the problem normalises
  View<T, 3> queries;
  View<T, 2> key_norms;  ///< (Gk,T): inverse L2 norm of each row of k; 1 without normalisation
  /// (Gq,T): inverse L2 norm of each row of q, without scale; 1 without normalisation
  View<T, 2> query_norms;
  View<T, 3> dy;           ///< (G·R,T,Dv)
  View<T, 3> differences;  ///< (G,T,Dv): v_t − e^{g_t} S_{t−1}ᵀ k_t with a delta rule, otherwise v_t
  View<T, 3> du;           ///< (G,T,Dv)
  View<T, 3> updates;      ///< (G,T,Dv): u_t: with a delta rule β_t times `differences`, otherwise v_t
  View<T, 3> dvalues;      ///< (G,T,Dv): β_t du_t with a delta rule, otherwise du_t
  View<T, 3> dq;           ///< (Gq,T,D): gradient of `queries`
  View<T, 3> dk;           ///< (Gk,T,D): gradient of `keys`
  View<T, 3> ddecays;      ///< (G,T,D): gradient of each feature's decay in each state
  View<T, 3> states;       ///< (G,chunks,D·Dv): the state before each chunk, stored as column blocks
};

/// One group of states of one sequence, with the group's buffers. These states share heads of q and k
/// (LinearProblem::groups()). They have the indices g = 0 … G − 1.
template <typename T>
struct StateGroup {
  TokenRange s;
  std::int64_t index;  ///< number of the group within the sequence
  StateGroupBuffers<T> buffers;

  /// These functions return the index of a head for state g of the group:
  ///   - state(): head of v, in the caller's tensor.
  ///   - key(): head of k, in the caller's tensor.
  ///   - query(): head of q of the r-th output head that reads the state, in the caller's tensor.
  ///   - own_key(): head of k, in the group's buffers.
  ///   - own_query(): head of q of the r-th output head that reads the state, in the group's buffers.
  std::int64_t state(const LinearProblem& p, std::int64_t g) const { return index * p.group_states() + g; }
  std::int64_t query(const LinearProblem& p, std::int64_t g, std::int64_t r) const {
    return p.query_head(state(p, g) * p.heads_per_state() + r);
  }
  std::int64_t key(const LinearProblem& p, std::int64_t g) const { return p.key_head(state(p, g)); }
  std::int64_t own_query(const LinearProblem& p, std::int64_t g, std::int64_t r) const {
    return query(p, g, r) - index * (p.Hq / p.groups());
  }
  std::int64_t own_key(const LinearProblem& p, std::int64_t g) const { return key(p, g) - index * (p.Hk / p.groups()); }
};

/// Returns pointers to one state's rows in the group's buffers, from column `first` on. Computes the address of the
/// first row only once, because scans ask for the row of each token many times.
template <typename T>
class TokenRows {
 public:
  TokenRows(const LinearProblem& p, const StateGroup<T>& group, std::int64_t g)
      : D_(group.buffers.keys.shape[2]), Dv_(group.buffers.dy.shape[2]), tokens_(group.buffers.keys.shape[1]) {
    const StateGroupBuffers<T>& from = group.buffers;
    const std::int64_t key = group.own_key(p, g), query = group.own_query(p, g, 0);
    keys_ = head(from.keys, key), dk_ = head(from.dk, key);
    queries_ = head(from.queries, query), dq_ = head(from.dq, query);
    dy_ = head(from.dy, g * p.heads_per_state());
    differences_ = head(from.differences, g), du_ = head(from.du, g);
    updates_ = head(from.updates, g), dvalues_ = head(from.dvalues, g);
    ddecays_ = head(from.ddecays, g);
  }

  const T* key(std::int64_t token, std::int64_t first = 0) const { return keys_ + token * D_ + first; }
  T* dk(std::int64_t token, std::int64_t first) const { return dk_ + token * D_ + first; }
  T* ddecay(std::int64_t token, std::int64_t first) const { return ddecays_ + token * D_ + first; }
  /// query(), dq() and dy() return rows of the r-th output head that reads the state. The output heads of a state are
  /// consecutive.
  const T* query(std::int64_t r, std::int64_t token, std::int64_t first = 0) const {
    return queries_ + (r * tokens_ + token) * D_ + first;
  }
  T* dq(std::int64_t r, std::int64_t token, std::int64_t first) const {
    return dq_ + (r * tokens_ + token) * D_ + first;
  }
  const T* dy(std::int64_t r, std::int64_t token, std::int64_t first = 0) const {
    return dy_ + (r * tokens_ + token) * Dv_ + first;
  }
  T* difference(std::int64_t token, std::int64_t first) const { return differences_ + token * Dv_ + first; }
  T* du(std::int64_t token, std::int64_t first) const { return du_ + token * Dv_ + first; }
  /// update() returns u, and dvalue() returns β du. These buffers exist only if scans 3 and 4 run.
  T* update(std::int64_t token, std::int64_t first = 0) const { return updates_ + token * Dv_ + first; }
  T* dvalue(std::int64_t token, std::int64_t first = 0) const { return dvalues_ + token * Dv_ + first; }

 private:
  static T* head(const View<T, 3>& rows, std::int64_t h) { return rows.shape[0] > 0 ? rows.at(h) : nullptr; }

  std::int64_t D_, Dv_, tokens_;
  T *keys_, *dk_, *queries_, *dq_, *dy_, *differences_, *du_, *updates_, *dvalues_, *ddecays_;
};

/// Decay factors and dot products of the tokens of a chunk. Forward and reverse scans have separate objects.
template <typename T>
struct ChunkNumbers {
  ChunkNumbers(Workspace& ws, const LinearProblem& p)
      : factors(ws, p),
        dots(ws.take<T>("numbers", p.heads_per_state(), kChunk)),
        pair_dots(ws.take<T>("numbers", 2, kChunk)) {}

  DecayFactors<T> factors;
  /// (R,kChunk): a dot product for each output head and token. It is q · k in scan 2, and dy · u in scans 3 and 4.
  View<T, 2> dots;
  /// (2,kChunk): dot products r · w, which correct a product Sᵀ r. A pass over two tokens computes Sᵀ r of the second
  /// token before the first token changes S. The first token then adds one or two outer products w xᵀ to S. For each of
  /// these, the scan adds the missing term (r · w) x to Sᵀ r.
  View<T, 2> pair_dots;
};

/// Scratch of one thread for the four scans (backward_kernel.cc). In scans 3 and 4, blocks hold the transposed state,
/// which has a row for each feature of v.
template <typename T>
struct ScanBuffers {
  ScanBuffers(Workspace& ws, const LinearBackwardProblem& p) : forward(ws, p), reverse(ws, p) {
    const std::int64_t R = p.heads_per_state(), D = padded_dim<T>(p.D), Dv = padded_dim<T>(p.Dv);
    const std::int64_t block = p.gradients.ddecay.present() ? Dv * kMostVectors * kLanes<T> : 0;
    state = ws.take<T>("state", D * Dv);
    block_states = ws.take<T>("block", (R == 1 ? kChunk / 2 : kChunk) + 1, block);
    row = ws.take<T>("row", std::max(D, Dv));
    keys_times_f = ws.take<T>("operands", kChunk, D);
    keys_over_f = ws.take<T>("operands", kChunk, D);
    queries_over_f = ws.take<T>("operands", R, kChunk, D);
    values = ws.take<T>("operands", kChunk, Dv);
    betas = ws.take<T>("operands", kChunk);
  }

  const ChunkNumbers<T>& numbers(Direction direction) const {
    return direction == Direction::forward ? forward : reverse;
  }

  ChunkNumbers<T> forward, reverse;
  View<T, 1> state;  ///< one state, stored as column blocks
  /// (copies, elements of a block): copies of a block of Sᵀ in one chunk. The first copy is from the start of the
  /// chunk. Another follows every two tokens, or every token if several query heads read the state.
  View<T, 2> block_states;
  View<T, 1> row;
  // F is the product of the decays since the last rescaling (DecayFactors).
  View<T, 2> keys_times_f;    ///< (kChunk,D): k times F for each token, from times_before()
  View<T, 2> keys_over_f;     ///< (kChunk,D): k divided by F for each token, from times_inverse()
  View<T, 3> queries_over_f;  ///< (R,kChunk,D): q divided by F for each output head and token, from times_inverse()
  View<T, 2> values;          ///< (kChunk,Dv) v
  View<T, 1> betas;           ///< (kChunk)
};

template <typename T>
struct LinearBackwardPlan {
  explicit LinearBackwardPlan(const LinearBackwardProblem& p)
      : value_blocks(ColumnBlocks<T>(p.Dv).count()), key_blocks(ColumnBlocks<T>(p.D).count()) {
    std::int64_t tokens = 0;
    for (std::int64_t n = 0; n < p.chosen_count(); ++n) tokens = std::max(tokens, p.chosen_sequence(n).T);
    groups = p.chosen_count() * p.groups();
    most_chunks = std::max<std::int64_t>(divide_up(tokens, kChunk), 1);
    // Uses one thread, plus one for each kLeastPerThread updates of state elements. For fewer updates, waking a thread
    // takes longer than the updates.
    constexpr double kLeastPerThread = 1 << 11;
    const double work = static_cast<double>(p.B * p.T * p.Hv) * static_cast<double>(p.D * p.Dv);
    const auto useful = static_cast<std::int64_t>(std::min(work / kLeastPerThread, 1e6)) + 1;
    threads = static_cast<int>(std::clamp<std::int64_t>(useful, 1, p.context.threads));
    groups_in_batch = std::clamp<std::int64_t>(threads, 1, std::max<std::int64_t>(groups, 1));
    // Aims at two tasks per thread between barriers. Threads then wait half as long at a barrier as with one task. A
    // barrier follows scans 1 and 2, and another follows scans 3 and 4 (backward_kernel.cc).
    const std::int64_t wanted = threads == 1 ? 1 : 2 * threads;
    value_pieces = std::clamp<std::int64_t>(divide_up(wanted, groups_in_batch * p.group_states()), 1, value_blocks);
    key_pieces = std::clamp<std::int64_t>(divide_up(wanted, groups_in_batch), 1, key_blocks);
    longest = tokens;
    group_bytes = count_bytes<StateGroupBuffers<T>>(p, longest);
    scratch_bytes = count_bytes<ScanBuffers<T>>(p);
  }

  StateGroup<T> group(const LinearBackwardProblem& p, std::int64_t n, std::byte* memory) const {
    return {p.chosen_sequence(n / p.groups()), n % p.groups(), place_buffers<StateGroupBuffers<T>>(memory, p, longest)};
  }

  /// A piece of a state: the column blocks [first, end). One task scans one piece.
  struct Piece {
    std::int64_t first, end;
  };
  Piece piece(std::int64_t blocks, std::int64_t n, std::int64_t pieces) const {
    return {blocks * n / pieces, blocks * (n + 1) / pieces};
  }

  std::int64_t value_blocks, key_blocks;
  std::int64_t groups = 0, groups_in_batch = 1;
  std::int64_t most_chunks = 1, longest = 0;
  std::int64_t value_pieces = 1, key_pieces = 1;
  int threads = 1;
  std::size_t group_bytes = 0, scratch_bytes = 0;
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_LINEAR_BACKWARD_PLAN_INL_
