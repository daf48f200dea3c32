// SPDX-License-Identifier: Apache-2.0
#include "models/layers/delta_net_buffers.hpp"

#include <cmath>

#include "headgate/linear_attention.hpp"
#include "headgate/short_convolution.hpp"
#include "library/core/check.hpp"

namespace headgate::layers {

namespace {

/// Views the columns q, k and v of the rows [q | k | v], split into heads.
template <typename T>
struct MixedHeads {
  View<T, 3> q, k, v;

  MixedHeads(const View<T, 2>& rows, const DeltaNetShape& shape) {
    const DeltaNetColumns columns = delta_net_columns(shape);
    q = rows.range(1, 0, columns.k).split_last(shape.Hk, shape.D);
    k = rows.range(1, columns.k, columns.v - columns.k).split_last(shape.Hk, shape.D);
    v = rows.range(1, columns.v, columns.z - columns.v).split_last(shape.Hv, shape.Dv);
  }
};

/// Views the columns of a projection [q | k | v | z | b | a], or of its gradient.
template <typename T>
struct Projected {
  View<T, 2> mixed, b, a;
  View<T, 3> z;

  Projected(const View<T, 2>& rows, const DeltaNetShape& shape) {
    const DeltaNetColumns columns = delta_net_columns(shape);
    mixed = rows.range(1, 0, columns.z);
    z = rows.range(1, columns.z, columns.b - columns.z).split_last(shape.Hv, shape.Dv);
    b = rows.range(1, columns.b, shape.Hv);
    a = rows.range(1, columns.a, shape.Hv);
  }
};

}  // namespace

void validate(const DeltaNetShape& s) {
  require(s.B >= 0 && s.T >= 0 && s.C >= 1, "DeltaNet: {} sequences of {} tokens of {} channels", s.B, s.T, s.C);
  require(s.Hk >= 1 && s.Hv >= 1 && s.Hv % s.Hk == 0,
          "DeltaNet: {} value heads, which must be a multiple of the {} key heads", s.Hv, s.Hk);
  require(s.D >= 1 && s.D <= kMaxStateDim && s.Dv >= 1 && s.Dv <= kMaxStateDim,
          "DeltaNet: heads of {} and {} features but they must have 1 to {}", s.D, s.Dv, kMaxStateDim);
  require(s.K >= kMinTaps && s.K <= kMaxTaps, "DeltaNet: a convolution of {} taps but it must have {} to {}", s.K,
          kMinTaps, kMaxTaps);
  require(s.norm_eps >= 0.0 && std::isfinite(s.norm_eps), "DeltaNet: norm_eps is {} but must be at least 0 and finite",
          s.norm_eps);
  require(s.beta_scale > 0.0 && std::isfinite(s.beta_scale),
          "DeltaNet: beta_scale is {} but must be above 0 and finite", s.beta_scale);
  require(s.output_gate != GateFn::none, "DeltaNet: output_gate is none, but the norm needs a gate");
}

DeltaNetColumns delta_net_columns(const DeltaNetShape& shape) {
  DeltaNetColumns columns;
  columns.k = shape.Hk * shape.D;
  columns.v = 2 * columns.k;
  columns.z = columns.v + shape.Hv * shape.Dv;
  columns.b = columns.z + shape.Hv * shape.Dv;
  columns.a = columns.b + shape.Hv;
  columns.width = columns.a + shape.Hv;
  return columns;
}

template <typename T>
DeltaNetState<T>::DeltaNetState(Workspace& ws, const DeltaNetShape& shape) {
  constexpr const char* kName = "DeltaNet, saved";
  const std::int64_t N = shape.N();
  projection = ws.take<T>(kName, N, delta_net_columns(shape).width);
  const Projected<T> columns(projection, shape);
  mixed = columns.mixed;
  z = columns.z;
  b = columns.b;
  a = columns.a;
  convolved = ws.take<T>(kName, N, shape.channels());
  const MixedHeads<T> heads(convolved, shape);
  q = heads.q;
  k = heads.k;
  v = heads.v;
  decay = ws.take<Wide<T>>(kName, N, shape.Hv);
  beta = ws.take<Wide<T>>(kName, N, shape.Hv);
  o = ws.take<T>(kName, N, shape.Hv, shape.Dv);
  y = ws.take<T>(kName, N, shape.Hv, shape.Dv);
}

template <typename T>
DeltaNetShared<T>::DeltaNetShared(Workspace& ws, const DeltaNetShape& shape, bool training) {
  if (!training) return;
  constexpr const char* kName = "DeltaNet, backward";
  const std::int64_t N = shape.N();
  dprojection = ws.take<T>(kName, N, delta_net_columns(shape).width);
  const Projected<T> columns(dprojection, shape);
  dmixed = columns.mixed;
  dz = columns.z;
  db = columns.b;
  da = columns.a;
  dconvolved = ws.take<T>(kName, N, shape.channels());
  const MixedHeads<T> heads(dconvolved, shape);
  dq = heads.q;
  dk = heads.k;
  dv = heads.v;
  ddecay = ws.take<Wide<T>>(kName, N, shape.Hv);
  dbeta = ws.take<Wide<T>>(kName, N, shape.Hv);
  d_o = ws.take<T>(kName, N, shape.Hv, shape.Dv);
  dy = ws.take<T>(kName, N, shape.Hv, shape.Dv);
  dconvolution = ws.take<Wide<T>>(kName, shape.channels(), shape.K);
  dnorm = ws.take<Wide<T>>(kName, shape.Dv);
}

template struct DeltaNetState<float>;
template struct DeltaNetState<double>;
template struct DeltaNetState<BFloat16>;
template struct DeltaNetShared<float>;
template struct DeltaNetShared<double>;
template struct DeltaNetShared<BFloat16>;

}  // namespace headgate::layers
