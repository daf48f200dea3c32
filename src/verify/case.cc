// SPDX-License-Identifier: Apache-2.0
#include "verify/case.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "core/element.hpp"
#include "core/random.hpp"

namespace headgate::verify {
namespace {

/// Dimensions of an input that repeat by stride 0 under Layout::broadcast.
constexpr std::uint32_t kRepeatB = 1, kRepeatH = 2, kRepeatT = 4, kRepeatAll = 15;

/// Random numbers of one tensor of a problem.
class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t stream) : bits_(seed * kSplitMix64Step + stream * 0xD1B54A32D192ED03U) {}
  double uniform() { return bits_.uniform(); }
  /// About normal, variance 1, never beyond ±3.5: four uniforms summed.
  double normal() { return (uniform() + uniform() + uniform() + uniform() - 2.0) * 1.7320508075688772; }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(bits_.below(static_cast<std::uint64_t>(n))); }

 private:
  SplitMix64 bits_;
};

enum Stream : std::uint64_t {
  kQ = 1,
  kK,
  kV,
  kGate,
  kBias,
  kMask,
  kLengths,
  kAlibi,
  kSinks,
  kDy,
  kDlse,
  kChoice,
  kOffsets,
  kSelection
};

template <typename Value>
void fill(const TensorView& view, const Value& value) {
  for (std::int64_t a = 0; a < view.shape[0]; ++a) {
    for (std::int64_t b = 0; b < view.shape[1]; ++b) {
      for (std::int64_t c = 0; c < view.shape[2]; ++c) {
        for (std::int64_t d = 0; d < view.shape[3]; ++d) value(a, b, c, d);
      }
    }
  }
}

void fill_normal(const TensorView& view, std::uint64_t seed, std::uint64_t stream, double factor) {
  Random random(seed, stream);
  fill(view, [&](std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
    store(view, a, b, c, d, factor * random.normal());
  });
}

void store_integer(const TensorView& view, std::int64_t n, std::int64_t value) {
  const std::int64_t at = offset_of(view, 0, 0, 0, n);
  if (view.dtype == DType::i32) {
    static_cast<std::int32_t*>(view.data)[at] = static_cast<std::int32_t>(value);
  } else {
    static_cast<std::int64_t*>(view.data)[at] = value;
  }
}

/// A factor that takes numbers of size 1 below the smallest normal number of `dtype`.
double denormal_factor(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-1030;
    case DType::f16: return 0x1p-18;
    default: return 0x1p-130;
  }
}

/// How large each tensor's entries are.
struct Factors {
  double q = 1, k = 1, v = 1, gate = 2, bias = 1, sinks = 2, dy = 1;
};

Factors factors_of(const CaseSpec& spec) {
  Factors f;
  switch (spec.values) {
    case Values::normal: break;
    case Values::sharp: f.q = 10; break;
    case Values::extreme:
      f.q = 3000;
      f.gate = 3000;
      f.bias = 3000;
      f.sinks = 3000;
      break;
    case Values::denormal: {
      Random random(spec.seed, kChoice);
      const double small = denormal_factor(spec.dtype);
      for (auto* factor : {&f.v, &f.dy, &f.q, &f.gate}) {
        if (random.below(2) == 0) *factor = small;
      }
      break;
    }
  }
  return f;
}

}  // namespace

Case::Case(const CaseSpec& spec, Placement placement, Passes passes) : spec_(spec), placement_(placement) {
  options_.scale = spec.scale;
  options_.softcap = spec.softcap;
  options_.causality = spec.causality;
  options_.window_left = spec.window_left;
  options_.window_right = spec.window_right;
  options_.gate_fn = spec.gate_fn;
  options_.gate_op = spec.gate_op;
  options_.context.threads = spec.threads;
  const bool backward = passes == Passes::forward_and_backward || passes == Passes::all;
  place_inputs();
  if (backward) place_incoming();
  fill_inputs();
  place_outputs();
  if (backward) place_gradients();
  if (passes == Passes::forward_and_statistics || passes == Passes::all) place_statistics();
  inputs_ = {q_, k_, v_, gate_, bias_, mask_, key_lengths_, alibi_slopes_, sinks_, query_offsets_};
  incoming_ = {dy_, dlse_};
}

Slab& Case::slab(std::vector<NamedSlab>& group, const std::string& name) {
  group.emplace_back(name, std::make_unique<Slab>(placement_));
  return *group.back().second;
}

Shape Case::strides_of(const Shape& shape, std::uint32_t repeats) const {
  const auto [n0, n1, n2, n3] = shape;
  switch (spec_.layout) {
    case Layout::bhtd: return contiguous_strides(shape);
    case Layout::bthd:
    case Layout::fused: return {n2 * n1 * n3, n3, n1 * n3, 1};
    case Layout::reversed: return {-n1 * n2 * n3, -n2 * n3, -n3, -1};
    case Layout::gapped: return {n1 * (n2 * (2 * n3 + 3) + 1), n2 * (2 * n3 + 3) + 1, 2 * n3 + 3, 2};
    case Layout::broadcast: {
      Shape strides = contiguous_strides(shape);
      for (std::size_t d = 0; d < 4; ++d) {
        if ((repeats >> d & 1U) != 0) strides[d] = 0;
      }
      return strides;
    }
  }
  return contiguous_strides(shape);
}

TensorView Case::place(std::vector<NamedSlab>& group, const std::string& name, DType dtype, const Shape& shape,
                       std::uint32_t repeats) {
  return slab(group, name).place(dtype, shape, strides_of(shape, repeats));
}

/// q|gate|k|v in the rows of one tensor; q|gate and k|v when T and S differ. `gate` may be null.
void Case::place_projection(std::vector<NamedSlab>& group, TensorView* q, TensorView* gate, TensorView* k,
                            TensorView* v) {
  const CaseSpec& s = spec_;
  const std::string prefix = &group == &gradient_slabs_ ? "d" : "";
  std::vector<TensorView*> first{q};
  std::vector<Shape> first_shapes{{s.B, s.Hq(), s.T, s.D}};
  if (gate != nullptr) {
    first.push_back(gate);
    first_shapes.push_back({s.B, s.Hq(), s.T, s.gate_input == GateInput::headwise ? 1 : s.Dv});
  }
  const std::vector<Shape> key_shapes{{s.B, s.Hkv, s.S, s.D}, {s.B, s.Hkv, s.S, s.Dv}};
  const auto place_all = [&](const std::string& name, const std::vector<TensorView*>& views,
                             const std::vector<Shape>& shapes) {
    const std::vector<TensorView> placed = slab(group, prefix + name).place_fused(s.dtype, shapes);
    for (std::size_t n = 0; n < views.size(); ++n) *views[n] = placed[n];
  };
  if (s.T == s.S) {
    first.insert(first.end(), {k, v});
    first_shapes.insert(first_shapes.end(), key_shapes.begin(), key_shapes.end());
    place_all("qgkv", first, first_shapes);
  } else {
    place_all("qg", first, first_shapes);
    place_all("kv", {k, v}, key_shapes);
  }
}

void Case::place_inputs() {
  const CaseSpec& s = spec_;
  const bool gate_apart = s.gate_f32 && s.dtype != DType::f32;
  const bool gated = s.gate_input != GateInput::none;
  if (s.layout == Layout::fused) {
    place_projection(input_slabs_, &q_, gated && !gate_apart ? &gate_ : nullptr, &k_, &v_);
  } else {
    q_ = place(input_slabs_, "q", s.dtype, {s.B, s.Hq(), s.T, s.D}, kRepeatB);
    k_ = place(input_slabs_, "k", s.dtype, {s.B, s.Hkv, s.S, s.D}, kRepeatH);
    v_ = place(input_slabs_, "v", s.dtype, {s.B, s.Hkv, s.S, s.Dv}, kRepeatB);
  }
  if (gated && !gate_.present()) {
    const std::int64_t width = s.gate_input == GateInput::headwise ? 1 : s.Dv;
    gate_ =
        place(input_slabs_, "gate", gate_apart ? DType::f32 : s.dtype, {s.B, s.Hq(), s.T, width}, kRepeatB | kRepeatT);
  }
  const auto map_shape = [&s](const MapSpec& map) {
    return Shape{map.full_b ? s.B : 1, map.full_h ? s.Hq() : 1, map.full_t ? s.T : 1, s.S};
  };
  if (s.bias.present) {
    bias_ = place(input_slabs_, "bias", s.bias_f32 ? DType::f32 : s.dtype, map_shape(s.bias), kRepeatH);
  }
  if (s.mask.present) mask_ = place(input_slabs_, "mask", DType::boolean, map_shape(s.mask), kRepeatB);
  const auto vector = [&](const char* name, DType dtype, std::int64_t n) {
    return dtype == DType::none ? TensorView{} : place(input_slabs_, name, dtype, {1, 1, 1, n});
  };
  key_lengths_ = vector("key_lengths", s.key_lengths, s.B);
  query_offsets_ = vector("query_offsets", s.query_offsets, s.B);
  alibi_slopes_ = vector("alibi_slopes", s.alibi_slopes, s.Hq());
  sinks_ = vector("sinks", s.sinks, s.Hq());
}

void Case::place_incoming() {
  const CaseSpec& s = spec_;
  dy_ = place(input_slabs_, "dy", s.dtype, {s.B, s.Hq(), s.T, s.Dv}, kRepeatAll);
  if (s.dlse != DType::none) dlse_ = place(input_slabs_, "dlse", s.dlse, {s.B, s.Hq(), s.T, 1}, kRepeatT);
}

void Case::place_outputs() {
  const CaseSpec& s = spec_;
  const Shape row{s.B, s.Hq(), s.T, s.Dv};
  outputs_.y = place(output_slabs_, "y", s.dtype, row);
  outputs_.lse = place(output_slabs_, "lse", s.lse == DType::none ? DType::f32 : s.lse, {s.B, s.Hq(), s.T, 1});
  if (s.saves_attn()) outputs_.attn = place(output_slabs_, "attn", s.dtype, row);
  if (s.weights) outputs_.weights = place(output_slabs_, "weights", s.dtype, {s.B, s.Hq(), s.T, s.S});
}

void Case::place_gradients() {
  const CaseSpec& s = spec_;
  AttentionGradients& g = gradients_;
  if (s.layout == Layout::fused) {
    const bool gate_inside = gate_.present() && gate_.dtype == s.dtype;
    place_projection(gradient_slabs_, &g.dq, gate_inside ? &g.dgate : nullptr, &g.dk, &g.dv);
  } else {
    g.dq = place(gradient_slabs_, "dq", s.dtype, q_.shape);
    g.dk = place(gradient_slabs_, "dk", s.dtype, k_.shape);
    g.dv = place(gradient_slabs_, "dv", s.dtype, v_.shape);
  }
  const auto like = [this](const char* name, const TensorView& input) {
    return input.present() ? place(gradient_slabs_, name, input.dtype, input.shape) : TensorView{};
  };
  if (!g.dgate.present()) g.dgate = like("dgate", gate_);
  g.dbias = like("dbias", bias_);
  g.dsinks = like("dsinks", sinks_);
  if (s.gate_fn == GateFn::none) g.dgate = {};  // refused: nothing reaches y through it
  unsigned bit = 1;
  for (auto* gradient : {&g.dq, &g.dk, &g.dv, &g.dgate, &g.dbias, &g.dsinks}) {
    if ((s.absent_gradients & bit) != 0) *gradient = {};
    bit <<= 1;
  }
}

void Case::place_statistics() {
  const CaseSpec& s = spec_;
  const StatisticsSpec& wanted = s.statistics;
  Random random(s.seed, kSelection);
  const auto indices = [&](const char* name, std::int64_t n, std::int64_t size) {
    const TensorView view = place(input_slabs_, name, wanted.index_dtype, {1, 1, 1, size > 0 ? n : 0});
    for (std::int64_t x = 0; x < view.shape[3]; ++x) store_integer(view, x, random.below(size));
    return view;
  };
  selection_ = {indices("keys", wanted.keys, s.S), indices("queries", wanted.queries, s.T), wanted.window};
  const bool gated = gate_.present() && s.gate_fn != GateFn::none && s.gate_op == GateOp::mul;
  const StatisticsSizes sizes{
      s.B, s.Hq(), s.T, s.S, selection_.keys.shape[3], selection_.queries.shape[3], wanted.top_keys};
  for (std::size_t n = 0; n < kStatisticsOutputs.size(); ++n) {
    const StatisticsOutput& output = kStatisticsOutputs[n];
    const bool of_gate =
        output.member == &AttentionStatistics::first_gated || output.member == &AttentionStatistics::mean_first_gated;
    if ((wanted.absent >> n & 1U) != 0 || (of_gate && !gated)) continue;
    const DType dtype = output.is_index() ? wanted.index_dtype : wanted.dtype;
    statistics_.*output.member = place(statistics_slabs_, output.name, dtype, sizes.shape(output));
  }
}

void Case::fill_inputs() {
  const Factors f = factors_of(spec_);
  const std::uint64_t seed = spec_.seed;
  fill_normal(q_, seed, kQ, f.q);
  if (dy_.present()) fill_normal(dy_, seed, kDy, f.dy);
  if (gate_.present()) fill_normal(gate_, seed, kGate, f.gate);
  if (dlse_.present()) fill_normal(dlse_, seed, kDlse, 1.0);
  fill_vectors();
  fill_keys();
  fill_maps();
}

void Case::fill_vectors() {
  Random lengths(spec_.seed, kLengths);
  for (std::int64_t b = 0; key_lengths_.present() && b < spec_.B; ++b) {
    const std::int64_t kind = lengths.below(6);
    const std::int64_t some = lengths.below(spec_.S + 1);
    store_integer(key_lengths_, b, kind == 0 ? 0 : kind == 1 ? spec_.S : some);
  }
  Random offsets(spec_.seed, kOffsets);
  for (std::int64_t b = 0; query_offsets_.present() && b < spec_.B; ++b) {
    store_integer(query_offsets_, b, offsets.below(spec_.S + 2 * spec_.T) - spec_.T);
  }
  Random slopes(spec_.seed, kAlibi);
  if (alibi_slopes_.present()) {
    fill(alibi_slopes_, [&](std::int64_t, std::int64_t, std::int64_t, std::int64_t h) {
      store(alibi_slopes_, 0, 0, 0, h, slopes.uniform());
    });
  }
  if (sinks_.present()) fill_normal(sinks_, spec_.seed, kSinks, factors_of(spec_).sinks);
}

/// Keys at and beyond the length keep the slab's NaN.
void Case::fill_keys() {
  const Factors f = factors_of(spec_);
  for (const auto& [view, stream, factor] : {std::tuple{k_, kK, f.k}, std::tuple{v_, kV, f.v}}) {
    Random random(spec_.seed, stream);
    fill(view, [&, target = view, by = factor](std::int64_t b, std::int64_t h, std::int64_t j, std::int64_t d) {
      const double x = random.normal();
      const double length = key_lengths_.present() ? load(key_lengths_, 0, 0, 0, b) : static_cast<double>(spec_.S);
      if (static_cast<double>(j) < length) store(target, b, h, j, d, by * x);
    });
  }
}

void Case::fill_maps() {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double longest = key_lengths_.present() ? 0.0 : static_cast<double>(spec_.S);
  for (std::int64_t b = 0; key_lengths_.present() && b < spec_.B; ++b) {
    longest = std::max(longest, load(key_lengths_, 0, 0, 0, b));
  }
  if (bias_.present()) {
    const bool own_length = key_lengths_.present() && bias_.shape[0] == spec_.B;
    const double factor = factors_of(spec_).bias;
    Random random(spec_.seed, kBias);
    bool row_hidden = false;
    fill(bias_, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
      if (j == 0) row_hidden = spec_.bias_hides && random.below(8) == 0;
      const bool hidden = row_hidden || (spec_.bias_hides && random.below(4) == 0);
      const double x = hidden ? -kInfinity : factor * random.normal();
      const double length = own_length ? load(key_lengths_, 0, 0, 0, b) : longest;
      if (static_cast<double>(j) < length) store(bias_, b, h, i, j, x);
    });
    if (spec_.bias_breaks && bias_.numel() > 0) {
      const Shape& n = bias_.shape;
      store(bias_, 0, 0, 0, random.below(n[3]), kInfinity);
      store(bias_, n[0] - 1, n[1] - 1, n[2] - 1, random.below(n[3]), std::numeric_limits<double>::quiet_NaN());
    }
  }
  if (mask_.present()) {
    Random random(spec_.seed, kMask);
    bool row_hidden = false;
    fill(mask_, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
      if (j == 0) row_hidden = random.below(8) == 0;
      const bool hidden = row_hidden || random.below(3) == 0;
      static_cast<std::uint8_t*>(mask_.data)[offset_of(mask_, b, h, i, j)] = hidden ? 0 : 1;
    });
  }
}

AttentionOutputs Case::outputs() const {
  AttentionOutputs out = outputs_;
  if (spec_.lse == DType::none) out.lse = {};
  if (!spec_.attn) out.attn = {};
  return out;
}

AttentionOutputs Case::saving_outputs() const {
  AttentionOutputs out = outputs_;
  out.weights = {};
  return out;
}

AttentionSaved Case::saved() const {
  const AttentionOutputs out = saving_outputs();
  return {out.y, out.lse, out.attn};
}

void Case::poison_outputs() {
  for (auto& [name, slab] : output_slabs_) slab->poison();
}

void Case::poison_gradients() {
  for (auto& [name, slab] : gradient_slabs_) slab->poison();
}

void Case::poison_statistics() {
  for (auto& [name, slab] : statistics_slabs_) slab->poison();
}

std::optional<std::string> Case::spilled() const {
  for (const auto* group : {&output_slabs_, &gradient_slabs_, &statistics_slabs_}) {
    for (const auto& [name, slab] : *group) {
      if (slab->spilled()) return name;
    }
  }
  return std::nullopt;
}

namespace {

template <typename Slabs>
std::vector<std::uint8_t> all_bytes(const Slabs& slabs) {
  std::vector<std::uint8_t> bytes;
  for (const auto& [name, slab] : slabs) bytes.insert(bytes.end(), slab->bytes().begin(), slab->bytes().end());
  return bytes;
}

}  // namespace

std::vector<std::uint8_t> Case::output_bytes() const { return all_bytes(output_slabs_); }
std::vector<std::uint8_t> Case::gradient_bytes() const { return all_bytes(gradient_slabs_); }
std::vector<std::uint8_t> Case::statistics_bytes() const { return all_bytes(statistics_slabs_); }

const reference::Forward& Case::expected_forward() {
  if (!forward_) forward_ = reference::forward(inputs_, options_);
  return *forward_;
}

const reference::Backward& Case::expected_backward() {
  if (!backward_) backward_ = reference::backward(inputs_, incoming_, options_);
  return *backward_;
}

const reference::Statistics& Case::expected_statistics() {
  if (!expected_statistics_) {
    expected_statistics_ =
        reference::statistics(expected_forward(), inputs_, options_, selection_, spec_.statistics.top_keys);
  }
  return *expected_statistics_;
}

}  // namespace headgate::verify
