// SPDX-License-Identifier: Apache-2.0
// Computes statistics of a state from one pass over its tokens, and statistics of the final state S_T. Included once
// per Highway target.
#if defined(HEADGATE_LINEAR_STATE_STATISTICS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_LINEAR_STATE_STATISTICS_INL_
#undef HEADGATE_LINEAR_STATE_STATISTICS_INL_
#else
#define HEADGATE_LINEAR_STATE_STATISTICS_INL_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "library/core/linear_statistics_rows.hpp"
#include "library/linear_attention/cpu/scan_operands-inl.hpp"
#include "library/linear_attention/linear_statistics.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Returns total / count, or 0 if count is 0.
inline double mean_of(double total, std::int64_t count) {
  return count == 0 ? 0.0 : total / static_cast<double>(count);
}

/// Returns the number of queries over which means are taken: all queries but the first.
inline std::int64_t counted_queries(const TokenRange& s) { return std::max<std::int64_t>(s.T - 1, 0); }

/// Compensated sum (Neumaier). Also sums the rounding errors, because errors of equal addends have the same sign and
/// accumulate.
class TokenSum {
 public:
  void add(double term) {
    const double next = sum_ + term;
    lost_ += std::abs(sum_) >= std::abs(term) ? (sum_ - next) + term : (term - next) + sum_;
    sum_ = next;
  }
  double value() const { return std::isfinite(lost_) ? sum_ + lost_ : sum_; }

 private:
  double sum_ = 0.0, lost_ = 0.0;
};

template <typename T>
struct StateScratch {
  StateScratch(Workspace& ws, const LinearStatisticsProblem& p) {
    const std::int64_t padded = padded_dim<T>(p.D);
    for (auto* row : {&key, &query, &decay, &first_weight, &weight_sum}) *row = ws.take<T>("rows", padded);
    totals = ws.take<double>("totals", p.heads_per_state(), 2);
    const bool by_rows = p.D <= p.Dv;
    matrix = ws.take<double>("matrix", p.needs_state() ? std::min(p.D, p.Dv) : 0,
                             round_up(by_rows ? p.Dv : p.D, kLanes<double>));
  }

  View<T, 1> key, query;
  View<T, 1> decay;                     ///< (D) e^g of the current token
  View<T, 1> first_weight, weight_sum;  ///< (D): columns of the state for two extra features of v (StateStatistics)
  /// (R,2): the statistics kQueryFirst and kQueryWeightSum, summed over queries, for each output head that reads the
  /// state
  View<double, 2> totals;
  View<double, 2> matrix;  ///< S_T or its transpose, whichever has fewer rows, divided by its largest absolute value
};

/// Computes the statistics of some states, on one thread. Adds two features to v, and updates the column of the state
/// that belongs to each:
///   - first_weight: the feature is 1 at the first token and 0 at the others. The dot product of its column and a query
///     is the weight of the first token.
///   - weight_sum: the feature is 1 at every token. The dot product of its column and a query is the sum of the
///     weights.
template <typename T>
class StateStatistics {
 public:
  StateStatistics(const LinearStatisticsProblem& p, const View<T, 4>& states, std::byte* memory)
      : p_(p), states_(states), D_(padded_dim<T>(p.D)), b_(place_buffers<StateScratch<T>>(memory, p)) {}

  /// Computes the statistics of state h of sequence n.
  void run(std::int64_t n, std::int64_t h) const {
    if (p_.scans()) scan(p_.sequence(n), h);
    if (p_.needs_state()) store_rank_and_norm(n, h);
  }

 private:
  struct GateSums {
    TokenSum decays, logarithms, betas;  // sums over tokens; those of decays also over features, if each has its own
  };

  void scan(const TokenRange& s, std::int64_t h) const {
    const bool needs_columns =
        wants_query_statistic(p_.outputs, kQueryFirst) || wants_query_statistic(p_.outputs, kQueryWeightSum);
    const HeadRows<const void> keys = token_rows(p_.inputs.k, s, p_.key_head(h));
    const Chunk tokens{0, s.T, Direction::forward};
    GateSums gates;
    for (View<T, 1> row : {b_.first_weight, b_.weight_sum}) std::fill_n(row.data, D_, T{0});
    std::fill_n(b_.totals.data, b_.totals.count(), 0.0);
    for (std::int64_t t = 0; t < s.T; ++t) {
      const T beta = load_gates(s, h, t, gates);
      if (!needs_columns) continue;
      load_normalised(b_.key.data, keys, tokens, t, D_, p_, T{1});
      update_column(b_.first_weight.data, t, beta, t == 0 ? T{1} : T{0});
      update_column(b_.weight_sum.data, t, beta, T{1});
      store_query_statistics(s, h, tokens, t);
    }
    store_means(s, h, gates);
  }

  static double sum_of(const T* x, std::int64_t n) {
    double sum = 0.0;
    for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]);
    return sum;
  }

  /// Loads decay and β of a token, and adds both to the sums over tokens.
  T load_gates(const TokenRange& s, std::int64_t h, std::int64_t t, GateSums& gates) const {
    const Tag<T> d;
    if (p_.has_decay()) {
      const HeadRows<const void> rows = token_rows(p_.inputs.decay, s, h);
      T* const decay = b_.decay.data;
      std::fill_n(decay, D_, T{0});
      load_row(decay, rows, t, 0, rows.cols);
      gates.logarithms.add(sum_of(decay, rows.cols));
      for (std::int64_t x = 0; x < round_up(rows.cols, kLanes<T>); x += kLanes<T>)
        hn::StoreU(exp_of<T>(hn::LoadU(d, decay + x)), d, decay + x);
      gates.decays.add(sum_of(decay, rows.cols));
      if (rows.cols == 1) std::fill_n(decay, D_, decay[0]);
    } else {
      gates.decays.add(1.0);
    }
    T beta{1};
    if (p_.inputs.beta.present()) load_row(&beta, token_rows(p_.inputs.beta, s, h), t, 0, 1);
    gates.betas.add(static_cast<double>(beta));
    return beta;
  }

  /// Updates a column of the state with token t. `value` is the token's element of v in this column.
  ///   - With the delta rule, column ← e^g column + β k (value − kᵀ e^g column).
  ///   - Without the delta rule, column ← e^g column + k value.
  void update_column(T* HWY_RESTRICT column, std::int64_t t, T beta, T value) const {
    const Tag<T> d;
    const T *const key = b_.key.data, *const decay = b_.decay.data;
    if (p_.has_decay() && t > 0) {
      for (std::int64_t x = 0; x < D_; x += kLanes<T>)
        hn::StoreU(hn::Mul(hn::LoadU(d, column + x), hn::LoadU(d, decay + x)), d, column + x);
    }
    const T rest = p_.has_delta && t > 0 ? value - dot(column, key, D_) : value;
    const auto factor = hn::Set(d, beta * rest);
    for (std::int64_t x = 0; x < D_; x += kLanes<T>)
      hn::StoreU(hn::MulAdd(hn::LoadU(d, key + x), factor, hn::LoadU(d, column + x)), d, column + x);
  }

  /// Computes and stores the statistics of the queries at token t, for all output heads that read the state.
  void store_query_statistics(const TokenRange& s, std::int64_t h, const Chunk& tokens, std::int64_t t) const {
    for (std::int64_t r = 0; r < p_.heads_per_state(); ++r) {
      const std::int64_t ho = h * p_.heads_per_state() + r;
      const HeadRows<const void> queries = token_rows(p_.inputs.q, s, p_.query_head(ho));
      load_normalised(b_.query.data, queries, tokens, t, D_, p_, static_cast<T>(p_.scale));
      const T statistics[2] = {dot(b_.query.data, b_.first_weight.data, D_),
                               dot(b_.query.data, b_.weight_sum.data, D_)};
      for (std::int64_t f = 0; f < 2; ++f) {
        if (t > 0) b_.totals(r, f) += static_cast<double>(statistics[f]);
        const TensorView& to = query_statistic(p_.outputs, kColumnStatistics[f]);
        if (to.present()) store_row(HeadRows<void>(to, s.b, ho), statistics + f, s.t0 + t, 0, 1);
      }
    }
  }

  void store_means(const TokenRange& s, std::int64_t h, const GateSums& gates) const {
    for (std::int64_t r = 0; r < p_.heads_per_state(); ++r) {
      for (std::int64_t f = 0; f < 2; ++f)
        store(mean_of_query_statistic(p_.outputs, kColumnStatistics[f]), s.n, h * p_.heads_per_state() + r,
              mean_of(b_.totals(r, f), counted_queries(s)));
    }
    const std::int64_t decays = s.T * (p_.decays_by_feature() ? p_.D : 1);
    const double logarithm = mean_of(gates.logarithms.value(), decays);
    store(p_.outputs.mean_decay, s.n, h, mean_of(gates.decays.value(), decays));
    store(p_.outputs.mean_beta, s.n, h, mean_of(gates.betas.value(), s.T));
    store(p_.outputs.half_life, s.n, h, logarithm >= 0.0 ? std::numeric_limits<double>::infinity() : kLn2 / -logarithm);
  }

  void store_rank_and_norm(std::int64_t n, std::int64_t h) const {
    const double largest = copy_matrix(n, h);
    double squares = 0.0, fourth = 0.0;
    const std::int64_t rows = b_.matrix.shape[0], cols = b_.matrix.shape[1];
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j <= i; ++j) {
        const double product = dot(b_.matrix.at(i), b_.matrix.at(j), cols);
        if (i == j) squares += product;
        fourth += (i == j ? 1.0 : 2.0) * product * product;
      }
    }
    store(p_.outputs.effective_rank, n, h, squares == 0.0 ? 0.0 : squares / fourth * squares);
    store(p_.outputs.state_norm, n, h, largest * std::sqrt(squares));
  }

  /// Copies S_T to `matrix`, divided by its largest absolute value, or by 1 if that is 0 or not finite. Returns the
  /// divisor.
  double copy_matrix(std::int64_t n, std::int64_t h) const {
    const T* const state = states_.at(n, h);
    T most{0};
    for (std::int64_t x = 0; x < p_.D * p_.Dv; ++x) most = std::max(most, std::abs(state[x]));
    const double largest = most > T{0} && std::isfinite(most) ? static_cast<double>(most) : 1.0;
    const bool by_rows = p_.D <= p_.Dv;
    std::fill_n(b_.matrix.data, b_.matrix.count(), 0.0);
    for (std::int64_t i = 0; i < p_.D; ++i) {
      for (std::int64_t j = 0; j < p_.Dv; ++j)
        (by_rows ? b_.matrix(i, j) : b_.matrix(j, i)) = static_cast<double>(state[i * p_.Dv + j]) / largest;
    }
    return largest;
  }

  static void store(const TensorView& to, std::int64_t n, std::int64_t h, double value) {
    if (to.present()) store_row(HeadRows<void>(to, n, h), &value, 0, 0, 1);
  }

  static constexpr QueryStatistic kColumnStatistics[2] = {kQueryFirst, kQueryWeightSum};

  const LinearStatisticsProblem& p_;
  const View<T, 4>& states_;
  std::int64_t D_;
  StateScratch<T> b_;
};

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_LINEAR_STATE_STATISTICS_INL_
