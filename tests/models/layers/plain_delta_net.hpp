// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/layers/delta_net_buffers.hpp"
#include "models/layers/magnitude.hpp"

// A plain Gated DeltaNet layer, written from its formulas, one token after the other.

namespace headgate::layers {

/// Tensors of a layer, in this order: h (N,C), in (width,C), convolution (channels,K), a_log (Hv), dt_bias (Hv), norm
/// (Dv), out (C,Hv·Dv).
enum DeltaNetTensor : std::size_t { kInput, kIn, kConvolution, kALog, kDtBias, kNorm, kOut, kDeltaNetTensors };
using DeltaNetNumbers = std::array<std::vector<Number>, kDeltaNetTensors>;

class PlainDeltaNet {
 public:
  PlainDeltaNet(const DeltaNetShape& shape, const DeltaNetNumbers& tensors) : s_(shape), x_(tensors) {}

  /// Returns out (N,C).
  std::vector<Number> output() const {
    std::vector<Number> out;
    for (std::int64_t b = 0; b < s_.B; ++b) {
      const Rows y = gated(b);
      for (const std::vector<Number>& row : y) {
        for (std::int64_t c = 0; c < s_.C; ++c) {
          Number sum;
          for (std::size_t i = 0; i < row.size(); ++i) sum += row[i] * at(kOut, c, s_.Hv * s_.Dv, i);
          out.push_back(sum);
        }
      }
    }
    return out;
  }

 private:
  using Rows = std::vector<std::vector<Number>>;

  template <typename Column>
  const Number& at(DeltaNetTensor tensor, std::int64_t row, std::int64_t width, Column column) const {
    return x_[tensor][static_cast<std::size_t>(row * width + static_cast<std::int64_t>(column))];
  }

  /// Returns the projection of token t of sequence b.
  std::vector<Number> projected(std::int64_t b, std::int64_t t) const {
    std::vector<Number> row;
    for (std::int64_t w = 0; w < delta_net_columns(s_).width; ++w) {
      Number sum;
      for (std::int64_t c = 0; c < s_.C; ++c) sum += at(kInput, b * s_.T + t, s_.C, c) * at(kIn, w, s_.C, c);
      row.push_back(sum);
    }
    return row;
  }

  /// Returns the tokens of sequence b, with q, k and v behind the convolution.
  Rows convolved(std::int64_t b) const {
    Rows rows;
    for (std::int64_t t = 0; t < s_.T; ++t) rows.push_back(projected(b, t));
    Rows out = rows;
    for (std::int64_t t = 0; t < s_.T; ++t) {
      for (std::int64_t c = 0; c < s_.channels(); ++c) {
        Number sum;
        for (std::int64_t j = 0; j < s_.K; ++j) {
          const std::int64_t from = t - s_.K + 1 + j;
          if (from < 0) continue;
          sum += at(kConvolution, c, s_.K, j) * rows[static_cast<std::size_t>(from)][static_cast<std::size_t>(c)];
        }
        out[static_cast<std::size_t>(t)][static_cast<std::size_t>(c)] = silu(sum);
      }
    }
    return out;
  }

  /// Returns the L2-normed features first … first + D − 1 of a row.
  std::vector<Number> normed(const std::vector<Number>& row, std::int64_t first) const {
    std::vector<Number> x(row.begin() + first, row.begin() + first + s_.D);
    Number squares = 1e-6;
    for (const Number& value : x) squares += value * value;
    for (Number& value : x) value = value / sqrt(squares);
    return x;
  }

  /// Returns the outputs (T,Hv·Dv) of sequence b's delta rule after norm and gate.
  Rows gated(std::int64_t b) const {
    const Rows rows = convolved(b);
    Rows y(rows.size());
    for (std::int64_t head = 0; head < s_.Hv; ++head) {
      std::vector<Number> state(static_cast<std::size_t>(s_.D * s_.Dv));
      for (std::size_t t = 0; t < rows.size(); ++t) {
        const std::vector<Number> o = step(state, rows[t], head);
        add_gated(y[t], o, rows[t], head);
      }
    }
    return y;
  }

  /// Takes one token into the state of a head. Returns Sᵀq / √D.
  std::vector<Number> step(std::vector<Number>& state, const std::vector<Number>& row, std::int64_t head) const {
    const DeltaNetColumns columns = delta_net_columns(s_);
    const std::int64_t key_head = head / (s_.Hv / s_.Hk);
    const std::vector<Number> q = normed(row, key_head * s_.D), k = normed(row, columns.k + key_head * s_.D);
    const Number z = row[static_cast<std::size_t>(columns.a + head)] + at(kDtBias, 0, 0, head);
    const Number decay = exp(-(exp(at(kALog, 0, 0, head)) * log1p(exp(z))));
    const Number beta = s_.beta_scale * sigmoid(row[static_cast<std::size_t>(columns.b + head)]);
    std::vector<Number> o;
    for (std::int64_t e = 0; e < s_.Dv; ++e) {
      const auto cell = [&](std::int64_t d) -> Number& { return state[static_cast<std::size_t>(d * s_.Dv + e)]; };
      Number old, out;
      for (std::int64_t d = 0; d < s_.D; ++d) {
        cell(d) = decay * cell(d);
        old += cell(d) * k[static_cast<std::size_t>(d)];
      }
      const Number v = row[static_cast<std::size_t>(columns.v + head * s_.Dv + e)];
      const Number update = beta * (v - old);
      for (std::int64_t d = 0; d < s_.D; ++d) {
        cell(d) += k[static_cast<std::size_t>(d)] * update;
        out += cell(d) * q[static_cast<std::size_t>(d)];
      }
      o.push_back(out * (1.0 / std::sqrt(static_cast<double>(s_.D))));
    }
    return o;
  }

  /// Appends a head's norm(o)·g(z) to y.
  void add_gated(std::vector<Number>& y, const std::vector<Number>& o, const std::vector<Number>& row,
                 std::int64_t head) const {
    Number squares;
    for (const Number& value : o) squares += value * value;
    const Number rms = sqrt(squares / static_cast<double>(s_.Dv) + s_.norm_eps);
    for (std::int64_t e = 0; e < s_.Dv; ++e) {
      const Number z = row[static_cast<std::size_t>(delta_net_columns(s_).z + head * s_.Dv + e)];
      const Number gate = s_.output_gate == GateFn::silu ? silu(z) : sigmoid(z);
      y.push_back(o[static_cast<std::size_t>(e)] / rms * at(kNorm, 0, 0, e) * gate);
    }
  }

  const DeltaNetShape& s_;
  const DeltaNetNumbers& x_;
};

}  // namespace headgate::layers
