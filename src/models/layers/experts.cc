// SPDX-License-Identifier: Apache-2.0
#include "models/layers/experts.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "library/core/check.hpp"
#include "models/layers/gate_apply.hpp"
#include "models/layers/linear.hpp"
#include "models/layers/parallel.hpp"
#include "models/layers/swiglu.hpp"

namespace headgate::layers {

void validate(const ExpertsShape& s) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  require(s.active >= 1 && s.active <= s.E && s.E <= kMost, "experts: {} of {} experts for each token", s.active, s.E);
  require(s.N >= 0 && s.N <= kMost, "experts: {} tokens", s.N);
  require(s.C >= 1 && s.I >= 1 && s.S >= 0, "experts: {} channels, widths of {} and {}", s.C, s.I, s.S);
  require(s.limit >= 0.0 && s.shared_limit >= 0.0, "experts: limits of {} and {} but they must be at least 0", s.limit,
          s.shared_limit);
}

template <typename T>
ExpertsState<T>::ExpertsState(Workspace& ws, const ExpertsShape& shape) {
  validate(shape);
  constexpr const char *kRouting = "experts, routing", *kName = "experts";
  const std::int64_t N = shape.N, width = std::max(shape.I, shape.S);
  logits = ws.take<T>(kRouting, N, shape.E);
  chosen = ws.take<std::int32_t>(kRouting, N, shape.active);
  weights = ws.take<T>(kRouting, N, shape.active);
  first = ws.take<std::int64_t>(kRouting, shape.E + 1);
  slot_tokens = ws.take<std::int32_t>(kRouting, N * shape.active);
  slot_weights = ws.take<T>(kRouting, N * shape.active);
  rows = ws.take<T>(kName, N, shape.C);
  gate_up = ws.take<T>(kName, N, 2 * width);
  activation = ws.take<T>(kName, N, width);
  y = ws.take<T>(kName, N, shape.C);
  if (shape.S > 0) shared_logits = ws.take<T>(kName, N, 1);
}

// --- routing -----------------------------------------------------------------------------------------------------

namespace {

template <typename T>
T sigmoid(T z) {
  return T{1} / (T{1} + std::exp(-z));
}

/// Sets `chosen` to the indices of the k largest of E scores, largest first. Among equal scores the lowest index comes
/// first. The k indices are distinct even if scores are NaN, because NaN never compares greater.
template <typename T, class Score>
void choose(std::int32_t* chosen, T* scores, std::int64_t k, std::int64_t E, const Score& score) {
  for (std::int64_t e = 0; e < E; ++e) {
    const T value = score(e);
    std::int64_t place = std::min(e, k);
    while (place > 0 && value > scores[place - 1]) {
      if (place < k) {
        scores[place] = scores[place - 1];
        chosen[place] = chosen[place - 1];
      }
      --place;
    }
    if (place == k) continue;
    scores[place] = value;
    chosen[place] = static_cast<std::int32_t>(e);
  }
}

/// Replaces the logits in `weights` by the softmax weights of the chosen experts. On entry, `weights` has the chosen
/// logits in descending order. `all` has the logits of all E experts.
template <typename T>
void softmax_weights(T* weights, const T* all, const ExpertsShape& shape) {
  const T largest = weights[0];
  T sum{0};
  const T* terms = shape.renormalise ? weights : all;
  const std::int64_t count = shape.renormalise ? shape.active : shape.E;
  for (std::int64_t e = 0; e < count; ++e) sum += std::exp(terms[e] - largest);
  const T factor = static_cast<T>(shape.scale) / sum;
  for (std::int64_t i = 0; i < shape.active; ++i) weights[i] = std::exp(weights[i] - largest) * factor;
}

template <typename T>
void sigmoid_weights(T* weights, const std::int32_t* chosen, const T* all, const ExpertsShape& shape) {
  T sum{0};
  for (std::int64_t i = 0; i < shape.active; ++i) sum += weights[i] = sigmoid(all[chosen[i]]);
  constexpr T kTiny{1e-20};
  const T factor = shape.renormalise ? static_cast<T>(shape.scale) / (sum + kTiny) : static_cast<T>(shape.scale);
  for (std::int64_t i = 0; i < shape.active; ++i) weights[i] *= factor;
}

/// Groups the (token, expert) pairs by expert. Each expert's pairs are in the order of the tokens.
template <typename T>
void group_by_expert(const ExpertsState<T>& state) {
  const auto [N, active] = state.chosen.shape;
  const std::int64_t E = state.first.shape[0] - 1;
  std::int64_t* const first = state.first.data;
  std::fill_n(first, E + 1, std::int64_t{0});
  for (std::int64_t i = 0; i < N * active; ++i) ++first[state.chosen.data[i] + 1];
  for (std::int64_t e = 0; e < E; ++e) first[e + 1] += first[e];
  // Uses first[e] in the loop as the next free slot of expert e. After the loop, first[e] is the first slot of the
  // next expert. copy_backward() then moves the value to first[e + 1].
  for (std::int64_t n = 0; n < N; ++n) {
    for (std::int64_t i = 0; i < active; ++i) {
      const std::int64_t slot = first[state.chosen(n, i)]++;
      state.slot_tokens(slot) = static_cast<std::int32_t>(n);
      state.slot_weights(slot) = state.weights(n, i);
    }
  }
  std::copy_backward(first, first + E, first + E + 1);
  first[0] = 0;
}

}  // namespace

template <typename T>
void route_tokens(const ExpertsState<T>& state, ConstView<T, 1> bias, const ExpertsShape& shape,
                  const ExecutionContext& context) {
  assert(!bias.present() || (shape.router == ExpertRouter::sigmoid && bias.shape[0] == shape.E));
  constexpr std::int64_t kOperations = 8;  // cost of an exponential and a few comparisons, in elementwise operations
  for_parts(parts_of(context, shape.N, kOperations * shape.E),
            [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
              for (std::int64_t n = begin; n < end; ++n) {
                const T* logits = state.logits.at(n);
                std::int32_t* chosen = state.chosen.at(n);
                T* weights = state.weights.at(n);
                if (shape.router == ExpertRouter::softmax) {
                  choose(chosen, weights, shape.active, shape.E, [&](std::int64_t e) { return logits[e]; });
                  softmax_weights(weights, logits, shape);
                } else {
                  choose(chosen, weights, shape.active, shape.E,
                         [&](std::int64_t e) { return sigmoid(logits[e]) + (bias.present() ? bias(e) : T{0}); });
                  sigmoid_weights(weights, chosen, logits, shape);
                }
              }
            });
  group_by_expert(state);
}

// --- experts -----------------------------------------------------------------------------------------------------

namespace {

/// Parameters of one expert besides its matrices: biases, activation and limit.
template <typename T>
struct ExpertTerms {
  View<const T, 1> gate_up_bias;  ///< (2F) bias of [gate | up]; absent: no bias
  View<const T, 1> down_bias;     ///< (C) bias of down; absent: no bias
  ExpertActivation activation = ExpertActivation::swiglu;
  double limit = 0.0;
};

/// Applies one expert to the rows of x(n,C): out(n,C) = factor(row) · expert(x), or adds this to out. factor(row) is
/// the weight that the router gave the expert.
template <typename T>
struct ExpertPass {
  const ExpertsState<T>& state;
  ActivationRounding rounding;
  const ExecutionContext& context;

  void activate(const View<T, 2>& activation, const View<T, 2>& gate_up, const ExpertTerms<T>& terms) const {
    if (terms.activation == ExpertActivation::shifted_swiglu) {
      swiglu_shifted_forward<T>(activation, gate_up, terms.limit, context);
    } else if (terms.limit > 0.0) {
      swiglu_clamped_forward<T>(activation, gate_up, terms.limit, context);
    } else {
      swiglu_forward<T>(activation, gate_up, Activation::silu, context);
    }
  }

  /// Computes out(n,C) += factor(row) · bias(C).
  template <class Factor>
  void add_down_bias(const View<T, 2>& out, const View<const T, 1>& bias, const Factor& factor) const {
    const std::int64_t C = out.shape[1];
    for_parts(parts_of(context, out.shape[0], C), [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T by = factor(row);
        T* values = out.at(row);
        for (std::int64_t c = 0; c < C; ++c) values[c] += by * bias.data[c];
      }
    });
  }

  /// Scales the activations, not the outputs, by factor(row), because this costs less. `first_token` tells whether row
  /// 0 of x is the first token of its sequence.
  template <typename M, class Factor>
  void operator()(const View<T, 2>& out, const View<const T, 2>& x, const ExpertMatrices<M>& expert,
                  const ExpertTerms<T>& terms, Update update, bool first_token, const Factor& factor) const {
    const std::int64_t n = x.shape[0], F = row_count(expert.gate);
    const View<T, 2> gate_up(state.gate_up.data, {n, 2 * F}), activation(state.activation.data, {n, F});
    linear_forward(gate_up.range(1, 0, F), x, expert.gate, Update::overwrite, context);
    linear_forward(gate_up.range(1, F, F), x, expert.up, Update::overwrite, context);
    if (terms.gate_up_bias.present()) add_bias<T>(gate_up, terms.gate_up_bias, context);
    activate(activation, gate_up, terms);
    round_activations(activation, rounding, context, first_token);
    for_parts(parts_of(context, n, F), [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T by = factor(row);
        T* values = activation.at(row);
        for (std::int64_t f = 0; f < F; ++f) values[f] *= by;
      }
    });
    linear_forward(out, activation, expert.down, update, context);
    if (terms.down_bias.present()) add_down_bias(out, terms.down_bias, factor);
  }
};

/// Copies row tokens(i) of `from` to row i of `to`, for every i.
template <typename T>
void gather_rows(const View<T, 2>& to, const View<const T, 2>& from, const View<std::int32_t, 1>& tokens,
                 const ExecutionContext& context) {
  for_parts(parts_of(context, to.shape[0], to.shape[1]),
            [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
              for (std::int64_t i = begin; i < end; ++i) std::copy_n(from.at(tokens(i)), to.shape[1], to.at(i));
            });
}

/// Adds row i of `from` to row tokens(i) of `to`. The tokens are distinct.
template <typename T>
void scatter_rows(const View<T, 2>& to, const View<T, 2>& from, const View<std::int32_t, 1>& tokens,
                  const ExecutionContext& context) {
  for_parts(parts_of(context, from.shape[0], from.shape[1]),
            [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
              for (std::int64_t i = begin; i < end; ++i) {
                T* out = to.at(tokens(i));
                const T* in = from.at(i);
                for (std::int64_t c = 0; c < from.shape[1]; ++c) out[c] += in[c];
              }
            });
}

/// Adds the weighted outputs of the chosen experts to `out`.
template <typename T, typename M>
void add_experts(const View<T, 2>& out, const View<const T, 2>& h, const ExpertsWeights<const T, M>& weights,
                 const ExpertsState<T>& state, const ExpertsShape& shape, const ExpertPass<T>& pass) {
  for (std::int64_t e = 0; e < shape.E; ++e) {
    const std::int64_t slot = state.first(e), count = state.first(e + 1) - slot;
    if (count == 0) continue;
    const ExpertMatrices<M> expert = weights.expert(e);
    ExpertTerms<T> terms{{}, {}, shape.activation, shape.limit};
    if (weights.gate_up_bias.present())
      terms.gate_up_bias = weights.gate_up_bias.range(0, 2 * e * shape.I, 2 * shape.I);
    if (weights.down_bias.present()) terms.down_bias = weights.down_bias.range(0, e * shape.C, shape.C);
    const auto factor = [&](std::int64_t row) { return state.slot_weights(slot + row); };
    // Adds the output directly to `out` if the expert has one token and no down bias. One token is usual in decoding.
    // With several tokens, a down bias is added to the expert's output first. A direct sum with a down bias would
    // change this order of additions.
    if (count == 1 && !terms.down_bias.present()) {
      const std::int64_t n = state.slot_tokens(slot);
      pass(out.range(0, n, 1), h.range(0, n, 1), expert, terms, Update::add, n == 0, factor);
      continue;
    }
    const View<std::int32_t, 1> tokens = state.slot_tokens.range(0, slot, count);
    const View<T, 2> x = state.rows.range(0, 0, count), y = state.y.range(0, 0, count);
    gather_rows(x, h, tokens, pass.context);
    pass(y, x, expert, terms, Update::overwrite, tokens(0) == 0, factor);
    scatter_rows(out, y, tokens, pass.context);
  }
}

}  // namespace

template <typename T, typename M>
void experts_forward(View<T, 2> out, ConstView<T, 2> h, const ExpertsWeights<const T, M>& weights,
                     const ExpertsState<T>& state, const ExpertsShape& shape, Update update,
                     const ExecutionContext& context) {
  assert(h.shape[0] == shape.N);
  if (shape.N == 0) return;
  linear_forward(state.logits, h, weights.router, Update::overwrite, context);
  if (weights.logit_bias.present()) add_bias<T>(state.logits, weights.logit_bias, context);
  route_tokens(state, weights.router_bias, shape, context);
  if (update == Update::overwrite) {
    for (std::int64_t n = 0; n < shape.N; ++n) std::fill_n(out.at(n), shape.C, T{0});
  }
  const ExpertPass<T> pass{state, shape.rounding, context};
  add_experts(out, h, weights, state, shape, pass);
  if (shape.S == 0) return;
  const ExpertTerms<T> shared{{}, {}, ExpertActivation::swiglu, shape.shared_limit};
  if (!weights.shared_gate.present()) {
    return pass(out, h, weights.shared, shared, Update::add, true, [](std::int64_t /*row*/) { return T{1}; });
  }
  linear_forward(state.shared_logits, h, weights.shared_gate, Update::overwrite, context);
  pass(out, h, weights.shared, shared, Update::add, true,
       [&](std::int64_t row) { return sigmoid(state.shared_logits(row, 0)); });
}

template struct ExpertsState<float>;
template struct ExpertsState<double>;
template void route_tokens(const ExpertsState<float>&, ConstView<float, 1>, const ExpertsShape&,
                           const ExecutionContext&);
template void route_tokens(const ExpertsState<double>&, ConstView<double, 1>, const ExpertsShape&,
                           const ExecutionContext&);
template void experts_forward(View<float, 2>, ConstView<float, 2>, const ExpertsWeights<const float, const float>&,
                              const ExpertsState<float>&, const ExpertsShape&, Update, const ExecutionContext&);
template void experts_forward(View<double, 2>, ConstView<double, 2>, const ExpertsWeights<const double, const double>&,
                              const ExpertsState<double>&, const ExpertsShape&, Update, const ExecutionContext&);
template void experts_forward(View<float, 2>, ConstView<float, 2>, const ExpertsWeights<const float, const BFloat16>&,
                              const ExpertsState<float>&, const ExpertsShape&, Update, const ExecutionContext&);
template void experts_forward(View<float, 2>, ConstView<float, 2>,
                              const ExpertsWeights<const float, const StoredBlocks>&, const ExpertsState<float>&,
                              const ExpertsShape&, Update, const ExecutionContext&);

}  // namespace headgate::layers
