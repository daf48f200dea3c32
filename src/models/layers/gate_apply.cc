// SPDX-License-Identifier: Apache-2.0
#include "models/layers/gate_apply.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>

#include "library/core/dispatch.hpp"
#include "models/layers/parallel.hpp"

#ifndef HEADGATE_LAYERS_GATE_APPLY_CALL_  // Highway compiles this file once per SIMD target
#define HEADGATE_LAYERS_GATE_APPLY_CALL_
namespace headgate::layers {

template <typename Y, typename U>
struct GateForward {
  using T = U;
  View<Y, 3> y;
  View<const T, 3> u, z;
  GateRule rule;
  Update update;
};

template <typename T>
struct GateBackward {
  View<T, 3> du, dz;
  View<const T, 3> dy, u, z;
  GateRule rule;
};

template <typename T>
struct SharedGateBackward {
  View<T, 3> dz;
  View<const T, 3> dg, z;
  GateFn fn;
};

}  // namespace headgate::layers
#endif  // HEADGATE_LAYERS_GATE_APPLY_CALL_

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/layers/gate_apply.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Headers that Highway compiles once per SIMD target must follow foreach_target.h.
#include "library/core/gate_functions-inl.hpp"
#include "models/layers/rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::layers::HWY_NAMESPACE {

/// Computes the gate g(z) of one logit z and returns it in all lanes.
template <typename T, class Function>
HWY_INLINE Vec<Wide<T>> value_at(const Function& gate, T z) {
  const Tag<Wide<T>> d;
  return gate.value(d, hn::Set(d, widened(z)));
}

template <typename T>
void gate_values_rows(const View<T, 3>& values, const View<const T, 3>& logits, GateFn fn, std::int64_t begin,
                      std::int64_t end) {
  const std::int64_t H = logits.shape[1], F = logits.shape[2];
  with_gate(fn, [&](auto gate) HWY_ATTR {
    for (std::int64_t row = begin * H; row < end * H; ++row) {
      const T* z = logits.at(row / H, row % H);
      T* g = values.at(row / H, row % H);
      each_vector<Wide<T>>(F, [&](std::int64_t c, auto lanes)
                                  HWY_ATTR { lanes.store(gate.value(Tag<Wide<T>>(), lanes.load(z + c)), g + c); });
    }
  });
}

template <class Call>
void gate_forward_rows(const Call& call, std::int64_t begin, std::int64_t end) {
  using T = typename Call::T;
  using W = Wide<T>;
  const std::int64_t H = call.u.shape[1], D = call.u.shape[2];
  const bool of_head = call.z.shape[2] == 1;
  with_gate(call.rule.fn, [&](auto gate) HWY_ATTR {
    for (std::int64_t row = begin * H; row < end * H; ++row) {
      auto* y = call.y.at(row / H, row % H);
      const T* u = call.u.at(row / H, row % H);
      const T* z = call.z.at(row / H, row % H);
      const Vec<W> head_gate = of_head ? value_at(gate, z[0]) : hn::Zero(Tag<W>());
      each_vector<W>(D, [&](std::int64_t c, auto lanes) HWY_ATTR {
        const Vec<W> g = of_head ? head_gate : gate.value(Tag<W>(), lanes.load(z + c));
        const Vec<W> before = lanes.load(u + c);
        const Vec<W> gated = call.rule.op == GateOp::mul ? hn::Mul(before, g) : hn::Add(before, g);
        lanes.store(call.update == Update::add ? hn::Add(lanes.load(y + c), gated) : gated, y + c);
      });
    }
  });
}

template <typename T>
void gate_backward_rows(const GateBackward<T>& call, std::int64_t begin, std::int64_t end) {
  using W = Wide<T>;
  const Tag<W> d;
  const std::int64_t H = call.u.shape[1], D = call.u.shape[2];
  const bool of_head = call.z.shape[2] == 1, mul = call.rule.op == GateOp::mul;
  with_gate(call.rule.fn, [&](auto gate) HWY_ATTR {
    for (std::int64_t row = begin * H; row < end * H; ++row) {
      T* du = call.du.at(row / H, row % H);
      T* dz = call.dz.at(row / H, row % H);
      const T* dy = call.dy.at(row / H, row % H);
      const T* u = call.u.at(row / H, row % H);
      const T* z = call.z.at(row / H, row % H);
      const auto dg = [&](std::int64_t c, const auto& lanes) HWY_ATTR {
        return mul ? hn::Mul(lanes.load(dy + c), lanes.load(u + c)) : lanes.load(dy + c);
      };
      if (of_head) {  // computes dz[0] before du is written, because du may be the same memory as dy
        dz[0] = rounded<T>(sum_vectors<W>(D, dg) * hn::GetLane(gate.derivative(d, hn::Set(d, widened(z[0])))));
      }
      const Vec<W> head_gate = of_head ? value_at(gate, z[0]) : hn::Zero(Tag<W>());
      each_vector<W>(D, [&](std::int64_t c, auto lanes) HWY_ATTR {
        const Vec<W> incoming = lanes.load(dy + c);
        Vec<W> g = head_gate;
        if (!of_head) {
          const Vec<W> logits = lanes.load(z + c);
          g = gate.value(d, logits);
          lanes.store(hn::Mul(dg(c, lanes), gate.derivative(d, logits)), dz + c);
        }
        lanes.store(mul ? hn::Mul(incoming, g) : incoming, du + c);
      });
    }
  });
}

template <typename T>
void shared_gate_rows(const View<T, 2>& g, const View<const T, 3>& z, GateFn fn, std::int64_t begin, std::int64_t end) {
  using W = Wide<T>;
  const Tag<W> d;
  const std::int64_t H = z.shape[1];
  const auto share = hn::Set(d, W{1} / static_cast<W>(H));
  with_gate(fn, [&](auto gate) HWY_ATTR {
    for (std::int64_t n = begin; n < end; ++n) {
      each_vector<W>(z.shape[2], [&](std::int64_t c, auto lanes) HWY_ATTR {
        auto sum = hn::Zero(d);
        for (std::int64_t h = 0; h < H; ++h) {
          sum = hn::MulAdd(share, gate.value(d, lanes.load(z.at(n, h) + c)), sum);
        }
        lanes.store(sum, g.at(n) + c);
      });
    }
  });
}

template <typename T>
void shared_gate_backward_rows(const SharedGateBackward<T>& call, std::int64_t begin, std::int64_t end) {
  using W = Wide<T>;
  const Tag<W> d;
  const std::int64_t H = call.z.shape[1];
  const auto share = hn::Set(d, W{1} / static_cast<W>(H));
  with_gate(call.fn, [&](auto gate) HWY_ATTR {
    for (std::int64_t n = begin; n < end; ++n) {
      each_vector<W>(call.z.shape[2], [&](std::int64_t c, auto lanes) HWY_ATTR {
        auto dg = hn::Zero(d);
        for (std::int64_t h = 0; h < H; ++h) dg = hn::Add(dg, lanes.load(call.dg.at(n, h) + c));
        dg = hn::Mul(share, dg);
        for (std::int64_t h = 0; h < H; ++h) {
          const auto slope = gate.derivative(d, lanes.load(call.z.at(n, h) + c));
          lanes.store(hn::Mul(dg, slope), call.dz.at(n, h) + c);
        }
      });
    }
  });
}

}  // namespace headgate::layers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate::layers {

namespace {

HEADGATE_TARGET_TABLE(gate_values_rows);
HEADGATE_TARGET_TABLE(gate_forward_rows);
HEADGATE_TARGET_TABLE(gate_backward_rows);
HEADGATE_TARGET_TABLE(shared_gate_rows);
HEADGATE_TARGET_TABLE(shared_gate_backward_rows);

/// Splits the tokens of a tensor (N,H,D) among the threads of the context. Calls work(begin, end) for each range
/// [begin, end).
template <class Work>
void for_tokens(const std::array<std::int64_t, 3>& shape, const ExecutionContext& context, const Work& work) {
  constexpr std::int64_t kOperations = 8;  // cost of an exponential and a division, in elementwise operations
  for_parts(parts_of(context, shape[0], kOperations * shape[1] * shape[2]),
            [&work](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) { work(begin, end); });
}

/// Returns whether z has a shape that fits the gated tensor u: one number per element of u, or one per head. z holds
/// gate logits or their gradients.
template <typename T, typename U>
bool gates(const View<T, 3>& z, const View<U, 3>& u) {
  return z.shape[0] == u.shape[0] && z.shape[1] == u.shape[1] && (z.shape[2] == u.shape[2] || z.shape[2] == 1) &&
         has_whole_rows(z);
}

}  // namespace

template <typename T>
void gate_values(View<T, 3> g, ConstView<T, 3> z, GateFn fn, const ExecutionContext& context) {
  assert(g.shape == z.shape && has_whole_rows(g) && has_whole_rows(z));
  const auto kernel = HEADGATE_FOR_TARGET(gate_values_rows, T, context.target);
  for_tokens(z.shape, context, [&](std::int64_t begin, std::int64_t end) { kernel(g, z, fn, begin, end); });
}

template <typename Y, typename T>
void gate_apply(View<Y, 3> y, ConstView<T, 3> u, ConstView<T, 3> z, const GateRule& rule, Update update,
                const ExecutionContext& context) {
  assert(y.shape == u.shape && has_whole_rows(y) && has_whole_rows(u) && gates(z, u));
  using Call = GateForward<Y, T>;
  const auto kernel = HEADGATE_FOR_TARGET(gate_forward_rows, Call, context.target);
  const Call call{y, u, z, rule, update};
  for_tokens(u.shape, context, [&](std::int64_t begin, std::int64_t end) { kernel(call, begin, end); });
}

template <typename T>
void gate_apply_backward(View<T, 3> du, View<T, 3> dz, ConstView<T, 3> dy, ConstView<T, 3> u, ConstView<T, 3> z,
                         const GateRule& rule, const ExecutionContext& context) {
  assert(du.shape == u.shape && dy.shape == u.shape && dz.shape == z.shape && gates(z, u) && gates(dz, u));
  assert(has_whole_rows(du) && has_whole_rows(dy) && has_whole_rows(u));
  const auto kernel = HEADGATE_FOR_TARGET(gate_backward_rows, T, context.target);
  const GateBackward<T> call{du, dz, dy, u, z, rule};
  for_tokens(u.shape, context, [&](std::int64_t begin, std::int64_t end) { kernel(call, begin, end); });
}

template <typename T>
void shared_gate(View<T, 2> g, ConstView<T, 3> z, GateFn fn, const ExecutionContext& context) {
  assert(g.shape[0] == z.shape[0] && g.shape[1] == z.shape[2] && has_whole_rows(g) && has_whole_rows(z));
  const auto kernel = HEADGATE_FOR_TARGET(shared_gate_rows, T, context.target);
  for_tokens(z.shape, context, [&](std::int64_t begin, std::int64_t end) { kernel(g, z, fn, begin, end); });
}

template <typename T>
void shared_gate_backward(View<T, 3> dz, ConstView<T, 3> dg, ConstView<T, 3> z, GateFn fn,
                          const ExecutionContext& context) {
  assert(dz.shape == z.shape && dg.shape == z.shape);
  assert(has_whole_rows(dz) && has_whole_rows(dg) && has_whole_rows(z));
  const auto kernel = HEADGATE_FOR_TARGET(shared_gate_backward_rows, T, context.target);
  const SharedGateBackward<T> call{dz, dg, z, fn};
  for_tokens(z.shape, context, [&](std::int64_t begin, std::int64_t end) { kernel(call, begin, end); });
}

template <typename T>
void add_bias(View<T, 2> x, ConstView<Wide<T>, 1> b, const ExecutionContext& context) {
  const std::int64_t N = x.shape[0], W = x.shape[1];
  assert(b.shape[0] == W && has_whole_rows(x) && has_whole_rows(b));
  for_parts(parts_of(context, N, W), [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      T* row = x.at(n);
      for (std::int64_t w = 0; w < W; ++w) row[w] = rounded<T>(widened(row[w]) + b.data[w]);
    }
  });
}

template <typename Sum, typename T>
void add_column_sums(View<Sum, 1> db, ConstView<T, 2> dx, const ExecutionContext& context) {
  constexpr std::int64_t kColumns = kFalseSharingElements<T>;  // columns that are summed at a time
  const std::int64_t N = dx.shape[0], W = dx.shape[1];
  assert(db.shape[0] == W && has_whole_rows(dx) && has_whole_rows(db));
  const auto add_columns = [&](std::int64_t first, std::int64_t columns) {
    std::array<double, kColumns> sums{};
    for (std::int64_t n = 0; n < N; ++n) {
      const T* row = dx.at(n, first);
      for (std::int64_t w = 0; w < columns; ++w)
        sums[static_cast<std::size_t>(w)] += static_cast<double>(widened(row[w]));
    }
    for (std::int64_t w = 0; w < columns; ++w) db(first + w) += static_cast<Sum>(sums[static_cast<std::size_t>(w)]);
  };
  for_parts(parts_of(context, W, N, kColumns), [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    for (std::int64_t first = begin; first < end; first += kColumns)
      add_columns(first, std::min(kColumns, end - first));
  });
}

template void gate_values(View<float, 3>, ConstView<float, 3>, GateFn, const ExecutionContext&);
template void gate_apply(View<float, 3>, ConstView<float, 3>, ConstView<float, 3>, const GateRule&, Update,
                         const ExecutionContext&);
template void gate_apply_backward(View<float, 3>, View<float, 3>, ConstView<float, 3>, ConstView<float, 3>,
                                  ConstView<float, 3>, const GateRule&, const ExecutionContext&);
template void shared_gate(View<float, 2>, ConstView<float, 3>, GateFn, const ExecutionContext&);
template void shared_gate_backward(View<float, 3>, ConstView<float, 3>, ConstView<float, 3>, GateFn,
                                   const ExecutionContext&);
template void add_bias(View<float, 2>, ConstView<float, 1>, const ExecutionContext&);
template void add_column_sums(View<float, 1>, ConstView<float, 2>, const ExecutionContext&);

template void gate_values(View<double, 3>, ConstView<double, 3>, GateFn, const ExecutionContext&);
template void gate_apply(View<double, 3>, ConstView<double, 3>, ConstView<double, 3>, const GateRule&, Update,
                         const ExecutionContext&);
template void gate_apply_backward(View<double, 3>, View<double, 3>, ConstView<double, 3>, ConstView<double, 3>,
                                  ConstView<double, 3>, const GateRule&, const ExecutionContext&);
template void shared_gate(View<double, 2>, ConstView<double, 3>, GateFn, const ExecutionContext&);
template void shared_gate_backward(View<double, 3>, ConstView<double, 3>, ConstView<double, 3>, GateFn,
                                   const ExecutionContext&);
template void add_bias(View<double, 2>, ConstView<double, 1>, const ExecutionContext&);
template void add_column_sums(View<double, 1>, ConstView<double, 2>, const ExecutionContext&);

template void gate_apply(View<BFloat16, 3>, ConstView<BFloat16, 3>, ConstView<BFloat16, 3>, const GateRule&, Update,
                         const ExecutionContext&);
template void gate_apply<float, BFloat16>(View<float, 3>, ConstView<BFloat16, 3>, ConstView<BFloat16, 3>,
                                          const GateRule&, Update, const ExecutionContext&);
template void gate_apply_backward(View<BFloat16, 3>, View<BFloat16, 3>, ConstView<BFloat16, 3>, ConstView<BFloat16, 3>,
                                  ConstView<BFloat16, 3>, const GateRule&, const ExecutionContext&);
template void shared_gate(View<BFloat16, 2>, ConstView<BFloat16, 3>, GateFn, const ExecutionContext&);
template void shared_gate_backward(View<BFloat16, 3>, ConstView<BFloat16, 3>, ConstView<BFloat16, 3>, GateFn,
                                   const ExecutionContext&);
template void add_bias(View<BFloat16, 2>, ConstView<float, 1>, const ExecutionContext&);
template void add_column_sums<float, BFloat16>(View<float, 1>, ConstView<BFloat16, 2>, const ExecutionContext&);

}  // namespace headgate::layers
#endif  // HWY_ONCE
