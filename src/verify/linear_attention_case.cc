// SPDX-License-Identifier: Apache-2.0
#include "verify/linear_attention_case.hpp"

#include <cmath>
#include <limits>

#include "library/core/element.hpp"
#include "verify/fill.hpp"

namespace headgate::verify {
namespace {

enum LinearStream : std::uint64_t {
  kLinearQ = 101,
  kLinearK,
  kLinearV,
  kLinearDecay,
  kLinearBeta,
  kLinearState,
  kLinearDy,
  kLinearStateGradient,
  kLinearSequences,
  kLinearSnapshots
};

/// Draws the logarithm g of a decay.
double drawn_decay(DecayStrength strength, Random& random) {
  const double x = random.uniform();
  switch (strength) {
    case DecayStrength::normal: return -std::exp(6.0 * x - 5.0);
    case DecayStrength::zero: return 0.0;
    case DecayStrength::strong: return random.below(2) == 0 ? -1000.0 : -10.0 - 990.0 * x;
    case DecayStrength::mixed: break;
  }
  switch (random.below(8)) {
    case 0:
    case 1: return 0.0;
    case 2: return -0.01 * x;
    case 3: return -3.0 - 20.0 * x;
    case 4: return -1000.0;
    case 5: return x < 0.25 ? -std::numeric_limits<double>::infinity() : -100.0 * x;
    default: return -std::exp(6.0 * x - 5.0);
  }
}

}  // namespace

LinearCase::LinearCase(const LinearCaseSpec& spec, Placement placement, Passes passes)
    : OperationCase(spec, placement) {
  place_inputs();
  fill_rows(q_, kLinearQ);
  fill_rows(k_, kLinearK);
  fill_normal(v_, spec.seed, kLinearV, 1.0);
  fill_decay();
  fill_beta();
  fill_normal(state_, spec.seed, kLinearState, 1.0);
  if (cu_seqlens_.present()) {
    fill_bounds(cu_seqlens_, spec.T, spec.packed_tokens, Random(spec.seed, kLinearSequences));
  }
  if (snapshot_lengths_.present()) {
    fill_snapshot_lengths(snapshot_lengths_, cu_seqlens_, spec.T, Random(spec.seed, kLinearSnapshots));
  }
  if (has_backward(passes)) place_incoming();
  place_outputs();
  inputs_ = inputs_with(spec.in_place ? updated_state_ : state_);
  if (has_backward(passes)) place_gradients();
  poison_outputs();
}

LinearAttentionInputs LinearCase::inputs_with(const TensorView& state) const {
  return {q_, k_, v_, decay_, beta_, state, cu_seqlens_};
}

LinearAttentionInputs LinearCase::forward_inputs() const {
  LinearAttentionInputs in = inputs_;
  in.snapshot_lengths = snapshot_lengths_;
  return in;
}

/// Allocates q, k and v side by side in the rows of one tensor.
void LinearCase::place_projection(Slabs& group, const std::string& name, TensorView& q, TensorView& k, TensorView& v) {
  const LinearCaseSpec& s = spec_;
  const std::vector<TensorView> placed =
      group.add(name, placement_)
          .place_fused(s.dtype, {{s.B, s.Hq, s.T, s.D}, {s.B, s.Hk, s.T, s.D}, {s.B, s.Hv, s.T, s.Dv}});
  q = placed[0];
  k = placed[1];
  v = placed[2];
}

/// Allocates the inputs. Never broadcasts k over tokens. Terms of equal keys would have equal rounding errors, which
/// add up instead of partly cancelling.
void LinearCase::place_inputs() {
  const LinearCaseSpec& s = spec_;
  if (s.layout == Layout::fused) {
    place_projection(input_slabs_, "qkv", q_, k_, v_);
  } else {
    q_ = place(input_slabs_, "q", s.dtype, {s.B, s.Hq, s.T, s.D}, kRepeatB);
    k_ = place(input_slabs_, "k", s.dtype, {s.B, s.Hk, s.T, s.D}, kRepeatH);
    v_ = place(input_slabs_, "v", s.dtype, {s.B, s.Hv, s.T, s.Dv}, kRepeatB);
  }
  if (s.decay != DecayInput::none) {
    const std::int64_t width = s.decay == DecayInput::headwise ? 1 : s.D;
    decay_ =
        place(input_slabs_, "decay", s.decay_f32 ? DType::f32 : s.dtype, {s.B, s.Hv, s.T, width}, kRepeatB | kRepeatT);
  }
  if (s.beta != BetaInput::none) {
    const std::int64_t heads = s.beta == BetaInput::shared ? 1 : s.Hv;
    beta_ = place(input_slabs_, "beta", s.beta_f32 ? DType::f32 : s.dtype, {s.B, heads, s.T, 1}, kRepeatT);
  }
  if (s.state != DType::none) {
    state_ = place(input_slabs_, "state", s.state, {s.sequences(), s.Hv, s.D, s.Dv}, kRepeatB);
  }
  if (s.cu_seqlens != DType::none) {
    cu_seqlens_ = place(input_slabs_, "cu_seqlens", s.cu_seqlens, {1, 1, 1, s.packed + 1});
  }
  if (s.snapshots.present()) {
    snapshot_lengths_ =
        place(input_slabs_, "snapshot_lengths", s.snapshots.lengths, s.snapshots.shape_of_lengths(s.sequences()));
  }
}

void LinearCase::place_incoming() {
  const LinearCaseSpec& s = spec_;
  dy_ = place(input_slabs_, "dy", s.dtype, {s.B, s.Ho(), s.T, s.Dv}, kRepeatAll);
  fill_normal(dy_, s.seed, kLinearDy, 1.0);
  if (s.dstate != DType::none) {
    dstate_ = place(input_slabs_, "incoming dstate", s.dstate, {s.sequences(), s.Hv, s.D, s.Dv}, kRepeatB | kRepeatH);
    fill_normal(dstate_, s.seed, kLinearStateGradient, 1.0);
  }
  incoming_ = {dy_, dstate_};
}

void LinearCase::place_outputs() {
  const LinearCaseSpec& s = spec_;
  outputs_.y = place(output_slabs_, "y", s.dtype, {s.B, s.Ho(), s.T, s.Dv});
  const DType dtype = s.in_place ? s.state : s.new_state;
  if (dtype != DType::none) {
    outputs_.state = place(output_slabs_, "new state", dtype, {s.sequences(), s.Hv, s.D, s.Dv});
  }
  if (s.in_place) updated_state_ = outputs_.state;
  if (s.snapshots.present()) {
    outputs_.snapshots =
        place(output_slabs_, "snapshots", s.snapshots.dtype, {s.sequences() * s.snapshots.count, s.Hv, s.D, s.Dv});
  }
}

void LinearCase::place_gradients() {
  LinearAttentionGradients& g = gradients_;
  if (spec_.layout == Layout::fused) {
    place_projection(gradient_slabs_, "dqkv", g.dq, g.dk, g.dv);
  } else {
    g.dq = place_gradient("dq", q_);
    g.dk = place_gradient("dk", k_);
    g.dv = place_gradient("dv", v_);
  }
  g.ddecay = place_gradient("ddecay", decay_);
  g.dbeta = place_gradient("dbeta", beta_);
  g.dstate = place_gradient("dstate", state_);
  omit_absent({&g.dq, &g.dk, &g.dv, &g.ddecay, &g.dbeta, &g.dstate});
}

/// Fills q or k. Without l2_norm, keys get a norm of 0.6 to 1. With l2_norm, some rows are long, short or zero.
void LinearCase::fill_rows(const TensorView& view, std::uint64_t stream) {
  Random random(spec_.seed, stream);
  const Shape& n = view.shape;
  std::vector<double> row(n[3]), common(n[3]);
  for_each_index({n[0], n[1], n[2], 1}, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t) {
    if (i == 0) {
      for (double& x : common) x = spec_.correlated_keys && stream == kLinearK ? 1.5 * random.normal() : 0.0;
    }
    double squares = 0.0;
    for (std::int64_t d = 0; d < n[3]; ++d) {
      row[d] = common[d] + random.normal();
      squares += row[d] * row[d];
    }
    double factor = 1.0;
    const double length = 0.6 + 0.4 * random.uniform();
    if (spec_.l2_norm) {
      const std::int64_t kind = random.below(16);
      factor = kind == 0 ? 0.0 : kind < 4 ? 0.05 : kind < 8 ? 4.0 : 1.0;
    } else if (stream == kLinearK && squares > 0.0) {
      factor = length / std::sqrt(squares);
    }
    constexpr std::int64_t kZeroKeys = 2;
    if (spec_.zero_keys_at_end && stream == kLinearK && i >= n[2] - kZeroKeys) factor = 0.0;
    for (std::int64_t d = 0; d < n[3]; ++d) store(view, b, h, i, d, factor * row[d]);
  });
}

void LinearCase::fill_decay() {
  Random random(spec_.seed, kLinearDecay);
  for_each_index(decay_.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) {
    store(decay_, b, h, i, d, drawn_decay(spec_.strength, random));
  });
}

void LinearCase::fill_beta() {
  Random random(spec_.seed, kLinearBeta);
  for_each_index(beta_.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) {
    store(beta_, b, h, i, d, (spec_.beta_to_two ? 2.0 : 1.0) * random.uniform());
  });
}

void LinearCase::poison_outputs() {
  OperationCase::poison_outputs();
  if (!spec_.in_place) return;
  for_each_index(state_.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) {
    store(updated_state_, b, h, i, d, load(state_, b, h, i, d));
  });
}

const reference::LinearForward& LinearCase::expected_forward() {
  if (!forward_) {
    LinearAttentionInputs in = forward_inputs();
    in.state = state_;
    forward_ = reference::linear_forward(in, options_);
  }
  return *forward_;
}

const reference::LinearBackward& LinearCase::expected_backward() {
  if (!backward_) backward_ = reference::linear_backward(inputs_with(state_), incoming_, options_);
  return *backward_;
}

}  // namespace headgate::verify
