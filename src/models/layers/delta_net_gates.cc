// SPDX-License-Identifier: Apache-2.0
#include "models/layers/delta_net_gates.hpp"

#include <cassert>

#include "library/core/dispatch.hpp"
#include "models/layers/parallel.hpp"

#ifndef HEADGATE_LAYERS_DELTA_NET_GATES_CALL_  // Highway compiles this file once per SIMD target
#define HEADGATE_LAYERS_DELTA_NET_GATES_CALL_
namespace headgate::layers {

template <typename T>
struct DeltaGatesBackward {
  View<T, 2> da, db;
  View<Wide<T>, 2> ddecay;
  View<const Wide<T>, 2> dbeta, decay;
};

}  // namespace headgate::layers
#endif  // HEADGATE_LAYERS_DELTA_NET_GATES_CALL_

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/layers/delta_net_gates.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Headers that Highway compiles once per SIMD target must follow foreach_target.h.
#include "library/core/gate_functions-inl.hpp"
#include "models/layers/rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::layers::HWY_NAMESPACE {

template <typename T>
void delta_gates_forward_rows(const View<Wide<T>, 2>& decay, const View<Wide<T>, 2>& beta, const DeltaGates<T>& gates,
                              std::int64_t begin, std::int64_t end) {
  using W = Wide<T>;
  const Tag<W> d;
  const auto scale = hn::Set(d, static_cast<W>(gates.beta_scale));
  for (std::int64_t n = begin; n < end; ++n) {
    const T *a = gates.a.at(n), *b = gates.b.at(n);
    W *out = decay.at(n), *out_beta = beta.at(n);
    each_vector<W>(decay.shape[1], [&](std::int64_t h, auto lanes) HWY_ATTR {
      const auto rate = hn::Exp(d, lanes.load(gates.a_log.data + h));
      const auto z = hn::Add(lanes.load(a + h), lanes.load(gates.dt_bias.data + h));
      lanes.store(hn::Neg(hn::Mul(rate, Gate<GateFn::softplus>::value(d, z))), out + h);
      lanes.store(hn::Mul(scale, SigmoidGate::value(d, lanes.load(b + h))), out_beta + h);
    });
  }
}

template <typename T>
void delta_gates_backward_rows(const DeltaGatesBackward<T>& call, const DeltaGates<T>& gates, std::int64_t begin,
                               std::int64_t end) {
  using W = Wide<T>;
  const Tag<W> d;
  const auto scale = hn::Set(d, static_cast<W>(gates.beta_scale));
  for (std::int64_t n = begin; n < end; ++n) {
    const T *a = gates.a.at(n), *b = gates.b.at(n);
    const W *g = call.decay.at(n), *incoming = call.dbeta.at(n);
    T *da = call.da.at(n), *db = call.db.at(n);
    W* dg = call.ddecay.at(n);
    each_vector<W>(call.decay.shape[1], [&](std::int64_t h, auto lanes) HWY_ATTR {
      const auto rate = hn::Exp(d, lanes.load(gates.a_log.data + h));
      const auto z = hn::Add(lanes.load(a + h), lanes.load(gates.dt_bias.data + h));
      const auto of_decay = lanes.load(dg + h);
      lanes.store(hn::Neg(hn::Mul(of_decay, hn::Mul(rate, Gate<GateFn::softplus>::derivative(d, z)))), da + h);
      const auto slope = hn::Mul(scale, SigmoidGate::derivative(d, lanes.load(b + h)));
      lanes.store(hn::Mul(lanes.load(incoming + h), slope), db + h);
      lanes.store(hn::Mul(of_decay, lanes.load(g + h)), dg + h);
    });
  }
}

}  // namespace headgate::layers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate::layers {
namespace {

HEADGATE_TARGET_TABLE(delta_gates_forward_rows);
HEADGATE_TARGET_TABLE(delta_gates_backward_rows);

/// Cost of one logit, counted in elementwise operations: an exponential, a logarithm and several sums.
constexpr std::int64_t kOperations = 16;

template <typename T>
bool fits(const DeltaGates<T>& gates, const View<const Wide<T>, 2>& like) {
  const std::int64_t H = like.shape[1];
  return gates.a.shape == like.shape && gates.b.shape == like.shape && gates.a_log.shape[0] == H &&
         gates.dt_bias.shape[0] == H && has_whole_rows(gates.a) && has_whole_rows(gates.b) &&
         has_whole_rows(gates.a_log) && has_whole_rows(gates.dt_bias);
}

}  // namespace

template <typename T>
void delta_gates_forward(View<Wide<T>, 2> decay, View<Wide<T>, 2> beta, const DeltaGates<T>& gates,
                         const ExecutionContext& context) {
  assert(decay.shape == beta.shape && has_whole_rows(decay) && has_whole_rows(beta) && fits<T>(gates, decay));
  const auto kernel = HEADGATE_FOR_TARGET(delta_gates_forward_rows, T, context.target);
  for_parts(
      parts_of(context, decay.shape[0], kOperations * decay.shape[1]),
      [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) { kernel(decay, beta, gates, begin, end); });
}

template <typename T>
void delta_gates_backward(View<T, 2> da, View<T, 2> db, View<Wide<T>, 2> ddecay, ConstView<Wide<T>, 2> dbeta,
                          ConstView<Wide<T>, 2> decay, const DeltaGates<T>& gates, const ExecutionContext& context) {
  assert(da.shape == decay.shape && db.shape == decay.shape && ddecay.shape == decay.shape);
  assert(dbeta.shape == decay.shape && fits<T>(gates, decay));
  const auto kernel = HEADGATE_FOR_TARGET(delta_gates_backward_rows, T, context.target);
  const DeltaGatesBackward<T> call{da, db, ddecay, dbeta, decay};
  for_parts(parts_of(context, decay.shape[0], kOperations * decay.shape[1]),
            [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) { kernel(call, gates, begin, end); });
}

template void delta_gates_forward(View<float, 2>, View<float, 2>, const DeltaGates<float>&, const ExecutionContext&);
template void delta_gates_forward(View<double, 2>, View<double, 2>, const DeltaGates<double>&, const ExecutionContext&);
template void delta_gates_backward(View<float, 2>, View<float, 2>, View<float, 2>, ConstView<float, 2>,
                                   ConstView<float, 2>, const DeltaGates<float>&, const ExecutionContext&);
template void delta_gates_backward(View<double, 2>, View<double, 2>, View<double, 2>, ConstView<double, 2>,
                                   ConstView<double, 2>, const DeltaGates<double>&, const ExecutionContext&);
template void delta_gates_forward(View<float, 2>, View<float, 2>, const DeltaGates<BFloat16>&, const ExecutionContext&);
template void delta_gates_backward(View<BFloat16, 2>, View<BFloat16, 2>, View<float, 2>, ConstView<float, 2>,
                                   ConstView<float, 2>, const DeltaGates<BFloat16>&, const ExecutionContext&);

}  // namespace headgate::layers
#endif  // HWY_ONCE
