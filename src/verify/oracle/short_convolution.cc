// SPDX-License-Identifier: Apache-2.0
#include "verify/oracle/short_convolution.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "library/core/element.hpp"
#include "verify/oracle/oracle.hpp"
#include "verify/oracle/snapshots.hpp"
#include "verify/oracle/sums.hpp"

namespace headgate::reference {
namespace {

/// One channel c of one sequence n. Its inputs are the K − 1 rows of the state, then the T tokens: input e is token e −
/// (K − 1).
struct Channel {
  std::int64_t b, n, c, first, T;
};

struct Sizes {
  std::int64_t T, C, K, N;
  bool packed;

  explicit Sizes(const ShortConvolutionInputs& in)
      : T(in.x.shape[2]),
        C(in.x.shape[3]),
        K(in.weight.shape[3]),
        N(in.cu_seqlens.present() ? in.cu_seqlens.shape[3] - 1 : in.x.shape[0]),
        packed(in.cu_seqlens.present()) {}

  template <class Visit>
  void each_channel(const ShortConvolutionInputs& in, const Visit& visit) const {
    for (std::int64_t n = 0; n < N; ++n) {
      const std::int64_t first = packed ? load_index(in.cu_seqlens, n) : 0;
      const std::int64_t end = packed ? load_index(in.cu_seqlens, n + 1) : T;
      for (std::int64_t c = 0; c < C; ++c) visit(Channel{packed ? 0 : n, n, c, first, end - first});
    }
  }

  std::size_t token(const Channel& at, std::int64_t t) const {
    return static_cast<std::size_t>((at.b * T + at.first + t) * C + at.c);
  }
  std::size_t state(std::int64_t number, std::int64_t i, std::int64_t c) const {
    return static_cast<std::size_t>((number * (K - 1) + i) * C + c);
  }
  std::size_t tap(const Channel& at, std::int64_t j) const { return static_cast<std::size_t>(at.c * K + j); }
};

double history(const ShortConvolutionInputs& in, const Sizes& n, const Channel& at, std::int64_t e) {
  const std::int64_t t = e - (n.K - 1);
  if (t >= 0) return load(in.x, at.b, 0, at.first + t, at.c);
  return in.state.present() ? load(in.state, at.n, 0, e, at.c) : 0.0;
}

double tap(const ShortConvolutionInputs& in, const Channel& at, std::int64_t j) {
  return load(in.weight, 0, 0, at.c, j);
}

struct Sum {
  double value, magnitude;
};

/// Returns the convolution's sum s at token t, before the activation.
Sum sum_at(const ShortConvolutionInputs& in, const Sizes& n, const Channel& at, std::int64_t t) {
  CompensatedSum sum;
  const double bias = in.bias.present() ? load(in.bias, 0, 0, 0, at.c) : 0.0;
  sum.add(bias);
  double magnitude = std::abs(bias);
  for (std::int64_t j = 0; j < n.K; ++j) {
    const double term = tap(in, at, j) * history(in, n, at, t + j);
    sum.add(term);
    magnitude += std::abs(term);
  }
  return {sum.value(), magnitude};
}

/// Returns the second derivative of silu(z) = zσ(z).
double silu_curvature(double z) {
  const double s = sigmoid(z), c = sigmoid(-z);
  return s * c * (2.0 + z * (c - s));
}

/// Returns the largest of |f(s)|, |f(s − e)| and |f(s + e)|, where e bounds the rounding error of s.
template <class F>
double largest_near(const Sum& s, DType dtype, const F& f) {
  const double moved = 16.0 * (dtype == DType::f64 ? 0x1p-53 : 0x1p-24) * s.magnitude;
  return std::max({std::abs(f(s.value - moved)), std::abs(f(s.value)), std::abs(f(s.value + moved))});
}

Sum activated(GateFn fn, const Sum& s, DType dtype) {
  if (fn == GateFn::none) return s;
  const auto slope = [fn](double z) { return gate_value(fn, z).slope; };
  return {gate_value(fn, s.value).value,
          gate_magnitude(fn, s.value, dtype) + largest_near(s, dtype, slope) * s.magnitude};
}

/// Returns the gradient of the sum s: dy · act′(s).
Sum gradient_of_sum(GateFn fn, const Sum& s, double dy, DType dtype) {
  if (fn == GateFn::none) return {dy, std::abs(dy)};
  return {dy * gate_value(fn, s.value).slope, std::abs(dy) * (gate_slope_magnitude(fn, s.value, dtype) +
                                                              largest_near(s, dtype, silu_curvature) * s.magnitude)};
}

/// Accumulates sums and, for their error bounds, the absolute values of the terms.
struct Sums {
  std::vector<CompensatedSum> sum;
  std::vector<double>& magnitude;

  Sums(std::vector<double>& magnitudes, std::int64_t count)
      : sum(static_cast<std::size_t>(count)), magnitude(magnitudes) {
    magnitude.assign(static_cast<std::size_t>(count), 0.0);
  }
  void add(std::size_t at, double factor, const Sum& term) {
    sum[at].add(factor * term.value);
    magnitude[at] += std::abs(factor) * term.magnitude;
  }
  std::vector<double> values() const {
    std::vector<double> values;
    for (const CompensatedSum& each : sum) values.push_back(each.value());
    return values;
  }
};

}  // namespace

ShortConvolutionForward short_convolution(const ShortConvolutionInputs& in, const ShortConvolutionOptions& options) {
  const Sizes n(in);
  ShortConvolutionForward out;
  out.y.resize(static_cast<std::size_t>(in.x.numel()));
  out.state.resize(static_cast<std::size_t>(n.N * (n.K - 1) * n.C));
  const std::int64_t M = snapshots_of(in.snapshot_lengths);
  out.snapshots.resize(out.state.size() * static_cast<std::size_t>(M));
  out.magnitude = {out.y, out.state, out.snapshots};
  n.each_channel(in, [&](const Channel& at) {
    for (std::int64_t t = 0; t < at.T; ++t) {
      const Sum y = activated(options.activation, sum_at(in, n, at, t), in.x.dtype);
      out.y[n.token(at, t)] = y.value;
      out.magnitude.y[n.token(at, t)] = y.magnitude;
    }
    for (std::int64_t i = 0; i < n.K - 1; ++i) out.state[n.state(at.n, i, at.c)] = history(in, n, at, at.T + i);
    for (std::int64_t m = 0; m < M; ++m) {
      const std::int64_t length = snapshot_length(in.snapshot_lengths, at.n, m);
      for (std::int64_t i = 0; i < n.K - 1; ++i) {
        out.snapshots[n.state(at.n * M + m, i, at.c)] = history(in, n, at, length + i);
      }
    }
  });
  return out;
}

ShortConvolutionBackward short_convolution_backward(const ShortConvolutionInputs& in,
                                                    const ShortConvolutionIncoming& incoming,
                                                    const ShortConvolutionOptions& options) {
  const Sizes n(in);
  ShortConvolutionBackward out;
  Sums dx(out.magnitude.dx, in.x.numel()), dweight(out.magnitude.dweight, n.C * n.K);
  Sums dbias(out.magnitude.dbias, n.C), dstate(out.magnitude.dstate, n.N * (n.K - 1) * n.C);
  n.each_channel(in, [&](const Channel& at) {
    const auto add_to_history = [&](std::int64_t e, double factor, const Sum& term) {
      const std::int64_t t = e - (n.K - 1);
      t >= 0 ? dx.add(n.token(at, t), factor, term) : dstate.add(n.state(at.n, e, at.c), factor, term);
    };
    for (std::int64_t t = 0; t < at.T; ++t) {
      const double dy = load(incoming.dy, at.b, 0, at.first + t, at.c);
      const Sum ds = gradient_of_sum(options.activation, sum_at(in, n, at, t), dy, in.x.dtype);
      dbias.add(static_cast<std::size_t>(at.c), 1.0, ds);
      for (std::int64_t j = 0; j < n.K; ++j) {
        dweight.add(n.tap(at, j), history(in, n, at, t + j), ds);
        add_to_history(t + j, tap(in, at, j), ds);
      }
    }
    for (std::int64_t i = 0; incoming.dstate.present() && i < n.K - 1; ++i) {
      const double gradient = load(incoming.dstate, at.n, 0, i, at.c);
      add_to_history(at.T + i, 1.0, {gradient, std::abs(gradient)});
    }
  });
  out.dx = dx.values();
  out.dweight = dweight.values();
  out.dbias = dbias.values();
  out.dstate = dstate.values();
  return out;
}

}  // namespace headgate::reference
