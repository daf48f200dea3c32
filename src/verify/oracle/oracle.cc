// SPDX-License-Identifier: Apache-2.0
#include "verify/oracle/oracle.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "library/core/element.hpp"
#include "library/core/sum_blocks.hpp"
#include "verify/oracle/dropout.hpp"
#include "verify/oracle/gates.hpp"
#include "verify/oracle/packed.hpp"
#include "verify/oracle/sinks.hpp"
#include "verify/oracle/sums.hpp"

namespace headgate::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Returns the smallest normal number of the compute type. Kernels may flush smaller numbers to 0.
double compute_tiny(DType dtype) { return dtype == DType::f64 ? 0x1p-1022 : 0x1p-126; }

/// Returns the unit roundoff of the compute type.
double compute_roundoff(DType dtype) { return dtype == DType::f64 ? 0x1p-53 : 0x1p-24; }

/// Largest error of a number that native16 flushes to 0, in unit roundoffs of bf16. It is 2⁻¹²⁶ / 2⁻⁸: the smallest
/// normal number divided by the unit roundoff.
constexpr double kFlushed = 0x1p-118;

/// Returns the smallest normal number of the storage type. Below this number, the rounding error of a saved y is
/// absolute, not relative.
double storage_tiny(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-1022;
    case DType::f16: return 0x1p-14;
    default: return 0x1p-126;
  }
}

/// Sizes and options that all rows of one problem share.
struct Sizes {
  std::int64_t B, Hq, Hkv, T, S, D, Dv, group;
  double scale;
  double roundoff, tiny, floor, saved_tiny;
  bool gated, headwise;
  bool native16;
  std::int64_t forward_block;            // largest number of keys over which a forward pass sums in one block
  std::int64_t first_sequence;           // index of batch 0's sequence in the packed batch
  ConstTensorView bias, key_bias, mask;  // views broadcast to (B,Hq,T,S); absent if the input is absent

  Sizes(const AttentionInputs& in, const AttentionOptions& options, std::int64_t first = 0)
      : B(in.q.shape[0]),
        Hq(in.q.shape[1]),
        Hkv(in.k.shape[1]),
        T(in.q.shape[2]),
        S(key_columns(in)),
        D(in.q.shape[3]),
        Dv(in.v.shape[3]),
        group(Hkv > 0 ? Hq / Hkv : 1),
        scale(options.scale.value_or(1.0 / std::sqrt(static_cast<double>(D)))),
        roundoff(compute_roundoff(in.q.dtype)),
        tiny(compute_tiny(in.q.dtype)),
        floor(weight_floor(in.q.dtype)),
        saved_tiny(storage_tiny(in.q.dtype)),
        gated(in.gate.present() && options.gate_fn != GateFn::none),
        headwise(in.gate.present() && in.gate.shape[3] == 1),
        native16(options.precision == Precision::native16),
        forward_block(S <= kUncutKeys ? kUncutKeys : kForwardKeys),
        first_sequence(first),
        bias(in.bias.present() ? broadcast_to(in.bias, {B, Hq, T, S}) : in.bias),
        key_bias(in.key_bias.present() ? broadcast_to(in.key_bias, {B, Hq, T, S}) : in.key_bias),
        mask(in.mask.present() ? broadcast_to(in.mask, {B, Hq, T, S}) : in.mask) {}
};

/// Keys and values of one head and sequence, in f64.
struct KeyValue {
  std::int64_t keys = 0;  // number of keys within key_lengths
  std::vector<double> k;  // (keys,D)
  std::vector<double> v;  // (keys,Dv)
  /// (keys,Dv) |v| as stored in int8; 0 without scales. Bounds an error of kernels that scale the weight instead of v:
  /// a subnormal scaled weight errs by up to the smallest subnormal number, and this error is multiplied by |v|.
  std::vector<double> v_unscaled;
};

/// Location of key j of a sequence in k and v: batch (or page) and row.
struct KeyPlace {
  std::int64_t b, j;
};

KeyPlace place_of_key(const AttentionInputs& in, std::int64_t b, std::int64_t j) {
  if (!in.block_table.present()) return {b, j};
  const std::int64_t page = in.k.shape[2];
  return {page_of(in.block_table, b, j / page), j % page};
}

KeyValue load_keys(const AttentionInputs& in, const Sizes& n, std::int64_t b, std::int64_t hk) {
  KeyValue kv;
  kv.keys = in.key_lengths.present() ? static_cast<std::int64_t>(load(in.key_lengths, 0, 0, 0, b)) : n.S;
  for (std::int64_t j = 0; j < kv.keys; ++j) {
    if (j < in.k_first.shape[2]) {
      for (std::int64_t d = 0; d < n.D; ++d) kv.k.push_back(load(in.k_first, b, hk, j, d));
      for (std::int64_t d = 0; d < n.Dv; ++d) kv.v.push_back(load(in.v_first, b, hk, j, d));
      kv.v_unscaled.resize(kv.v.size());
      continue;
    }
    const KeyPlace at = place_of_key(in, b, j);
    const double k_scale = in.k_scale.present() ? load(in.k_scale, at.b, hk, at.j, 0) : 1.0;
    const double v_scale = in.v_scale.present() ? load(in.v_scale, at.b, hk, at.j, 0) : 1.0;
    for (std::int64_t d = 0; d < n.D; ++d) kv.k.push_back(k_scale * load(in.k, at.b, hk, at.j, d));
    for (std::int64_t d = 0; d < n.Dv; ++d) {
      const double v = load(in.v, at.b, hk, at.j, d);
      kv.v.push_back(v_scale * v);
      kv.v_unscaled.push_back(in.v_scale.present() ? std::abs(v) : 0.0);
    }
  }
  return kv;
}

std::vector<double> load_row(const ConstTensorView& x, std::int64_t b, std::int64_t h, std::int64_t i) {
  std::vector<double> row;
  for (std::int64_t d = 0; d < x.shape[3]; ++d) row.push_back(load(x, b, h, i, d));
  return row;
}

/// Softmax weights and outputs of one query.
struct Row {
  std::vector<double> p;          // (S)  softmax weights exp(s − lse); 0 for hidden keys
  std::vector<double> kept;       // (S)  dropout factors; 1 without dropout
  std::vector<char> visible;      // (S)
  std::vector<double> cap_slope;  // (S)  slope of the softcap at scale·q·k: 1 − tanh², or 1 without softcap
  double lse = -kInfinity;
  double max_logit = -kInfinity;  // largest score of the visible keys
  double sink_p = 0.0;            // exp(sink − lse), the softmax weight of the sink
  double logits = 1.0;            // the factor 1 + A (see Forward), plus the relative error of the softmax's sum
  std::vector<double> o;          // (Dv)
  std::vector<double> o_abs;      // (Dv)  error bound of o: Σ p |v|, plus bounds for underflow and nearly equal terms
  std::vector<double> o_rounded;  // (Dv)  Σ p |v| with native16, which rounds p and v to bf16; otherwise 0
};

/// Returns the position of query i among the keys.
std::int64_t position_of(const AttentionInputs& in, const Sizes& n, std::int64_t b, std::int64_t i) {
  return i + (in.query_offsets.present() ? load_index(in.query_offsets, b) : n.S - n.T);
}

/// Returns for each of S keys whether the list of query i has it. Without lists, the query has all keys. `hk` is a
/// key/value head.
std::vector<char> listed_keys(const AttentionInputs& in, const AttentionOptions& options, std::int64_t S,
                              std::int64_t b, std::int64_t hk, std::int64_t i) {
  if (!in.key_indices.present()) return std::vector<char>(S, 1);
  std::vector<char> listed(S, 0);
  const Shape& shape = in.key_indices.shape;
  for (std::int64_t n = 0; n < shape[3]; ++n) {
    const auto e = static_cast<std::int64_t>(load(in.key_indices, shape[0] == 1 ? 0 : b, shape[1] == 1 ? 0 : hk, i, n));
    for (std::int64_t x = 0; e >= 0 && x < options.key_block_size; ++x) {
      if (e * options.key_block_size + x < S) listed[e * options.key_block_size + x] = 1;
    }
  }
  return listed;
}

bool is_visible(const AttentionInputs& in, const AttentionOptions& options, const Sizes& n, std::int64_t b,
                std::int64_t h, std::int64_t i, std::int64_t j) {
  const std::int64_t position = position_of(in, n, b, i);
  if (options.causality == Causality::causal && j > position) return false;
  if (options.window_left != -1 && position - j > options.window_left) return false;
  if (options.window_right != -1 && j - position > options.window_right) return false;
  if (n.mask.present() && load(n.mask, b, h, i, j) == 0.0) return false;
  if (n.key_bias.present() && load(n.key_bias, b, h, i, j) == -kInfinity) return false;
  return !n.bias.present() || load(n.bias, b, h, i, j) != -kInfinity;
}

/// Sets row.p to the scores s_j = softcap(scale · q·k_j) − slope · |position − j| + bias_j + key_bias_j. Hidden keys
/// get −∞.
void score_row(Row& row, const AttentionInputs& in, const AttentionOptions& options, const Sizes& n, const KeyValue& kv,
               std::int64_t b, std::int64_t h, std::int64_t i) {
  const std::vector<double> q = load_row(in.q, b, h, i);
  const double slope =
      in.alibi_slopes.present() ? load(in.alibi_slopes, 0, 0, in.alibi_slopes.shape[2] == 1 ? 0 : b, h) : 0.0;
  const std::vector<char> listed = listed_keys(in, options, n.S, b, h / n.group, i);
  row.p.assign(n.S, -kInfinity);
  row.visible.assign(n.S, 0);
  row.cap_slope.assign(n.S, 1.0);
  for (std::int64_t j = 0; j < kv.keys; ++j) {
    if (!listed[j] || !is_visible(in, options, n, b, h, i, j)) continue;
    CompensatedSum terms;
    double dot_abs = 0.0;
    for (std::int64_t d = 0; d < n.D; ++d) {
      const double term = n.scale * q[d] * kv.k[j * n.D + d];
      terms.add(term);
      dot_abs += std::abs(term);
    }
    const double dot = terms.value();
    double s = dot;
    double bound = dot_abs;
    if (options.softcap > 0) {
      const double t = std::tanh(dot / options.softcap);
      s = options.softcap * t;
      row.cap_slope[j] = 1.0 - t * t;
      bound += dot_abs / options.softcap;  // covers the error of 1 − tanh², at most that of dot / softcap
    }
    const double distance = slope * std::abs(static_cast<double>(position_of(in, n, b, i) - j));
    const double bias = n.bias.present() ? load(n.bias, b, h, i, j) : 0.0;
    const double key_bias = n.key_bias.present() ? load(n.key_bias, b, h, i, j) : 0.0;
    row.p[j] = s - distance + bias + key_bias;
    row.visible[j] = 1;
    row.logits = std::max(row.logits, 1.0 + bound + std::abs(distance) + std::abs(bias) + std::abs(key_bias));
  }
}

/// Returns a bound on the relative error of a row's sum of exponentials, in unit roundoffs.
/// - Only nearly equal exponentials count, because their rounding errors add up (LikeTerms).
/// - If all exponentials are 1 and there is no sink, the sum is exact and the bound is 0.
/// - The bound is halved: most kernels add at least two partial sums, each at most half of the total. The kernel of
///   small heads has one sum of S terms; the tolerance rule's factor of 8 + √S / 2 allows for that.
double sum_error(const std::vector<double>& scores, double sink, double top, double sum, const Sizes& n) {
  LikeTerms like;
  bool exact = sink == -kInfinity;
  for (std::int64_t j = 0; j < n.S; ++j) {
    if (scores[j] == -kInfinity) continue;
    const double term = std::exp(scores[j] - top);
    exact = exact && term > 1.0 - n.roundoff;
    like.add(term, j / n.forward_block, n.roundoff);
  }
  return exact ? 0.0 : 0.5 * like.bound() / sum;
}

/// Computes the softmax of the scores, with the sink in its denominator, and o = Σ p v.
Row softmax_row(const AttentionInputs& in, const AttentionOptions& options, const Sizes& n, const KeyValue& kv,
                std::int64_t b, std::int64_t h, std::int64_t i) {
  Row row;
  score_row(row, in, options, n, kv, b, h, i);
  const double sink = sink_of(in, b, h, i);
  if (std::isfinite(sink)) row.logits += std::abs(sink);
  bool empty = sink == -kInfinity;
  for (std::int64_t j = 0; j < n.S; ++j) {
    row.max_logit = std::max(row.max_logit, row.p[j]);
    empty = empty && !row.visible[j];
  }
  const double top = std::max(sink, row.max_logit);
  double sum = 1.0;
  if (!empty) {
    CompensatedSum terms;
    for (const double s : row.p) terms.add(std::exp(s - top));
    terms.add(std::exp(sink - top));
    sum = terms.value();
    row.lse = top + std::log(sum);
    if (std::isnan(row.lse)) row.max_logit = row.lse;
    row.sink_p = std::exp(sink - top) / sum;
    row.logits += sum_error(row.p, sink, top, sum, n) / kLeastConstant;
  }
  // Does not compute p as exp(s − lse): the rounding error of lse would become an error of every weight.
  for (std::int64_t j = 0; j < n.S; ++j) {
    row.p[j] = row.visible[j] ? std::exp(row.p[j] - top) / sum : 0.0;
    row.kept.push_back(dropout_factor(options, n.first_sequence + b, h, i, j));
  }

  row.o.assign(n.Dv, 0.0);
  row.o_abs.assign(n.Dv, 0.0);
  row.o_rounded.assign(n.Dv, 0.0);
  std::vector<CompensatedSum> sums(n.Dv);
  std::vector<LikeTerms> like(n.Dv);
  for (std::int64_t j = 0; j < n.S; ++j) {
    if (!row.visible[j]) continue;
    const double p = row.p[j] * row.kept[j];
    const double floor = n.floor * row.kept[j];
    for (std::int64_t d = 0; d < n.Dv; ++d) {
      const double v = kv.v[j * n.Dv + d];
      sums[d].add(p * v);
      row.o_abs[d] += (p + floor) * (std::abs(v) + n.tiny) + kv.v_unscaled[j * n.Dv + d] * n.tiny;
      if (n.native16) row.o_rounded[d] += (p + kFlushed) * (std::abs(v) + kFlushed) + kFlushed;
      like[d].add(p * v, j / n.forward_block, n.roundoff);
    }
  }
  for (std::int64_t d = 0; d < n.Dv; ++d) {
    row.o[d] = sums[d].value();
    row.o_abs[d] += like[d].bound() / kLeastConstant;
  }
  return row;
}

double gate_logit(const AttentionInputs& in, const Sizes& n, std::int64_t b, std::int64_t h, std::int64_t i,
                  std::int64_t d) {
  return load(in.gate, b, h, i, n.headwise ? 0 : d);
}

/// Return magnitudes (error bounds, see Forward) of g(z) and of g′(z).
/// A magnitude is the sum of the absolute values of the terms in the function's formula.
/// If the function decays as e^−|z|, the sum is multiplied by 1 + |z|: a relative error of z changes the exponent by a
/// multiple of |z|.
/// `floor` bounds the error of σ(z) if σ(z) underflows.
double value_terms(GateFn fn, double z, double floor) {
  const double g = std::abs(gate_value(fn, z).value);
  const double tail = 1.0 + std::max(-z, 0.0);
  switch (fn) {
    case GateFn::ns_sigmoid:
    case GateFn::identity: return g;
    case GateFn::silu: return g * tail + floor * std::abs(z);
    default: return g * tail + floor;
  }
}

double slope_terms(GateFn fn, double z, double floor) {
  const double slope = gate_value(fn, z).slope;
  const double tail = 1.0 + std::abs(z);
  switch (fn) {
    case GateFn::silu: return (sigmoid(z) + std::abs(z) * sigmoid(z) * sigmoid(-z) + floor) * tail;
    case GateFn::identity: return slope;
    case GateFn::softplus: return slope * (1.0 + std::max(-z, 0.0)) + floor;
    default: return slope * tail + floor;
  }
}

void append_row(Forward& out, const Row& row, const AttentionInputs& in, const AttentionOptions& options,
                const Sizes& n, std::int64_t b, std::int64_t h, std::int64_t i) {
  for (std::int64_t d = 0; d < n.Dv; ++d) {
    const double o = row.o[d];
    const double o_abs = row.o_abs[d] * row.logits;
    out.attn.push_back(o);
    out.magnitude.attn.push_back(o_abs);
    out.inherited.attn.push_back(row.o_rounded[d]);
    if (!n.gated) {
      out.y.push_back(o);
      out.magnitude.y.push_back(o_abs);
      out.inherited.y.push_back(row.o_rounded[d]);
      continue;
    }
    const double z = gate_logit(in, n, b, h, i, d);
    const double g = gate_value(options.gate_fn, z).value;
    const bool mul = options.gate_op == GateOp::mul;
    out.y.push_back(mul ? o * g : o + g);
    const double g_abs = value_terms(options.gate_fn, z, n.floor);
    out.magnitude.y.push_back(mul ? o_abs * g_abs : o_abs + g_abs);
    out.inherited.y.push_back(row.o_rounded[d] * (mul ? g_abs : 1.0));
  }
  out.lse.push_back(row.lse);
  out.magnitude.lse.push_back(row.lse == -kInfinity ? 0.0 : row.logits);
  out.inherited.lse.push_back(0.0);
  out.max_logit.push_back(row.max_logit);
  out.magnitude.max_logit.push_back(row.max_logit == -kInfinity ? 0.0 : row.logits);
  for (std::int64_t j = 0; j < n.S; ++j) {
    out.weights.push_back(row.p[j] * row.kept[j]);
    out.magnitude.weights.push_back(row.visible[j] ? (row.p[j] + n.floor) * row.kept[j] * row.logits : 0.0);
    out.inherited.weights.push_back(0.0);
  }
}

/// Returns whether gate_threshold skips query i: |g(z)| is at most gate_threshold in every feature.
bool is_closed(const AttentionInputs& in, const AttentionOptions& options, const Sizes& n, std::int64_t b,
               std::int64_t h, std::int64_t i) {
  if (options.gate_threshold <= 0.0) return false;
  for (std::int64_t d = 0; d < in.gate.shape[3]; ++d) {
    const double g = gate_value(options.gate_fn, gate_logit(in, n, b, h, i, d)).value;
    if (!(std::abs(g) <= options.gate_threshold)) return false;
  }
  return true;
}

void append_closed_row(Forward& out, const Sizes& n) {
  for (auto* arrays : {static_cast<ForwardArrays*>(&out), &out.magnitude, &out.inherited}) {
    arrays->y.resize(arrays->y.size() + n.Dv);
    arrays->attn.resize(arrays->attn.size() + n.Dv);
    arrays->weights.resize(arrays->weights.size() + n.S);
  }
  out.max_logit.push_back(-kInfinity);
  out.magnitude.max_logit.push_back(0.0);
  out.lse.push_back(kInfinity);
  out.magnitude.lse.push_back(0.0);
  out.inherited.lse.push_back(0.0);
}

void append_query(Forward& out, const KeyValue& kv, const AttentionInputs& in, const AttentionOptions& options,
                  const Sizes& n, std::int64_t b, std::int64_t h, std::int64_t i) {
  if (is_closed(in, options, n, b, h, i)) return append_closed_row(out, n);
  append_row(out, softmax_row(in, options, n, kv, b, h, i), in, options, n, b, h, i);
}

/// One term of a gradient's sum, with the quantities that bound its error (see Backward).
struct Term {
  double value, magnitude, inherited;
};

/// Accumulates one gradient and the bounds of its errors.
class GradientSum {
 public:
  /// `roundoff`: unit roundoff of the type in which the kernels accumulate the gradient; 0 if that type is wider than
  /// the compute type.
  GradientSum(Backward& out, std::vector<double> BackwardArrays::*which, std::int64_t size, double roundoff)
      : value_(out.*which),
        magnitude_(out.magnitude.*which),
        inherited_(out.inherited.*which),
        like_terms_(out.like_terms.*which),
        roundoff_(roundoff),
        sums_(size),
        like_(size) {
    for (auto* x : {&value_, &magnitude_, &inherited_, &like_terms_}) x->assign(size, 0.0);
  }

  /// Adds a term to element `at`. Kernels sum the terms of each block separately (LikeTerms); `block` is the index of
  /// the term's block.
  void add(std::int64_t at, const Term& term, std::int64_t block) {
    sums_[at].add(term.value);
    value_[at] = sums_[at].value();
    magnitude_[at] += term.magnitude;
    inherited_[at] += term.inherited;
    if (roundoff_ == 0.0) return;
    like_[at].add(term.value, block, roundoff_);
    like_terms_[at] = like_[at].bound();
  }

 private:
  std::vector<double>& value_;
  std::vector<double>& magnitude_;
  std::vector<double>& inherited_;
  std::vector<double>& like_terms_;
  double roundoff_;
  std::vector<CompensatedSum> sums_;
  std::vector<LikeTerms> like_;
};

std::int64_t size_of(const ConstTensorView& x) { return x.present() ? x.numel() : 0; }

/// Computes the backward pass of one problem, query by query.
class BackwardPass {
 public:
  BackwardPass(Backward& out, const AttentionInputs& in, const AttentionIncoming& incoming,
               const AttentionOptions& options, std::int64_t first_sequence)
      : in_(in),
        incoming_(incoming),
        options_(options),
        n_(in, options, first_sequence),
        dq_(out, &BackwardArrays::dq, in.q.numel(), n_.roundoff),
        dk_(out, &BackwardArrays::dk, in.k.numel(), n_.roundoff),
        dv_(out, &BackwardArrays::dv, in.v.numel(), n_.roundoff),
        dgate_(out, &BackwardArrays::dgate, size_of(in.gate), in.q.dtype == DType::f64 ? n_.roundoff : 0.0),
        dbias_(out, &BackwardArrays::dbias, size_of(in.bias), n_.roundoff),
        dsinks_(out, &BackwardArrays::dsinks, size_of(in.sinks), in.q.dtype == DType::f64 ? n_.roundoff : 0.0) {}

  void run() {
    for (std::int64_t b = 0; b < n_.B; ++b) {
      for (std::int64_t h = 0; h < n_.Hq; ++h) {
        const KeyValue kv = load_keys(in_, n_, b, h / n_.group);
        for (std::int64_t i = 0; i < n_.T; ++i) add_row(kv, b, h, i);
      }
    }
  }

 private:
  /// Bounds on the relative errors of one and of two successive roundings to bf16, in unit roundoffs of bf16 (2⁻⁸).
  /// The error of two roundings is at most (1 + 2⁻⁸)² − 1, which is less than 2.02 unit roundoffs.
  static constexpr double kOneRounding = 1.02, kTwoRoundings = 2.02;

  /// For one row of the attention output o: its gradient `do`, Δ = rowsum(do ∘ o), and error bounds of both.
  struct RowGradient {
    std::vector<double> d_o;      // (Dv)  do = dy ∘ g if the gate multiplies, otherwise dy
    std::vector<double> d_o_abs;  // (Dv)
    double delta = 0.0;           // Δ
    double delta_abs = 0.0;
    double delta_inherited = 0.0;  // error bound of Δ for the rounding of the saved y: Σ |dy| |y|
  };

  /// Rows of the gradients to which one query contributes, and the query's row of q.
  struct RowPlace {
    // q: the query's row in dq. k: first row of the query's key/value head in dk and dv.
    std::int64_t q, k;
    // head: index of the query head. tile: index of the query's tile, counted over all heads.
    std::int64_t head, tile;
    std::vector<double> q_row;
  };

  void add_row(const KeyValue& kv, std::int64_t b, std::int64_t h, std::int64_t i) {
    const Row row = softmax_row(in_, options_, n_, kv, b, h, i);
    const RowGradient g = through_gate(row, b, h, i);
    if (row.lse == -kInfinity) return;  // no visible key and no sink: y depends only on an added gate
    const double dlse = incoming_.dlse.present() ? load(incoming_.dlse, b, h, i, 0) : 0.0;
    const std::int64_t head = b * n_.Hq + h;
    const RowPlace at{head * n_.T + i, (b * n_.Hkv + h / n_.group) * n_.S, head, head * n_.T + i / kQueryTile,
                      load_row(in_.q, b, h, i)};
    for (std::int64_t j = 0; j < kv.keys; ++j) {
      if (!row.visible[j]) continue;
      add_dv(row, g, at, j);
      const Term dp = weight_gradient(kv, row, g, j);
      const Term ds = score_gradient(row, g, dp, dlse, j);
      const double rounding = product_rounding(row, dp, j);
      add_dq_and_dk(kv, row, ds, rounding + rounded_once(ds.value), at, j);
      if (!in_.bias.present()) continue;
      const Term term{ds.value, ds.magnitude, ds.inherited + rounding};
      dbias_.add(bias_index(b, h, i, j), term, in_.bias.shape[2] == 1 ? head : 0);
    }
    if (in_.sinks.present()) add_dsink(row, g, dlse, index_of_sink(in_, b, h, i), at.tile);
  }

  /// Returns the error bound of a number that native16 may flush to 0; 0 without native16.
  double flushed() const { return n_.native16 ? kFlushed : 0.0; }
  /// Returns the error bound of an element of the gradient of o that native16 rounds to bf16, in unit roundoffs.
  /// Returns 0 without native16.
  double rounded_magnitude(double d_o) const { return n_.native16 ? std::abs(d_o) + kFlushed : 0.0; }
  /// Returns the magnitude (error bound, see Forward) of weight j.
  double weight_magnitude(const Row& row, std::int64_t j) const { return (row.p[j] + n_.floor) * row.logits; }

  /// Adds p · m · do to row j of dv. Here p is the weight of key j, m its dropout factor, and `do` the gradient of o.
  void add_dv(const Row& row, const RowGradient& g, const RowPlace& at, std::int64_t j) {
    const double p = row.p[j], m = row.kept[j], p_abs = weight_magnitude(row, j);
    for (std::int64_t d = 0; d < n_.Dv; ++d) {
      const double term = p * m * g.d_o[d];
      const double magnitude = p_abs * m * g.d_o_abs[d];
      const double rounded = kTwoRoundings * (p + kFlushed) * rounded_magnitude(g.d_o[d]) + kFlushed;
      dv_.add((at.k + j) * n_.Dv + d, {term, magnitude, n_.native16 ? rounded : 0.0}, at.tile);
    }
  }

  /// Returns dp = m (do · v_j), where m is the dropout factor and `do` the gradient of o.
  /// `inherited` bounds the error if `do` is rounded to bf16.
  Term weight_gradient(const KeyValue& kv, const Row& row, const RowGradient& g, std::int64_t j) const {
    const double m = row.kept[j];
    const double* const v = kv.v.data() + j * n_.Dv;
    CompensatedSum terms;
    for (std::int64_t d = 0; d < n_.Dv; ++d) terms.add(m * g.d_o[d] * v[d]);
    Term dp{terms.value(), 0.0, 0.0};
    for (std::int64_t d = 0; d < n_.Dv; ++d) {
      dp.magnitude += m * g.d_o_abs[d] * std::abs(v[d]);
      dp.inherited += rounded_magnitude(g.d_o[d]) * (std::abs(v[d]) + kFlushed);
    }
    return dp;
  }

  /// Returns ds = p (dp − Δ + dlse), the gradient of the score of key j. Here p is the weight of the key, and dp the
  /// gradient of p.
  Term score_gradient(const Row& row, const RowGradient& g, const Term& dp, double dlse, std::int64_t j) const {
    const double ds = row.p[j] * (dp.value - g.delta + dlse);
    const double magnitude = weight_magnitude(row, j) * (dp.magnitude + g.delta_abs + std::abs(dlse) + n_.tiny);
    return {ds, magnitude, row.p[j] * g.delta_inherited};
  }

  /// Bounds the error of ds when native16 rounds `do`, the gradient of o, to bf16. Returns 0 without native16.
  double product_rounding(const Row& row, const Term& dp, std::int64_t j) const {
    return n_.native16 ? kOneRounding * row.p[j] * dp.inherited + kFlushed : 0.0;
  }
  /// Bounds the error of rounding x to bf16; 0 without native16.
  double rounded_once(double x) const { return n_.native16 ? kOneRounding * std::abs(x) : 0.0; }

  /// Adds dx · k_j to dq and dx · q to row j of dk. Here dx = scale · ds · cap_slope is the gradient of q·k_j.
  void add_dq_and_dk(const KeyValue& kv, const Row& row, const Term& ds, double rounding, const RowPlace& at,
                     std::int64_t j) {
    const Term dx{n_.scale * ds.value * row.cap_slope[j], std::abs(n_.scale) * ds.magnitude,
                  std::abs(n_.scale) * (ds.inherited + rounding)};
    const auto times = [&](double x) {
      return Term{dx.value * x, dx.magnitude * (std::abs(x) + n_.tiny), dx.inherited * (std::abs(x) + flushed())};
    };
    for (std::int64_t d = 0; d < n_.D; ++d) {
      dq_.add(at.q * n_.D + d, times(kv.k[j * n_.D + d]), j / kBackwardKeys);
      dk_.add((at.k + j) * n_.D + d, times(at.q_row[d]), at.tile);
    }
  }

  /// Adds the gradient of the sink logit, −p_sink (Δ − dlse), to element n of dsinks. Here p_sink is the weight of the
  /// sink.
  void add_dsink(const Row& row, const RowGradient& g, double dlse, std::int64_t n, std::int64_t tile) {
    const double term = -row.sink_p * (g.delta - dlse);
    const double magnitude = (row.sink_p + n_.floor) * row.logits * (g.delta_abs + std::abs(dlse) + n_.tiny);
    dsinks_.add(n, {term, magnitude, row.sink_p * g.delta_inherited}, tile);
  }

  /// Backpropagates through the gate, y = o ∘ g(z) or y = o + g(z). Adds the row's dgate and returns the gradient of o.
  RowGradient through_gate(const Row& row, std::int64_t b, std::int64_t h, std::int64_t i) {
    RowGradient out;
    const bool mul = options_.gate_op == GateOp::mul;
    CompensatedSum delta;
    for (std::int64_t d = 0; d < n_.Dv; ++d) {
      const double dy = load(incoming_.dy, b, h, i, d);
      const double dy_abs = std::abs(dy) + n_.tiny;
      const double o = row.o[d];
      double d_o = dy;
      double d_o_abs = dy_abs;
      double o_abs = row.o_abs[d];
      double saved = std::abs(o);
      if (n_.gated) {
        const double z = gate_logit(in_, n_, b, h, i, d);
        const GateValue g = gate_value(options_.gate_fn, z);
        const double g_abs = value_terms(options_.gate_fn, z, n_.floor);
        if (mul) {
          d_o = dy * g.value;
          d_o_abs = dy_abs * g_abs + n_.tiny;
          saved = std::abs(o * g.value);
        } else {
          o_abs += g_abs;  // kernels may compute o as y − g
          saved += std::abs(g.value);
        }
        saved += row.o_rounded[d] * (mul ? g_abs : 1.0);
        add_dgate(row, dy, dy_abs, o, z, g, b, h, i, d);
      } else {
        saved += row.o_rounded[d];
      }
      out.d_o.push_back(d_o);
      out.d_o_abs.push_back(d_o_abs);
      delta.add(d_o * o);
      out.delta_abs += d_o_abs * o_abs;
      out.delta_inherited += std::abs(dy) * (saved + n_.saved_tiny);
    }
    out.delta = delta.value();
    return out;
  }

  /// Adds dz = dy ∘ o ∘ g′(z) (mul) or dy ∘ g′(z) (add), summed over Dv if headwise.
  void add_dgate(const Row& row, double dy, double dy_abs, double o, double z, const GateValue& g, std::int64_t b,
                 std::int64_t h, std::int64_t i, std::int64_t d) {
    const bool mul = options_.gate_op == GateOp::mul;
    const std::int64_t row_index = (b * n_.Hq + h) * n_.T + i;
    const double slope_abs = slope_terms(options_.gate_fn, z, n_.floor);
    // Kernels read o from the saved attn, or compute it as y / g from the saved y. If g may be 0, they must read attn.
    // The error bounds of these two ways differ only for tiny saved numbers, whose rounding error is absolute.
    // Uses the larger of the two bounds.
    const double ratio = g.ratio.value_or(std::abs(g.slope));
    const double saved = (std::abs(o) + row.o_rounded[d]) * (g.ratio ? std::abs(g.value) : 1.0);
    const double inherited =
        mul ? std::abs(dy) * (ratio * saved + std::max(ratio, std::abs(g.slope)) * n_.saved_tiny) : 0.0;
    dgate_.add(
        n_.headwise ? row_index : row_index * n_.Dv + d,
        {dy * (mul ? o : 1.0) * g.slope, dy_abs * slope_abs * (mul ? row.o_abs[d] * row.logits : 1.0), inherited}, 0);
  }

  /// Returns the index in dbias to which (b,h,i,j) contributes. Broadcast dimensions of the bias have size 1.
  std::int64_t bias_index(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    const Shape& s = in_.bias.shape;
    const auto at = [&s](std::size_t dim, std::int64_t index) { return s[dim] == 1 ? 0 : index; };
    return ((at(0, b) * s[1] + at(1, h)) * s[2] + at(2, i)) * s[3] + at(3, j);
  }

  const AttentionInputs& in_;
  const AttentionIncoming& incoming_;
  const AttentionOptions& options_;
  const Sizes n_;
  GradientSum dq_, dk_, dv_, dgate_, dbias_, dsinks_;
};

}  // namespace

GateValue gate_value(GateFn fn, double z) { return gate_terms(fn, z); }

double gate_magnitude(GateFn fn, double z, DType dtype) { return value_terms(fn, z, weight_floor(dtype)); }

double gate_slope_magnitude(GateFn fn, double z, DType dtype) { return slope_terms(fn, z, weight_floor(dtype)); }

Forward forward_row(const AttentionInputs& inputs, const AttentionOptions& options, std::int64_t b, std::int64_t h,
                    std::int64_t i) {
  const Sizes n(inputs, options);
  const KeyValue kv = load_keys(inputs, n, b, h / n.group);
  Forward out;
  append_query(out, kv, inputs, options, n, b, h, i);
  return out;
}

Forward forward(const AttentionInputs& inputs, const AttentionOptions& options, std::int64_t first_sequence) {
  if (inputs.cu_seqlens_q.present()) return packed_forward(inputs, options);
  const Sizes n(inputs, options, first_sequence);
  Forward out;
  for (std::int64_t b = 0; b < n.B; ++b) {
    for (std::int64_t h = 0; h < n.Hq; ++h) {
      const KeyValue kv = load_keys(inputs, n, b, h / n.group);
      for (std::int64_t i = 0; i < n.T; ++i) append_query(out, kv, inputs, options, n, b, h, i);
    }
  }
  return out;
}

Backward backward(const AttentionInputs& inputs, const AttentionIncoming& incoming, const AttentionOptions& options,
                  std::int64_t first_sequence) {
  if (inputs.cu_seqlens_q.present()) return packed_backward(inputs, incoming, options);
  Backward out;
  BackwardPass(out, inputs, incoming, options, first_sequence).run();
  return out;
}

}  // namespace headgate::reference
