// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "library/core/convert.hpp"
#include "library/core/element.hpp"
#include "verify/linear_attention_check.hpp"
#include "verify/oracle/snapshots.hpp"

// Kernels of linear attention that are honest, in f32 or f64, and may be made wrong in one place: what the checks must
// accept and reject. They take the gradient of the decay from q∘dq and k∘dk as the library's kernels do.

namespace headgate::verify {

enum class LinearFault {
  none,
  // forward
  weight_of_one_token,    // β, or v, of the second token is off by 2⁻¹⁰
  no_decay_at_one_token,  // of the third
  read_before_decay,      // v − Sᵀk in place of v − (e^g S)ᵀk
  no_scale,
  no_eps,             // the norm without it
  state_in_bf16,      // rounded to 16 bits after each token
  state_before_last,  // S_{T−1} in place of S_T
  other_key_head,     // state h reads key head h mod Hk
  other_state,        // head h of y reads state h mod Hv
  sequences_run_on,   // a packed sequence starts from the state that the one before it leaves
  // backward
  no_read_gradient,     // dk through the write alone
  no_write_gradient,    // dk through the read alone
  decay_off_by_one,     // ddecay of the next token
  decay_of_new_state,   // ddecay with S_t in place of e^g S_{t−1}
  no_incoming_state,    // dstate of S_T is taken as 0
  no_projection,        // dx = r dx̂ through the norm
  last_head_alone,      // shared gradients are those of the last head that shares them
  beta_of_value_alone,  // dβ without the read
};

template <typename R>
class LinearReference {
 public:
  LinearReference(const LinearAttentionInputs& in, const LinearAttentionOptions& options, LinearFault fault)
      : in_(in),
        options_(options),
        fault_(fault),
        Hq_(in.q.shape[1]),
        Hk_(in.k.shape[1]),
        Hv_(in.v.shape[1]),
        Ho_(std::max(Hq_, Hv_)),
        D_(in.q.shape[3]),
        Dv_(in.v.shape[3]),
        scale_(static_cast<R>(options.scale.value_or(1.0 / std::sqrt(static_cast<double>(D_))))),
        delta_(options.rule == LinearRule::delta || options.rule == LinearRule::gated_delta) {}

  void forward(const LinearAttentionOutputs& out) {
    // A state may be updated in place, and one sequence's must not change before the next has been read.
    std::vector<std::vector<R>> states;
    for (std::int64_t n = 0; n < reference::linear_sequences(in_); ++n) {
      for (std::int64_t h = 0; h < Hv_; ++h) {
        run(n, h, fault_ == LinearFault::sequences_run_on && n > 0 ? &states[(n - 1) * Hv_ + h] : nullptr);
        states.push_back(states_[fault_ == LinearFault::state_before_last && T_ > 0 ? T_ - 1 : T_]);
        write_snapshots(out.snapshots, n);
        for (std::int64_t y = 0; y < Ho_; ++y) {
          if (state_of(y) == h) write_output(out.y, y);
        }
      }
    }
    if (!out.state.present()) return;
    for (std::int64_t n = 0; n < reference::linear_sequences(in_); ++n) {
      for (std::int64_t h = 0; h < Hv_; ++h) {
        for (std::int64_t x = 0; x < D_ * Dv_; ++x) {
          store(out.state, n, h, x / Dv_, x % Dv_, static_cast<double>(states[n * Hv_ + h][x]));
        }
      }
    }
  }

  void backward(const LinearAttentionGradients& out, const LinearAttentionIncoming& incoming) {
    dq_.assign(in_.q.numel(), R{0});
    dk_.assign(in_.k.numel(), R{0});
    dbeta_.assign(in_.beta.present() ? in_.beta.numel() : 0, R{0});
    for (std::int64_t n = 0; n < reference::linear_sequences(in_); ++n) {
      for (std::int64_t h = 0; h < Hv_; ++h) {
        run(n, h, nullptr);
        backward_of_state(out, incoming, n, h);
      }
    }
    write_rows(out.dq, in_.q, dq_);
    write_rows(out.dk, in_.k, dk_);
    write(out.dbeta, dbeta_);
  }

 private:
  using Values = std::vector<R>;

  std::int64_t state_of(std::int64_t y) const { return fault_ == LinearFault::other_state ? y % Hv_ : y / (Ho_ / Hv_); }
  std::int64_t key_of(std::int64_t h) const {
    return fault_ == LinearFault::other_key_head ? h % Hk_ : h / (Hv_ / Hk_);
  }
  std::int64_t query_of(std::int64_t y) const { return y / (Ho_ / Hq_); }

  R factor_of(const ConstTensorView& x, std::int64_t b, std::int64_t h, std::int64_t i) const {
    if (!options_.l2_norm) return R{1};
    R sum = fault_ == LinearFault::no_eps ? R{0} : static_cast<R>(*options_.l2_norm);
    for (std::int64_t d = 0; d < D_; ++d) {
      const R each = static_cast<R>(load(x, b, h, i, d));
      sum += each * each;
    }
    return sum == R{0} ? R{0} : R{1} / std::sqrt(sum);
  }

  Values row_of(const ConstTensorView& x, std::int64_t b, std::int64_t h, std::int64_t i) const {
    Values row;
    const R factor = factor_of(x, b, h, i);
    for (std::int64_t d = 0; d < D_; ++d) row.push_back(factor * static_cast<R>(load(x, b, h, i, d)));
    return row;
  }

  R decay(std::int64_t i, std::int64_t d) const {
    if (!in_.decay.present()) return R{1};
    if (fault_ == LinearFault::no_decay_at_one_token && i == first_ + 2) return R{1};
    return std::exp(static_cast<R>(load(in_.decay, b_, h_, i, in_.decay.shape[3] == 1 ? 0 : d)));
  }

  R beta(std::int64_t i) const {
    const R wrong = fault_ == LinearFault::weight_of_one_token && i == first_ + 1 ? R{1} + R{0x1p-10} : R{1};
    return in_.beta.present() ? wrong * static_cast<R>(load(in_.beta, b_, in_.beta.shape[1] == 1 ? 0 : h_, i, 0))
                              : wrong;
  }

  /// v − (e^g S)ᵀk of token t, or v.
  Values rest(const Values& k, const Values& before, std::int64_t i) const {
    Values out;
    for (std::int64_t j = 0; j < Dv_; ++j) {
      R read{0};
      for (std::int64_t d = 0; d < D_; ++d) {
        const R e = fault_ == LinearFault::read_before_decay ? R{1} : decay(i, d);
        read += e * before[d * Dv_ + j] * k[d];
      }
      out.push_back(static_cast<R>(load(in_.v, b_, h_, i, j)) - (delta_ ? read : R{0}));
    }
    return out;
  }

  /// The states of sequence n and head h, before the first token and after each.
  void run(std::int64_t n, std::int64_t h, const Values* start) {
    h_ = h;
    b_ = in_.cu_seqlens.present() ? 0 : n;
    first_ = in_.cu_seqlens.present() ? load_index(in_.cu_seqlens, n) : 0;
    T_ = in_.cu_seqlens.present() ? load_index(in_.cu_seqlens, n + 1) - first_ : in_.q.shape[2];
    Values state(D_ * Dv_, R{0});
    for (std::int64_t x = 0; in_.state.present() && x < D_ * Dv_; ++x) {
      state[x] = static_cast<R>(load(in_.state, n, h, x / Dv_, x % Dv_));
    }
    if (start != nullptr) state = *start;
    states_.assign(1, state);
    for (std::int64_t i = first_; i < first_ + T_; ++i) {
      const Values k = row_of(in_.k, b_, key_of(h), i);
      const Values left = rest(k, state, i);
      for (std::int64_t d = 0; d < D_; ++d) {
        for (std::int64_t j = 0; j < Dv_; ++j) {
          R& s = state[d * Dv_ + j];
          s = decay(i, d) * s + k[d] * (beta(i) * left[j]);
          if (fault_ == LinearFault::state_in_bf16) s = static_cast<R>(to_f32(to_bf16(static_cast<float>(s))));
        }
      }
      states_.push_back(state);
    }
  }

  /// Writes the snapshots of sequence n and head h_.
  void write_snapshots(const TensorView& snapshots, std::int64_t n) const {
    const std::int64_t M = reference::snapshots_of(in_.snapshot_lengths);
    for (std::int64_t m = 0; m < M; ++m) {
      const Values& state = states_[reference::snapshot_length(in_.snapshot_lengths, n, m)];
      for (std::int64_t x = 0; x < D_ * Dv_; ++x) {
        store(snapshots, n * M + m, h_, x / Dv_, x % Dv_, static_cast<double>(state[x]));
      }
    }
  }

  void write_output(const TensorView& y, std::int64_t head) const {
    for (std::int64_t t = 0; t < T_; ++t) {
      const Values q = row_of(in_.q, b_, query_of(head), first_ + t);
      for (std::int64_t j = 0; j < Dv_; ++j) {
        R sum{0};
        for (std::int64_t d = 0; d < D_; ++d) sum += states_[t + 1][d * Dv_ + j] * q[d];
        if (fault_ != LinearFault::no_scale) sum *= scale_;
        store(y, b_, head, first_ + t, j, static_cast<double>(sum));
      }
    }
  }

  /// Adds to a row of a gradient that heads may share.
  void add(Values& to, std::int64_t row, const Values& terms) const {
    const auto width = static_cast<std::int64_t>(terms.size());
    for (std::int64_t x = 0; x < width; ++x) {
      R& each = to[row * width + x];
      if (fault_ == LinearFault::last_head_alone) each = R{0};
      each += terms[x];
    }
  }

  void backward_of_state(const LinearAttentionGradients& out, const LinearAttentionIncoming& incoming, std::int64_t n,
                         std::int64_t h) {
    ds_.assign(D_ * Dv_, R{0});
    const bool has_incoming = incoming.dstate.present() && fault_ != LinearFault::no_incoming_state;
    for (std::int64_t x = 0; has_incoming && x < D_ * Dv_; ++x) {
      ds_[x] = static_cast<R>(load(incoming.dstate, n, h, x / Dv_, x % Dv_));
    }
    ddecay_.assign(D_, R{0});
    for (std::int64_t t = T_ - 1; t >= 0; --t) {
      const Values ddecay_after = ddecay_;
      add_outputs(incoming.dy, t);
      pass_token(out, t);
      write_decay(out.ddecay, fault_ == LinearFault::decay_off_by_one ? ddecay_after : ddecay_, first_ + t);
    }
    if (!out.dstate.present()) return;
    for (std::int64_t x = 0; x < D_ * Dv_; ++x) {
      store(out.dstate, n, h, x / Dv_, x % Dv_, static_cast<double>(ds_[x]));
    }
  }

  /// dq of token t, and what its outputs add to dS.
  void add_outputs(const ConstTensorView& incoming, std::int64_t t) {
    const std::int64_t i = first_ + t;
    const Values& after = states_[t + 1];
    for (std::int64_t y = 0; y < Ho_; ++y) {
      if (state_of(y) != h_) continue;
      const Values q = row_of(in_.q, b_, query_of(y), i);
      Values dq(D_, R{0});
      for (std::int64_t d = 0; d < D_; ++d) {
        for (std::int64_t j = 0; j < Dv_; ++j) {
          const R dy = scale_ * static_cast<R>(load(incoming, b_, y, i, j));
          dq[d] += after[d * Dv_ + j] * dy;
          ds_[d * Dv_ + j] += q[d] * dy;
        }
      }
      add(dq_, (b_ * Hq_ + query_of(y)) * in_.q.shape[2] + i, dq);
    }
  }

  /// dk, dv and dβ of token t; dS goes on to the state before it.
  void pass_token(const LinearAttentionGradients& out, std::int64_t t) {
    const std::int64_t i = first_ + t, T = in_.q.shape[2];
    const Values& before = states_[t];
    const Values k = row_of(in_.k, b_, key_of(h_), i);
    const Values left = rest(k, before, i);
    const R b = beta(i);
    Values du(Dv_, R{0}), write(D_, R{0}), read(D_, R{0});
    R dbeta{0};
    for (std::int64_t j = 0; j < Dv_; ++j) {
      for (std::int64_t d = 0; d < D_; ++d) du[j] += ds_[d * Dv_ + j] * k[d];
      const bool value_alone = fault_ == LinearFault::beta_of_value_alone;
      dbeta += du[j] * (value_alone ? static_cast<R>(load(in_.v, b_, h_, i, j)) : left[j]);
      if (out.dv.present()) store(out.dv, b_, h_, i, j, static_cast<double>(b * du[j]));
    }
    for (std::int64_t d = 0; d < D_; ++d) {
      ddecay_[d] = R{0};
      for (std::int64_t j = 0; j < Dv_; ++j) {
        R& ds = ds_[d * Dv_ + j];
        const R decayed = decay(i, d) * before[d * Dv_ + j];
        write[d] += ds * (b * left[j]);
        if (delta_) read[d] -= decayed * (b * du[j]);
        ds -= delta_ ? k[d] * (b * du[j]) : R{0};
        ddecay_[d] += (fault_ == LinearFault::decay_of_new_state ? states_[t + 1][d * Dv_ + j] : decayed) * ds;
        ds *= decay(i, d);
      }
      write[d] = (fault_ == LinearFault::no_write_gradient ? R{0} : write[d]) +
                 (fault_ == LinearFault::no_read_gradient ? R{0} : read[d]);
    }
    add(dk_, (b_ * Hk_ + key_of(h_)) * T + i, write);
    if (!in_.beta.present()) return;
    const std::int64_t heads = in_.beta.shape[1];
    add(dbeta_, (b_ * heads + (heads == 1 ? 0 : h_)) * T + i, {dbeta});
  }

  void write_decay(const TensorView& out, const Values& sums, std::int64_t i) const {
    if (!out.present()) return;
    R total{0};
    for (std::int64_t d = 0; d < D_; ++d) {
      total += sums[d];
      if (out.shape[3] > 1) store(out, b_, h_, i, d, static_cast<double>(sums[d]));
    }
    if (out.shape[3] == 1) store(out, b_, h_, i, 0, static_cast<double>(total));
  }

  /// dq or dk, through the norm.
  void write_rows(const TensorView& out, const ConstTensorView& input, Values gradient) const {
    if (!out.present()) return;
    const Shape& n = input.shape;
    for (std::int64_t row = 0; options_.l2_norm && row < n[0] * n[1] * n[2]; ++row) {
      const std::int64_t b = row / n[2] / n[1], h = row / n[2] % n[1], i = row % n[2];
      const R factor = factor_of(input, b, h, i);
      const Values unit = row_of(input, b, h, i);
      R* d = gradient.data() + row * D_;
      R along{0};
      for (std::int64_t x = 0; x < D_; ++x) along += unit[x] * d[x];
      if (fault_ == LinearFault::no_projection) along = R{0};
      for (std::int64_t x = 0; x < D_; ++x) d[x] = factor * (d[x] - unit[x] * along);
    }
    write(out, gradient);
  }

  static void write(const TensorView& out, const Values& values) {
    if (!out.present()) return;
    const Shape& n = out.shape;
    for (std::int64_t at = 0; at < out.numel(); ++at) {
      store(out, at / n[3] / n[2] / n[1], at / n[3] / n[2] % n[1], at / n[3] % n[2], at % n[3],
            static_cast<double>(values[at]));
    }
  }

  const LinearAttentionInputs& in_;
  const LinearAttentionOptions& options_;
  LinearFault fault_;
  std::int64_t Hq_, Hk_, Hv_, Ho_, D_, Dv_;
  R scale_;
  bool delta_;
  std::int64_t h_ = 0, b_ = 0, first_ = 0, T_ = 0;
  std::vector<Values> states_;
  Values dq_, dk_, dbeta_;  // of all heads
  Values ds_, ddecay_;      // of the head at hand
};

inline LinearKernels reference_kernels(LinearFault fault = LinearFault::none) {
  LinearKernels kernels;
  kernels.forward = [fault](const LinearAttentionOutputs& out, const LinearAttentionInputs& in,
                            const LinearAttentionOptions& options) {
    if (in.q.dtype == DType::f64) return LinearReference<double>(in, options, fault).forward(out);
    LinearReference<float>(in, options, fault).forward(out);
  };
  kernels.backward = [fault](const LinearAttentionGradients& out, const LinearAttentionInputs& in,
                             const LinearAttentionIncoming& incoming, const LinearAttentionOptions& options) {
    if (in.q.dtype == DType::f64) return LinearReference<double>(in, options, fault).backward(out, incoming);
    LinearReference<float>(in, options, fault).backward(out, incoming);
  };
  return kernels;
}

}  // namespace headgate::verify
