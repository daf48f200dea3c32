// SPDX-License-Identifier: Apache-2.0
#include "layers/gate_apply.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

#include "core/dispatch.hpp"
#include "headgate/runtime.hpp"
#include "layers/parallel.hpp"

#ifndef HEADGATE_LAYERS_GATE_APPLY_CALL_  // this file is read once per Highway target
#define HEADGATE_LAYERS_GATE_APPLY_CALL_
namespace headgate::layers {

/// How the gate acts; one for all features of a head where `headwise`.
struct GateRule {
  GateFn fn;
  GateOp op;
  bool headwise;
};

template <typename T>
struct GateForward {
  HeadView<T> y;
  HeadView<const T> u, z;
  HeadShape shape;
  GateRule rule;
  Store store;
};

template <typename T>
struct GateBackward {
  HeadView<T> du, dz;
  HeadView<const T> dy, u, z;
  HeadShape shape;
  GateRule rule;
};

/// Of one gate for all heads, the mean of theirs: g(N,D), and in place on dz(N,H,D).
template <typename T>
struct SharedGate {
  T* g;
  HeadView<T> dz;
  HeadView<const T> z;
  HeadShape shape;
  GateFn fn;
};

template <typename T>
T* row_of(const HeadView<T>& view, std::int64_t n, std::int64_t h) {
  return view.data + n * view.token_stride + h * view.head_stride;
}

}  // namespace headgate::layers
#endif  // HEADGATE_LAYERS_GATE_APPLY_CALL_

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "layers/gate_apply.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h: per-target headers.
#include "gates/gate_functions-inl.hpp"
#include "layers/rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::layers::HWY_NAMESPACE {

/// g(z) of one logit in every lane.
template <typename T, class Function>
HWY_INLINE Vec<T> value_at(const Function& gate, T z) {
  const Tag<T> d;
  return gate.value(d, hn::Set(d, z));
}

template <typename T>
void gate_values_rows(T* g, HeadView<const T> z, const HeadShape& shape, GateFn fn, std::int64_t begin,
                      std::int64_t end) {
  with_gate(fn, [&](auto gate) HWY_ATTR {
    for (std::int64_t row = begin * shape.H; row < end * shape.H; ++row) {
      const T* z_row = row_of(z, row / shape.H, row % shape.H);
      T* g_row = g + row * shape.D;
      each_vector<T>(shape.D, [&](std::int64_t c, auto lanes)
                                  HWY_ATTR { lanes.store(gate.value(Tag<T>(), lanes.load(z_row + c)), g_row + c); });
    }
  });
}

template <typename T>
void gate_forward_rows(const GateForward<T>& a, std::int64_t begin, std::int64_t end) {
  with_gate(a.rule.fn, [&](auto gate) HWY_ATTR {
    for (std::int64_t row = begin * a.shape.H; row < end * a.shape.H; ++row) {
      const std::int64_t n = row / a.shape.H, h = row % a.shape.H;
      T* y = row_of(a.y, n, h);
      const T* u = row_of(a.u, n, h);
      const T* z = row_of(a.z, n, h);
      const Vec<T> of_head = a.rule.headwise ? value_at(gate, z[0]) : hn::Zero(Tag<T>());
      each_vector<T>(a.shape.D, [&](std::int64_t c, auto lanes) HWY_ATTR {
        const Vec<T> g = a.rule.headwise ? of_head : gate.value(Tag<T>(), lanes.load(z + c));
        const Vec<T> before = lanes.load(u + c);
        const Vec<T> gated = a.rule.op == GateOp::mul ? hn::Mul(before, g) : hn::Add(before, g);
        lanes.store(a.store == Store::add ? hn::Add(lanes.load(y + c), gated) : gated, y + c);
      });
    }
  });
}

template <typename T>
void gate_backward_rows(const GateBackward<T>& a, std::int64_t begin, std::int64_t end) {
  const Tag<T> d;
  const bool mul = a.rule.op == GateOp::mul;
  with_gate(a.rule.fn, [&](auto gate) HWY_ATTR {
    for (std::int64_t row = begin * a.shape.H; row < end * a.shape.H; ++row) {
      const std::int64_t n = row / a.shape.H, h = row % a.shape.H;
      T* du = row_of(a.du, n, h);
      T* dz = row_of(a.dz, n, h);
      const T* dy = row_of(a.dy, n, h);
      const T* u = row_of(a.u, n, h);
      const T* z = row_of(a.z, n, h);
      const auto dg = [&](std::int64_t c, const auto& lanes) HWY_ATTR {
        return mul ? hn::Mul(lanes.load(dy + c), lanes.load(u + c)) : lanes.load(dy + c);
      };
      if (a.rule.headwise) {  // before du, which may be dy
        dz[0] = sum_vectors<T>(a.shape.D, dg) * hn::GetLane(gate.derivative(d, hn::Set(d, z[0])));
      }
      const Vec<T> of_head = a.rule.headwise ? value_at(gate, z[0]) : hn::Zero(Tag<T>());
      each_vector<T>(a.shape.D, [&](std::int64_t c, auto lanes) HWY_ATTR {
        const Vec<T> incoming = lanes.load(dy + c);
        Vec<T> g = of_head;
        if (!a.rule.headwise) {
          const Vec<T> logits = lanes.load(z + c);
          g = gate.value(d, logits);
          lanes.store(hn::Mul(dg(c, lanes), gate.derivative(d, logits)), dz + c);
        }
        lanes.store(mul ? hn::Mul(incoming, g) : incoming, du + c);
      });
    }
  });
}

template <typename T>
void shared_gate_forward_rows(const SharedGate<T>& a, std::int64_t begin, std::int64_t end) {
  const Tag<T> d;
  const auto share = hn::Set(d, T{1} / static_cast<T>(a.shape.H));
  with_gate(a.fn, [&](auto gate) HWY_ATTR {
    for (std::int64_t n = begin; n < end; ++n) {
      each_vector<T>(a.shape.D, [&](std::int64_t c, auto lanes) HWY_ATTR {
        auto sum = hn::Zero(d);
        for (std::int64_t h = 0; h < a.shape.H; ++h) {
          sum = hn::MulAdd(share, gate.value(d, lanes.load(row_of(a.z, n, h) + c)), sum);
        }
        lanes.store(sum, a.g + n * a.shape.D + c);
      });
    }
  });
}

template <typename T>
void shared_gate_backward_rows(const SharedGate<T>& a, std::int64_t begin, std::int64_t end) {
  const Tag<T> d;
  const auto share = hn::Set(d, T{1} / static_cast<T>(a.shape.H));
  with_gate(a.fn, [&](auto gate) HWY_ATTR {
    for (std::int64_t n = begin; n < end; ++n) {
      each_vector<T>(a.shape.D, [&](std::int64_t c, auto lanes) HWY_ATTR {
        auto dg = hn::Zero(d);
        for (std::int64_t h = 0; h < a.shape.H; ++h) dg = hn::Add(dg, lanes.load(row_of(a.dz, n, h) + c));
        dg = hn::Mul(share, dg);
        for (std::int64_t h = 0; h < a.shape.H; ++h) {
          const auto slope = gate.derivative(d, lanes.load(row_of(a.z, n, h) + c));
          lanes.store(hn::Mul(dg, slope), row_of(a.dz, n, h) + c);
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
HEADGATE_TARGET_TABLE(shared_gate_forward_rows);
HEADGATE_TARGET_TABLE(shared_gate_backward_rows);

/// Tokens cut among threads.
Parts token_parts(const HeadShape& shape) {
  constexpr std::int64_t kOperations = 8;  // of one element: an exponential and a division
  return parts_of(shape.N, kOperations * shape.H * shape.D);
}

/// kernel(call, begin, end) for every part of the tokens.
template <class Call>
void for_tokens(void (*kernel)(const Call&, std::int64_t, std::int64_t), const Call& call) {
  for_parts(token_parts(call.shape),
            [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) { kernel(call, begin, end); });
}

}  // namespace

template <typename T>
void gate_values(T* g, ConstHeadView<T> z, const HeadShape& shape, GateFn fn) {
  const auto kernel = HEADGATE_FOR_TARGET(gate_values_rows, T, active_target_bit());
  for_parts(token_parts(shape),
            [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) { kernel(g, z, shape, fn, begin, end); });
}

template <typename T>
void gate_forward(HeadView<T> y, ConstHeadView<T> u, ConstHeadView<T> z, const HeadShape& shape,
                  std::int64_t gate_features, GateFn fn, GateOp op, Store store) {
  const GateForward<T> call{y, u, z, shape, {fn, op, gate_features == 1}, store};
  for_tokens(HEADGATE_FOR_TARGET(gate_forward_rows, T, active_target_bit()), call);
}

template <typename T>
void gate_backward(HeadView<T> du, HeadView<T> dz, ConstHeadView<T> dy, ConstHeadView<T> u, ConstHeadView<T> z,
                   const HeadShape& shape, std::int64_t gate_features, GateFn fn, GateOp op) {
  const GateBackward<T> call{du, dz, dy, u, z, shape, {fn, op, gate_features == 1}};
  for_tokens(HEADGATE_FOR_TARGET(gate_backward_rows, T, active_target_bit()), call);
}

template <typename T>
void shared_gate_forward(T* g, ConstHeadView<T> z, const HeadShape& shape, GateFn fn) {
  const SharedGate<T> call{g, {}, z, shape, fn};
  for_tokens(HEADGATE_FOR_TARGET(shared_gate_forward_rows, T, active_target_bit()), call);
}

template <typename T>
void shared_gate_backward(HeadView<T> dz, ConstHeadView<T> z, const HeadShape& shape, GateFn fn) {
  const SharedGate<T> call{nullptr, dz, z, shape, fn};
  for_tokens(HEADGATE_FOR_TARGET(shared_gate_backward_rows, T, active_target_bit()), call);
}

template <typename T>
void add_bias(T* x, const T* b, std::int64_t N, std::int64_t W, std::int64_t ldx) {
  for_parts(parts_of(N, W), [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      for (std::int64_t w = 0; w < W; ++w) x[n * ldx + w] += b[w];
    }
  });
}

template <typename T>
void add_column_sums(T* db, const T* dx, std::int64_t N, std::int64_t W, std::int64_t ldx) {
  constexpr std::int64_t kColumns = kApart<T>;  // what a row's visit to memory brings anyway
  const auto add_columns = [&](std::int64_t first, std::int64_t columns) {
    std::array<double, kColumns> sums{};
    for (std::int64_t n = 0; n < N; ++n) {
      const T* dx_row = dx + n * ldx + first;
      for (std::int64_t w = 0; w < columns; ++w) sums[static_cast<std::size_t>(w)] += static_cast<double>(dx_row[w]);
    }
    for (std::int64_t w = 0; w < columns; ++w) db[first + w] += static_cast<T>(sums[static_cast<std::size_t>(w)]);
  };
  for_parts(parts_of(W, N, kColumns), [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    for (std::int64_t first = begin; first < end; first += kColumns)
      add_columns(first, std::min(kColumns, end - first));
  });
}

template void gate_values(float*, ConstHeadView<float>, const HeadShape&, GateFn);
template void gate_forward(HeadView<float>, ConstHeadView<float>, ConstHeadView<float>, const HeadShape&, std::int64_t,
                           GateFn, GateOp, Store);
template void gate_backward(HeadView<float>, HeadView<float>, ConstHeadView<float>, ConstHeadView<float>,
                            ConstHeadView<float>, const HeadShape&, std::int64_t, GateFn, GateOp);
template void shared_gate_forward(float*, ConstHeadView<float>, const HeadShape&, GateFn);
template void shared_gate_backward(HeadView<float>, ConstHeadView<float>, const HeadShape&, GateFn);
template void add_bias(float*, const float*, std::int64_t, std::int64_t, std::int64_t);
template void add_column_sums(float*, const float*, std::int64_t, std::int64_t, std::int64_t);

template void gate_values(double*, ConstHeadView<double>, const HeadShape&, GateFn);
template void gate_forward(HeadView<double>, ConstHeadView<double>, ConstHeadView<double>, const HeadShape&,
                           std::int64_t, GateFn, GateOp, Store);
template void gate_backward(HeadView<double>, HeadView<double>, ConstHeadView<double>, ConstHeadView<double>,
                            ConstHeadView<double>, const HeadShape&, std::int64_t, GateFn, GateOp);
template void shared_gate_forward(double*, ConstHeadView<double>, const HeadShape&, GateFn);
template void shared_gate_backward(HeadView<double>, ConstHeadView<double>, const HeadShape&, GateFn);
template void add_bias(double*, const double*, std::int64_t, std::int64_t, std::int64_t);
template void add_column_sums(double*, const double*, std::int64_t, std::int64_t, std::int64_t);

}  // namespace headgate::layers
#endif  // HWY_ONCE
