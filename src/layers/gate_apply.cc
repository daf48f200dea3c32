// SPDX-License-Identifier: Apache-2.0
#include "layers/gate_apply.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <tuple>
#include <utility>

#include "layers/parallel.hpp"

namespace headgate::layers {

namespace {

template <typename T>
T sigmoid(T z) {
  const T e = std::exp(-std::abs(z));
  return (z >= T{0} ? T{1} : e) / (T{1} + e);
}

// value g(z) and derivative g′(z) together: they share the exponential.

struct Sigmoid {
  template <typename T>
  static std::pair<T, T> at(T z) {
    const T e = std::exp(-std::abs(z));
    const T inverse = T{1} / (T{1} + e);
    return {z >= T{0} ? inverse : e * inverse, e * inverse * inverse};
  }
};

struct Sigmoid2 {
  template <typename T>
  static std::pair<T, T> at(T z) {
    const auto [s, d] = Sigmoid::at(z);
    return {2 * s, 2 * d};
  }
};

struct NsSigmoid {
  template <typename T>
  static std::pair<T, T> at(T z) {
    const auto [s, d] = Sigmoid::at(z);
    constexpr auto half = static_cast<T>(0.5);
    return {half + half * s, half * d};
  }
};

struct Silu {
  template <typename T>
  static std::pair<T, T> at(T z) {
    const auto [s, d] = Sigmoid::at(z);
    return {z * s, s + z * d};
  }
};

struct Softplus {
  template <typename T>
  static std::pair<T, T> at(T z) {
    return {std::max(z, T{0}) + std::log1p(std::exp(-std::abs(z))), sigmoid(z)};
  }
};

struct Identity {
  template <typename T>
  static std::pair<T, T> at(T z) {
    return {z, T{1}};
  }
};

template <typename Body>
void with_function(GateFn fn, const Body& body) {
  switch (fn) {
    case GateFn::sigmoid: return body(Sigmoid{});
    case GateFn::sigmoid2: return body(Sigmoid2{});
    case GateFn::ns_sigmoid: return body(NsSigmoid{});
    case GateFn::silu: return body(Silu{});
    case GateFn::softplus: return body(Softplus{});
    case GateFn::none:
    case GateFn::identity: return body(Identity{});
  }
}

template <typename T>
T* row(const HeadView<T>& view, std::int64_t n, std::int64_t h) {
  return view.data + n * view.token_stride + h * view.head_stride;
}

/// body(n) for every token, cut among threads.
template <typename Body>
void for_tokens(const HeadShape& shape, const Body& body) {
  constexpr std::int64_t kOperations = 8;  // of one element: an exponential and a division
  for_parts(parts_of(shape.N, kOperations * shape.H * shape.D),
            [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
              for (std::int64_t n = begin; n < end; ++n) body(n);
            });
}

}  // namespace

template <typename T>
T gate_value(GateFn fn, T z) {
  T value{};
  with_function(fn, [&](auto function) { value = function.at(z).first; });
  return value;
}

template <typename T>
void gate_forward(HeadView<T> y, ConstHeadView<T> u, ConstHeadView<T> z, const HeadShape& shape,
                  std::int64_t gate_features, GateFn fn, GateOp op, Store store) {
  const std::int64_t step = gate_features == 1 ? 0 : 1;  // of z along a head
  with_function(fn, [&](auto function) {
    for_tokens(shape, [&](std::int64_t n) {
      for (std::int64_t h = 0; h < shape.H; ++h) {
        T* y_row = row(y, n, h);
        const T* u_row = row(u, n, h);
        const T* z_row = row(z, n, h);
        T g{};
        for (std::int64_t d = 0; d < shape.D; ++d) {
          if (d == 0 || step != 0) g = function.at(z_row[d * step]).first;
          const T gated = op == GateOp::mul ? u_row[d] * g : u_row[d] + g;
          y_row[d] = store == Store::add ? y_row[d] + gated : gated;
        }
      }
    });
  });
}

template <typename T>
void gate_backward(HeadView<T> du, HeadView<T> dz, ConstHeadView<T> dy, ConstHeadView<T> u, ConstHeadView<T> z,
                   const HeadShape& shape, std::int64_t gate_features, GateFn fn, GateOp op) {
  const std::int64_t step = gate_features == 1 ? 0 : 1;  // of z and dz along a head
  with_function(fn, [&](auto function) {
    for_tokens(shape, [&](std::int64_t n) {
      for (std::int64_t h = 0; h < shape.H; ++h) {
        T* du_row = row(du, n, h);
        T* dz_row = row(dz, n, h);
        const T* dy_row = row(dy, n, h);
        const T* u_row = row(u, n, h);
        const T* z_row = row(z, n, h);
        T g{}, slope{}, sum{};
        for (std::int64_t d = 0; d < shape.D; ++d) {
          if (d == 0 || step != 0) std::tie(g, slope) = function.at(z_row[d * step]);
          const T incoming = dy_row[d];  // du may be dy
          const T dg = op == GateOp::mul ? incoming * u_row[d] : incoming;
          du_row[d] = op == GateOp::mul ? incoming * g : incoming;
          if (step != 0) {
            dz_row[d] = dg * slope;
          } else {
            sum += dg;
          }
        }
        if (step == 0) dz_row[0] = sum * slope;
      }
    });
  });
}

template <typename T>
void shared_gate_forward(T* g, ConstHeadView<T> z, const HeadShape& shape, GateFn fn) {
  const T share = T{1} / static_cast<T>(shape.H);
  with_function(fn, [&](auto function) {
    for_tokens(shape, [&](std::int64_t n) {
      T* g_row = g + n * shape.D;
      std::fill_n(g_row, shape.D, T{0});
      for (std::int64_t h = 0; h < shape.H; ++h) {
        const T* z_row = row(z, n, h);
        for (std::int64_t d = 0; d < shape.D; ++d) g_row[d] += share * function.at(z_row[d]).first;
      }
    });
  });
}

template <typename T>
void shared_gate_backward(HeadView<T> dz, ConstHeadView<T> z, const HeadShape& shape, GateFn fn) {
  const T share = T{1} / static_cast<T>(shape.H);
  with_function(fn, [&](auto function) {
    for_tokens(shape, [&](std::int64_t n) {
      for (std::int64_t d = 0; d < shape.D; ++d) {
        T dg{};
        for (std::int64_t h = 0; h < shape.H; ++h) dg += row(dz, n, h)[d];
        for (std::int64_t h = 0; h < shape.H; ++h) {
          row(dz, n, h)[d] = share * dg * function.at(row(z, n, h)[d]).second;
        }
      }
    });
  });
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

template float gate_value(GateFn, float);
template void gate_forward(HeadView<float>, ConstHeadView<float>, ConstHeadView<float>, const HeadShape&, std::int64_t,
                           GateFn, GateOp, Store);
template void gate_backward(HeadView<float>, HeadView<float>, ConstHeadView<float>, ConstHeadView<float>,
                            ConstHeadView<float>, const HeadShape&, std::int64_t, GateFn, GateOp);
template void shared_gate_forward(float*, ConstHeadView<float>, const HeadShape&, GateFn);
template void shared_gate_backward(HeadView<float>, ConstHeadView<float>, const HeadShape&, GateFn);
template void add_bias(float*, const float*, std::int64_t, std::int64_t, std::int64_t);
template void add_column_sums(float*, const float*, std::int64_t, std::int64_t, std::int64_t);

template double gate_value(GateFn, double);
template void gate_forward(HeadView<double>, ConstHeadView<double>, ConstHeadView<double>, const HeadShape&,
                           std::int64_t, GateFn, GateOp, Store);
template void gate_backward(HeadView<double>, HeadView<double>, ConstHeadView<double>, ConstHeadView<double>,
                            ConstHeadView<double>, const HeadShape&, std::int64_t, GateFn, GateOp);
template void shared_gate_forward(double*, ConstHeadView<double>, const HeadShape&, GateFn);
template void shared_gate_backward(HeadView<double>, ConstHeadView<double>, const HeadShape&, GateFn);
template void add_bias(double*, const double*, std::int64_t, std::int64_t, std::int64_t);
template void add_column_sums(double*, const double*, std::int64_t, std::int64_t, std::int64_t);

}  // namespace headgate::layers
