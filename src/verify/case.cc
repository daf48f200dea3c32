// SPDX-License-Identifier: Apache-2.0
#include "verify/case.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include "headgate/merge.hpp"
#include "library/core/element.hpp"
#include "verify/fill.hpp"
#include "verify/gate_threshold.hpp"

namespace headgate::verify {
namespace {

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
  kSequences,
  kTable,
  kScales,
  kSelection,
  kKeyBias,
  kLists,
  kFirst
};

template <typename Value>
void fill(const TensorView& view, const Value& value) {
  for_each_index(view.shape, value);
}

/// Decides which keys a mask or bias hides, according to spec.hidden. Call hides() for the keys of a row in ascending
/// order.
class HiddenKeys {
 public:
  HiddenKeys(const CaseSpec& spec, Random& random, std::int64_t one_in)
      : spec_(spec), random_(random), one_in_(one_in) {}

  bool hides(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    if (spec_.hidden == Hidden::documents) {
      constexpr std::int64_t kDocuments = 8;
      const std::int64_t rows = std::max<std::int64_t>(spec_.T / kDocuments, 1);
      const std::int64_t keys = std::max<std::int64_t>(spec_.S / kDocuments, 1);
      const std::int64_t begin = (i / rows * keys + 13 * b + 29 * h) % spec_.S;
      return j < begin || j >= begin + keys;
    }
    if (j == 0) hides_row_ = spec_.hidden == Hidden::scattered && random_.below(8) == 0;
    return hides_row_ || random_.below(one_in_) == 0;
  }

 private:
  const CaseSpec& spec_;
  Random& random_;
  std::int64_t one_in_;
  bool hides_row_ = false;
};

/// Returns a factor that scales numbers near 1 to subnormal numbers of `dtype`.
double denormal_factor(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-1030;
    case DType::f16: return 0x1p-18;
    default: return 0x1p-130;
  }
}

double largest_number(DType dtype) {
  switch (dtype) {
    case DType::f64: return std::numeric_limits<double>::max();
    case DType::f16: return 65504.0;
    case DType::bf16: return 0x1.FEp127;
    default: return std::numeric_limits<float>::max();
  }
}

/// Factors by which the random entries of each tensor are multiplied.
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

Case::Case(const CaseSpec& spec, Placement placement, Passes passes) : OperationCase(spec, placement) {
  const bool backward = has_backward(passes) && !spec.forward_only();
  const bool statistics = passes == Passes::forward_and_statistics || passes == Passes::all;
  place_inputs();
  if (backward) place_incoming();
  fill_inputs();
  place_outputs();
  if (backward) place_gradients();
  if (statistics) place_statistics();
  inputs_ = {q_, k_, v_, gate_, bias_, mask_, key_lengths_, alibi_slopes_, sinks_, query_offsets_};
  inputs_.cu_seqlens_q = cu_seqlens_q_;
  inputs_.cu_seqlens_k = cu_seqlens_k_;
  inputs_.block_table = block_table_;
  inputs_.k_scale = k_scale_;
  inputs_.v_scale = v_scale_;
  inputs_.key_bias = key_bias_;
  inputs_.key_indices = key_indices_;
  inputs_.k_first = k_first_;
  inputs_.v_first = v_first_;
  incoming_ = {dy_, dlse_};
}

/// Allocates q, gate, k and v side by side in the rows of one tensor. If T ≠ S, allocates q and gate in one tensor, k
/// and v in another. `gate` may be null.
void Case::place_projection(Slabs& group, TensorView* q, TensorView* gate, TensorView* k, TensorView* v) {
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
    const std::vector<TensorView> placed = group.add(prefix + name, placement_).place_fused(s.dtype, shapes);
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
    place_cache();
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
  if (s.key_bias != DType::none) {
    key_bias_ = place(input_slabs_, "key_bias", s.key_bias, {s.key_bias_by_batch ? s.B : 1, 1, 1, s.S});
  }
  if (s.key_indices != DType::none) {
    key_indices_ = place(input_slabs_, "key_indices", s.key_indices,
                         {s.lists_by_batch ? s.B : 1, s.lists_by_head ? s.Hkv : 1, s.T, s.list_entries});
  }
  if (s.mask.present) mask_ = place(input_slabs_, "mask", DType::boolean, map_shape(s.mask), kRepeatB);
  const auto vector = [&](const char* name, DType dtype, std::int64_t n) {
    return dtype == DType::none ? TensorView{} : place(input_slabs_, name, dtype, {1, 1, 1, n});
  };
  key_lengths_ = vector("key_lengths", s.key_lengths, s.sequences());
  query_offsets_ = vector("query_offsets", s.query_offsets, s.sequences());
  cu_seqlens_q_ = vector("cu_seqlens_q", s.cu_seqlens, s.packed + 1);
  cu_seqlens_k_ = vector("cu_seqlens_k", s.page > 0 ? DType::none : s.cu_seqlens, s.packed + 1);
  if (s.alibi_slopes != DType::none) {
    alibi_slopes_ =
        place(input_slabs_, "alibi_slopes", s.alibi_slopes, {1, 1, s.alibi_by_sequence ? s.sequences() : 1, s.Hq()});
  }
  if (s.sinks == DType::none) return;
  const Shape by_query{s.sinks_by_batch ? s.B : 1, s.Hq(), s.T, 1};
  sinks_ = place(input_slabs_, "sinks", s.sinks, s.sinks_by_query ? by_query : Shape{1, 1, 1, s.Hq()});
}

/// Allocates k and v. For a KV cache, also allocates the block table and the scales.
void Case::place_cache() {
  const CaseSpec& s = spec_;
  const std::int64_t batches = s.page > 0 ? s.pages() : s.B;
  const std::int64_t rows = s.page > 0 ? s.page : s.S;
  // Never broadcasts the dimension of pages: with stride 0, all pages would share their memory.
  k_ = place(input_slabs_, "k", s.key_dtype(), {batches, s.Hkv, rows, s.D}, kRepeatH);
  v_ = place(input_slabs_, "v", s.key_dtype(), {batches, s.Hkv, rows, s.Dv}, s.page > 0 ? kRepeatH : kRepeatB);
  if (s.page > 0) block_table_ = place(input_slabs_, "block_table", DType::i32, {1, 1, s.sequences(), s.pages_each()});
  if (!s.quantized) return;
  k_scale_ = place(input_slabs_, "k_scale", DType::f32, {batches, s.Hkv, rows, 1}, kRepeatH);
  v_scale_ = place(input_slabs_, "v_scale", DType::f32, {batches, s.Hkv, rows, 1}, s.page > 0 ? kRepeatH : kRepeatB);
  if (s.first_rows == DType::none) return;
  // Gives each sequence its own k_first and v_first: sequences differ in the number of these keys and in their masks.
  k_first_ = place(input_slabs_, "k_first", s.first_rows, {s.sequences(), s.Hkv, s.first, s.D}, kRepeatH);
  v_first_ = place(input_slabs_, "v_first", s.first_rows, {s.sequences(), s.Hkv, s.first, s.Dv}, kRepeatH);
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
  if (s.max_logit != DType::none) {
    const Shape of_heads{s.sequences(), s.Hq(), 1, 1}, of_rows{s.B, s.Hq(), s.T, 1};
    outputs_.max_logit = place(output_slabs_, "max_logit", s.max_logit, s.max_logit_by_head ? of_heads : of_rows);
  }
  if (s.weights) outputs_.weights = place(output_slabs_, "weights", s.dtype, {s.B, s.Hq(), s.T, s.S});
}

void Case::place_gradients() {
  const CaseSpec& s = spec_;
  AttentionGradients& g = gradients_;
  if (s.layout == Layout::fused) {
    const bool gate_inside = gate_.present() && gate_.dtype == s.dtype;
    place_projection(gradient_slabs_, &g.dq, gate_inside ? &g.dgate : nullptr, &g.dk, &g.dv);
  } else {
    g.dq = place_gradient("dq", q_);
    g.dk = place_gradient("dk", k_);
    g.dv = place_gradient("dv", v_);
  }
  if (!g.dgate.present()) g.dgate = place_gradient("dgate", gate_);
  g.dbias = place_gradient("dbias", bias_);
  g.dsinks = place_gradient("dsinks", sinks_);
  if (s.gate_fn == GateFn::none) g.dgate = {};  // the backward pass rejects dgate if y does not depend on a gate
  omit_absent({&g.dq, &g.dk, &g.dv, &g.dgate, &g.dbias, &g.dsinks});
}

void Case::place_statistics() {
  const CaseSpec& s = spec_;
  const StatisticsSpec& wanted = s.statistics;
  Random random(s.seed, kSelection);
  const auto indices = [&](const char* name, std::int64_t n, std::int64_t size, std::int64_t common) {
    const TensorView view = place(input_slabs_, name, wanted.index_dtype, {1, 1, 1, size > 0 ? n : 0});
    for (std::int64_t x = 0; x < view.shape[3]; ++x) {
      store_integer(view, x, random.below(x % 2 == 0 ? std::max<std::int64_t>(common, 1) : size));
    }
    return view;
  };
  // Draws every second key index from below the mean length of the packed sequences.
  // Larger indices lie beyond the end of many sequences.
  const std::int64_t mean_keys = cu_seqlens_k_.present() ? s.S / std::max<std::int64_t>(s.packed, 1) : s.S;
  selection_ = {indices("keys", wanted.keys, s.S, mean_keys), indices("queries", wanted.queries, s.T, s.T),
                wanted.window};
  const bool gated = gate_.present() && s.gate_fn != GateFn::none && s.gate_op == GateOp::mul;
  StatisticsSizes sizes{s.B, s.Hq(), s.T, s.S};
  sizes.sequences = s.sequences();
  sizes.key_batches = s.page > 0 ? s.sequences() : s.B;
  sizes.chosen_keys = selection_.keys.shape[3];
  sizes.chosen_rows = selection_.queries.shape[3];
  sizes.top_keys = wanted.top_keys;
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
  if (gate_.present()) fill_gate();
  if (dlse_.present()) fill_normal(dlse_, seed, kDlse, 1.0);
  fill_vectors();
  fill_table();
  fill_lists();
  fill_keys();
  fill_first_rows();
  fill_maps();
}

/// Draws the bounds of the packed sequences. If the seed is even, the bounds of q and k come from the same random
/// numbers. Each sequence then has the same share of all queries as of all keys.
void Case::fill_sequences() {
  if (!cu_seqlens_q_.present()) return;
  const std::uint64_t seed = spec_.seed;
  fill_bounds(cu_seqlens_q_, spec_.T, spec_.packed_queries, Random(seed, kSequences));
  if (!cu_seqlens_k_.present()) return;
  fill_bounds(cu_seqlens_k_, spec_.S, spec_.packed_keys, Random(seed + seed % 2, kSequences));
}

std::int64_t Case::sequence_of_query(std::int64_t i) const {
  std::int64_t n = 0;
  while (i >= load_index(cu_seqlens_q_, n + 1)) ++n;
  return n;
}

Case::KeyColumns Case::columns_of_query(std::int64_t i) const {
  if (!cu_seqlens_k_.present()) return {0, spec_.S};
  const Rows rows = rows_of(sequence_of_query(i));
  return {rows.k0, rows.S};
}

Case::Rows Case::rows_of(std::int64_t n) const {
  Rows rows{0, spec_.T, 0, spec_.S, spec_.S};
  if (cu_seqlens_q_.present()) {
    rows.q0 = load_index(cu_seqlens_q_, n);
    rows.T = load_index(cu_seqlens_q_, n + 1) - rows.q0;
  }
  if (cu_seqlens_k_.present()) {
    rows.k0 = load_index(cu_seqlens_k_, n);
    rows.S = load_index(cu_seqlens_k_, n + 1) - rows.k0;
  }
  rows.keys = key_lengths_.present() ? load_index(key_lengths_, n) : rows.S;
  return rows;
}

std::int64_t Case::sequence_of_key(std::int64_t b, std::int64_t j) const {
  if (!cu_seqlens_k_.present()) return b;
  std::int64_t n = 0;
  while (j >= load_index(cu_seqlens_k_, n + 1)) ++n;
  return n;
}

bool Case::key_is_read(std::int64_t b, std::int64_t j) const {
  const Rows rows = rows_of(sequence_of_key(b, j));
  return j - rows.k0 < rows.keys;
}

bool Case::bias_is_read(std::int64_t b, std::int64_t i, std::int64_t j) const {
  if (spec_.page > 0 && cu_seqlens_q_.present()) {
    if (bias_.shape[2] == spec_.T) return j < rows_of(sequence_of_query(i)).keys;
    for (std::int64_t n = 0; n < spec_.packed; ++n) {
      if (j < rows_of(n).keys) return true;
    }
    return false;
  }
  if (bias_.shape[0] == spec_.B) {
    const Rows rows = rows_of(sequence_of_key(b, j));
    const bool own_row = bias_.shape[2] != spec_.T || (i >= rows.q0 && i < rows.q0 + rows.T);
    return own_row && key_is_read(b, j);
  }
  for (std::int64_t any = 0; any < spec_.B; ++any) {
    if (key_is_read(any, j)) return true;
  }
  return false;
}

/// Returns whether the mask and the bias hide key column j from every query.
bool Case::column_is_hidden(std::int64_t j) const { return spec_.huge_hidden_keys && j % 5 == 3; }

/// Returns whether the mask, the bias, causality or the window hides key j from every query.
/// Considers the queries of all sequences that use the key.
bool Case::key_is_hidden(std::int64_t b, std::int64_t j) const {
  if ((mask_.present() || bias_.present()) && column_is_hidden(j)) return true;
  if (spec_.page > 0 && !query_offsets_.present()) return false;
  const auto out_of_reach = [&](std::int64_t n) {
    const Rows rows = rows_of(n);
    const double first =
        static_cast<double>(query_offsets_.present() ? load_index(query_offsets_, n) : rows.S - rows.T);
    const double last = first + static_cast<double>(rows.T) - 1.0, key = static_cast<double>(j - rows.k0);
    const auto limit = [](std::int64_t window) {
      return window == -1 ? std::numeric_limits<double>::infinity() : static_cast<double>(window);
    };
    const double left = limit(spec_.window_left);
    const double right = std::min(limit(spec_.window_right), spec_.causality == Causality::causal ? 0.0 : INFINITY);
    return key > last + right || key < first - left || right < -left;
  };
  if (spec_.page > 0) return out_of_reach(b);
  if (cu_seqlens_q_.present()) return out_of_reach(sequence_of_key(b, j));
  for (std::int64_t n = 0; n < spec_.B; ++n) {  // several batches may share v (stride 0)
    if (!out_of_reach(n)) return false;
  }
  return true;
}

void Case::fill_gate() {
  const double factor = factors_of(spec_).gate;
  Random random(spec_.seed, kGate);
  fill(gate_, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) {
    const double z = random.normal();
    const std::int64_t heads_from_last = spec_.Hkv - 1 - h / spec_.group;
    store(gate_, b, h, i, d,
          factor * (spec_.closed_by_group ? 0.25 * z - 2.0 * static_cast<double>(heads_from_last) : z));
  });
  if (spec_.closed_share < 0) return;
  options_.gate_threshold = threshold_that_closes(spec_.closed_share, gate_, spec_.gate_fn);
}

void Case::fill_vectors() {
  fill_sequences();
  Random lengths(spec_.seed, kLengths);
  for (std::int64_t n = 0; key_lengths_.present() && n < spec_.sequences(); ++n) {
    store_integer(key_lengths_, n, 0);
    const std::int64_t S = rows_of(n).S;
    const std::int64_t kind = lengths.below(6);
    const std::int64_t some = lengths.below(S + 1);
    store_integer(key_lengths_, n, kind == 0 ? 0 : kind == 1 ? S : some);
  }
  Random offsets(spec_.seed, kOffsets);
  for (std::int64_t n = 0; query_offsets_.present() && n < spec_.sequences(); ++n) {
    const Rows rows = rows_of(n);
    store_integer(query_offsets_, n, offsets.below(rows.S + 2 * rows.T + 1) - rows.T);
  }
  if (key_bias_.present()) fill_normal(key_bias_, spec_.seed, kKeyBias, 1.0);
  Random slopes(spec_.seed, kAlibi);
  if (alibi_slopes_.present()) {
    fill(alibi_slopes_, [&](std::int64_t, std::int64_t, std::int64_t n, std::int64_t h) {
      store(alibi_slopes_, 0, 0, n, h, slopes.uniform());
    });
  }
  if (!sinks_.present()) return;
  fill_normal(sinks_, spec_.seed, kSinks, factors_of(spec_).sinks);
  // One in eight queries has no sink.
  Random random(spec_.seed, kChoice);
  fill(sinks_, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t x) {
    if (spec_.sinks_by_query && random.below(8) == 0) store(sinks_, b, h, i, x, -INFINITY);
  });
}

/// Draws lists of blocks of key_block_size keys. With lists_full, a list has one block from each of K equal parts of
/// the sequence, and parts without a block give empty entries. Otherwise entries may repeat, about one entry in eight
/// is empty, and about half of the lists are ascending.
void Case::fill_lists() {
  if (!key_indices_.present()) return;
  Random random(spec_.seed, kLists);
  const auto& [batches, heads, T, K] = key_indices_.shape;
  std::vector<std::int64_t> list(static_cast<std::size_t>(K));
  for (std::int64_t row = 0; row < batches * heads * T; ++row) {
    const std::int64_t b = row / (heads * T), h = row / T % heads, i = row % T;
    const std::int64_t S = columns_of_query(i).count, blocks = (S + spec_.key_block_size - 1) / spec_.key_block_size;
    for (std::int64_t n = 0; n < K; ++n) {
      std::int64_t& e = list[static_cast<std::size_t>(n)];
      if (spec_.lists_full) {
        const std::int64_t begin = n * blocks / K, end = (n + 1) * blocks / K;
        e = begin < end ? begin + random.below(end - begin) : -1;
      } else {
        e = blocks == 0 || random.below(8) == 0 ? -1 : random.below(blocks);
      }
    }
    if (!spec_.lists_full && random.below(2) == 0) std::sort(list.begin(), list.end());
    const TensorView to = narrow(narrow(narrow(key_indices_, 0, b, b + 1), 1, h, h + 1), 2, i, i + 1);
    for (std::int64_t n = 0; n < K; ++n) store_integer(to, n, list[static_cast<std::size_t>(n)]);
  }
}

/// Fills the block table with distinct pages in random order. Entries beyond a sequence's length get invalid page
/// numbers.
void Case::fill_table() {
  if (!block_table_.present()) return;
  Random random(spec_.seed, kTable);
  std::vector<std::int32_t> pages(spec_.pages());
  std::iota(pages.begin(), pages.end(), 0);
  for (std::size_t n = pages.size(); n > 1; --n) std::swap(pages[n - 1], pages[random.below(n)]);
  std::size_t next = 0;
  fill(block_table_, [&](std::int64_t, std::int64_t, std::int64_t b, std::int64_t m) {
    const bool used = m * spec_.page < load_index(key_lengths_, b);
    const std::int32_t entry = used ? pages[next++] : static_cast<std::int32_t>(random.below(2) == 0 ? -1 : 1 << 30);
    static_cast<std::int32_t*>(block_table_.data)[offset_of(block_table_, 0, 0, b, m)] = entry;
  });
}

/// Fills k, v and their scales. Keeps the poison bytes 0xFF in rows that kernels must not read:
/// - rows at and beyond a sequence's length;
/// - rows that k_first and v_first replace;
/// - rows of unused pages.
/// These bytes are NaN, or −1 in int8 with a scale of NaN.
void Case::fill_keys() {
  const Factors f = factors_of(spec_);
  struct Tensor {
    const TensorView &rows, &scale;
    Stream stream;
    double factor;
  };
  for (const auto& [view, scale, stream, factor] : {Tensor{k_, k_scale_, kK, f.k}, Tensor{v_, v_scale_, kV, f.v}}) {
    Random random(spec_.seed, stream);
    bool is_read = false, is_huge = false;
    Random scales(spec_.seed, kScales + stream);
    const Shape keys{spec_.page > 0 ? spec_.sequences() : spec_.B, spec_.Hkv, spec_.S, view.shape[3]};
    for_each_index(keys, [&, &rows = view, &row_scale = scale, by = factor](std::int64_t b, std::int64_t h,
                                                                            std::int64_t j, std::int64_t d) {
      const double x = random.normal();
      if (d == 0) {
        is_read = key_is_read(b, j) && j - rows_of(sequence_of_key(b, j)).k0 >= k_first_.shape[2];
        is_huge = spec_.huge_hidden_keys && key_is_hidden(b, j);
      }
      if (!is_read) return;
      const std::int64_t batch = spec_.page > 0 ? page_of(block_table_, b, j / spec_.page) : b;
      const std::int64_t row = spec_.page > 0 ? j % spec_.page : j;
      if (!spec_.quantized) {
        return store(rows, batch, h, row, d, is_huge ? std::copysign(largest_number(spec_.dtype), x) : by * x);
      }
      // stores a normal random number x as the int8 value kSteps · x, which fits because |x| stays below 3.5
      constexpr double kSteps = 36.0;
      auto* at = static_cast<std::int8_t*>(rows.data) + offset_of(rows, batch, h, row, d);
      *at = static_cast<std::int8_t>(std::lrint(kSteps * x));
      if (d != 0) return;
      constexpr double kHugeScale = 0x1p120;  // huge, but its products with int8 values are finite
      const double scale_of_row = by * (0.5 + scales.uniform()) / kSteps;
      store(row_scale, batch, h, row, 0, is_huge ? kHugeScale : scale_of_row);
    });
  }
}

/// Fills the rows of k_first and v_first. Rows at and beyond a sequence's length stay NaN.
void Case::fill_first_rows() {
  const Factors f = factors_of(spec_);
  const DType computed = spec_.dtype == DType::f64 ? DType::f64 : DType::f32;
  const double huge = std::min(largest_number(spec_.first_rows), largest_number(computed));
  for (const auto& [view, stream, factor] :
       {std::tuple{&k_first_, kFirst + kK, f.k}, std::tuple{&v_first_, kFirst + kV, f.v}}) {
    if (!view->present()) continue;
    Random random(spec_.seed, stream);
    fill(*view, [&, &to = *view, by = factor](std::int64_t n, std::int64_t h, std::int64_t j, std::int64_t d) {
      const double x = random.normal();
      const Rows rows = rows_of(n);
      if (j >= rows.keys) return;
      const bool is_batch = spec_.page > 0 || !cu_seqlens_k_.present();
      const bool is_huge = spec_.huge_hidden_keys && key_is_hidden(is_batch ? n : 0, rows.k0 + j);
      store(to, n, h, j, d, is_huge ? std::copysign(huge, x) : by * x);
    });
  }
}

void Case::fill_maps() {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (bias_.present()) {
    const double factor = factors_of(spec_).bias;
    Random random(spec_.seed, kBias);
    HiddenKeys keys(spec_, random, 4);
    fill(bias_, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
      const bool hidden = (spec_.bias_hides && keys.hides(b, h, i, j)) || column_is_hidden(j);
      const double x = hidden ? -kInfinity : factor * random.normal();
      if (bias_is_read(b, i, j)) store(bias_, b, h, i, j, x);
    });
    if (spec_.bias_breaks && bias_.numel() > 0) {
      const Shape& n = bias_.shape;
      store(bias_, 0, 0, 0, random.below(n[3]), kInfinity);
      store(bias_, n[0] - 1, n[1] - 1, n[2] - 1, random.below(n[3]), std::numeric_limits<double>::quiet_NaN());
    }
  }
  if (mask_.present()) {
    Random random(spec_.seed, kMask);
    HiddenKeys keys(spec_, random, 3);
    fill(mask_, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
      const bool hidden = keys.hides(b, h, i, j) || column_is_hidden(j);
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

AttentionOptions Case::backward_options() const {
  AttentionOptions options = options_;
  options.gate_threshold = 0.0;
  return options;
}

std::optional<std::string> Case::spilled() const {
  const std::optional<std::string> name = OperationCase::spilled();
  return name ? name : statistics_slabs_.spilled();
}

const reference::Forward& Case::expected_forward() {
  if (!forward_) forward_ = reference::forward(inputs_, options_);
  return *forward_;
}

Case::MaxLogits Case::expected_max_logits() {
  const reference::Forward& want = expected_forward();
  if (!spec_.max_logit_by_head) return {want.max_logit, want.magnitude.max_logit};
  const std::int64_t Hq = spec_.Hq(), rows = spec_.B * Hq * spec_.T;
  MaxLogits heads;
  heads.value.assign(spec_.sequences() * Hq, -std::numeric_limits<double>::infinity());
  heads.magnitude.assign(heads.value.size(), 0.0);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t b = row / spec_.T / Hq, h = row / spec_.T % Hq, i = row % spec_.T;
    const std::int64_t head = (cu_seqlens_q_.present() ? sequence_of_query(i) : b) * Hq + h;
    double& value = heads.value[head];
    if (!(want.max_logit[row] <= value) && !std::isnan(value)) value = want.max_logit[row];
    heads.magnitude[head] = std::max(heads.magnitude[head], want.magnitude.max_logit[row]);
  }
  return heads;
}

const reference::Backward& Case::expected_backward() {
  if (!backward_) backward_ = reference::backward(inputs_, incoming_, backward_options());
  return *backward_;
}

const reference::Forward& Case::expected_before_dropout() {
  if (spec_.dropout == 0.0) return expected_forward();
  if (!undropped_) {
    AttentionOptions options = options_;
    options.dropout = 0.0;
    undropped_ = reference::forward(inputs_, options);
  }
  return *undropped_;
}

const reference::Statistics& Case::expected_statistics() {
  if (!expected_statistics_) {
    expected_statistics_ =
        reference::statistics(expected_before_dropout(), inputs_, options_, selection_, spec_.statistics.top_keys);
  }
  return *expected_statistics_;
}

}  // namespace headgate::verify
