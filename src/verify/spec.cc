// SPDX-License-Identifier: Apache-2.0
#include "verify/spec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <type_traits>

#include "library/core/attention_options.hpp"
#include "library/core/statistics_outputs.hpp"

namespace headgate::verify {
namespace {

std::string map_text(const MapSpec& map) {
  return fmt::format("({},{},{},S)", map.full_b ? "B" : "1", map.full_h ? "Hq" : "1", map.full_t ? "T" : "1");
}

/// Draws a gate function, or none.
GateFn draw_gate_fn(const Pick& pick) {
  const auto& all = Words<GateFn>::kAll;
  return all[pick(all.size())].value;
}

MapSpec draw_map(const Pick& pick, std::int64_t one_in) {
  MapSpec map;
  if (!maybe(pick, one_in)) return map;
  map.present = true;
  map.full_b = maybe(pick, 2);
  map.full_h = maybe(pick, 2);
  map.full_t = maybe(pick, 2);
  return map;
}

/// Sequence lengths around the kernels' block sizes.
constexpr std::array<std::int64_t, 20> kLengths{1,  2,  3,  5,  7,  8,  15,  16,  17,  24,
                                                31, 33, 48, 63, 64, 65, 100, 129, 200, 257};

/// Maximum number of multiply-adds in one problem. The oracle computes them in a few milliseconds.
constexpr std::int64_t kWorkLimit = 1'000'000;

void draw_sizes(CaseSpec& spec, const Pick& pick) {
  spec.B = 1 + pick(3);
  spec.Hkv = 1 + pick(3);
  spec.group = 1 + pick(4);
  spec.T = one_of(pick, kLengths);
  spec.S = maybe(pick, 3) ? spec.T : one_of(pick, kLengths);
  spec.D = one_of(pick, kWidths);
  spec.Dv = maybe(pick, 2) ? spec.D : one_of(pick, kWidths);
  const auto work = [&spec] { return spec.B * spec.Hq() * spec.T * spec.S * (spec.D + spec.Dv); };
  for (auto* size : {&spec.B, &spec.group, &spec.Hkv}) {
    if (work() > kWorkLimit) *size = 1;
  }
  while (work() > kWorkLimit) {
    std::int64_t& longest = spec.D + spec.Dv > std::max(spec.T, spec.S) ? (spec.D > spec.Dv ? spec.D : spec.Dv)
                            : spec.T > spec.S                           ? spec.T
                                                                        : spec.S;
    longest = (longest + 1) / 2;
  }
}

void draw_scores(CaseSpec& spec, const Pick& pick) {
  if (maybe(pick, 4)) spec.scale = one_of(pick, std::array{1.0, 0.05, -0.3, 0.0});
  if (maybe(pick, 4)) spec.softcap = one_of(pick, std::array{30.0, 2.0, 0.5});
  spec.causality = maybe(pick, 3) ? Causality::causal : Causality::none;
  // A limit below −1 excludes the query's own position from the window.
  if (maybe(pick, 4)) spec.window_left = maybe(pick, 5) ? -2 - pick(8) : pick(40);
  if (maybe(pick, 4)) spec.window_right = maybe(pick, 5) ? -2 - pick(8) : pick(40);
  spec.bias = draw_map(pick, 3);
  spec.bias_f32 = spec.bias.present && maybe(pick, 3);
  spec.bias_hides = spec.bias.present && maybe(pick, 2);
  spec.mask = draw_map(pick, 4);
  if (spec.mask.present || spec.bias_hides) spec.hidden = maybe(pick, 2) ? Hidden::documents : Hidden::scattered;
  if (maybe(pick, 4)) spec.key_lengths = one_of(pick, std::array{DType::i32, DType::i64});
  if (maybe(pick, 4)) spec.query_offsets = one_of(pick, std::array{DType::i32, DType::i64});
  if (maybe(pick, 4)) spec.alibi_slopes = one_of(pick, std::array{DType::f32, DType::f64});
  spec.alibi_by_sequence = spec.alibi_slopes != DType::none && maybe(pick, 2);
  if (maybe(pick, 4)) spec.sinks = one_of(pick, std::array{DType::f32, DType::f64});
  if (maybe(pick, 6)) spec.dropout = one_of(pick, std::array{0.1, 0.5, 0.9});
  if (spec.dropout > 0.0) spec.dropout_seed = pick(1000) - 500;
}

void draw_gate(CaseSpec& spec, const Pick& pick) {
  spec.gate_input = one_of(pick, std::array{GateInput::none, GateInput::headwise, GateInput::elementwise});
  if (spec.gate_input == GateInput::none) return;
  spec.gate_fn = draw_gate_fn(pick);
  spec.gate_op = maybe(pick, 3) ? GateOp::add : GateOp::mul;
  spec.gate_f32 = maybe(pick, 3);
}

/// Returns the spec with a paged KV cache. Rounds S up to whole pages.
CaseSpec paged(CaseSpec spec, std::int64_t page) {
  spec.page = page;
  spec.S = (spec.S + page - 1) / page * page;
  if (spec.key_lengths == DType::none) spec.key_lengths = DType::i32;
  if (spec.layout == Layout::fused) spec.layout = Layout::bthd;
  return spec;
}

CaseSpec quantized(CaseSpec spec) {
  spec.quantized = true;
  if (spec.layout == Layout::fused) spec.layout = Layout::bthd;
  return spec;
}

void draw_cache(CaseSpec& spec, const Pick& pick) {
  const std::int64_t page = one_of(pick, std::array{0, 0, 0, 0, 0, 1, 3, 16, 64, 100});
  if (page > 0) spec = paged(spec, page);
  if (maybe(pick, 6)) spec = quantized(spec);
}

CaseSpec with_first_rows(CaseSpec spec, DType dtype, std::int64_t first) {
  spec.first_rows = dtype;
  spec.first = first;
  return spec;
}

void draw_first_rows(CaseSpec& spec, const Pick& pick) {
  if (!spec.quantized || !maybe(pick, 2)) return;
  const DType dtype = one_of(pick, std::array{DType::f32, DType::bf16, DType::f16, DType::f64});
  spec = with_first_rows(spec, dtype, one_of(pick, std::array<std::int64_t, 8>{4, 1, 0, 3, 8, 17, 64, 150}));
}

void draw_lists(CaseSpec& spec, const Pick& pick) {
  if (!maybe(pick, 4)) return;
  spec.key_indices = one_of(pick, std::array{DType::i32, DType::i64});
  spec.lists_by_batch = maybe(pick, 2);
  spec.lists_by_head = maybe(pick, 2);
  spec.list_entries = one_of(pick, std::array<std::int64_t, 8>{7, 1, 2, 12, 30, 64, 150, 0});
  spec.key_block_size = one_of(pick, std::array<std::int64_t, 5>{1, 1, 1, 3, 16});
}

void draw_threshold(CaseSpec& spec, const Pick& pick) {
  const bool multiplies = spec.gate_input != GateInput::none && spec.gate_fn != GateFn::none;
  if (!multiplies || spec.gate_op == GateOp::add || !maybe(pick, 3)) return;
  spec.closed_share = one_of(pick, std::array{0.0, 0.1, 0.5, 0.9, 1.0});
  spec.closed_by_group = maybe(pick, 3);
}

void draw_statistics(StatisticsSpec& statistics, const Pick& pick) {
  // Draws all outputs, a single one, or a random subset, because kernels skip absent outputs.
  switch (pick(4)) {
    case 0: break;
    case 1: statistics.absent = ~(1U << pick(static_cast<std::int64_t>(kStatisticsOutputs.size()))); break;
    default: statistics.absent = static_cast<unsigned>(pick(std::int64_t{1} << kStatisticsOutputs.size())); break;
  }
  statistics.dtype = one_of(pick, std::array{DType::f32, DType::f64});
  statistics.index_dtype = one_of(pick, std::array{DType::i64, DType::i32});
  statistics.keys = one_of(pick, std::array<std::int64_t, 4>{2, 0, 5, 40});
  statistics.queries = one_of(pick, std::array<std::int64_t, 4>{2, 0, 1, 15});
  statistics.top_keys = one_of(pick, std::array<std::int64_t, 4>{3, 1, 8, 33});
  statistics.window = one_of(pick, std::array<std::int64_t, 5>{1, 0, 7, 70, std::int64_t{1} << 62});
}

CaseSpec shaped(std::int64_t B, std::int64_t Hkv, std::int64_t group, std::int64_t T, std::int64_t S, std::int64_t D,
                std::int64_t Dv) {
  CaseSpec spec;
  spec.B = B;
  spec.Hkv = Hkv;
  spec.group = group;
  spec.T = T;
  spec.S = S;
  spec.D = D;
  spec.Dv = Dv;
  return spec;
}

CaseSpec gated(CaseSpec spec, GateInput grain, GateFn fn, GateOp op) {
  spec.gate_input = grain;
  spec.gate_fn = fn;
  spec.gate_op = op;
  return spec;
}

/// Returns the spec with all options of attention except the gate.
CaseSpec with_all_features(CaseSpec spec) {
  spec.softcap = 5.0;
  spec.causality = Causality::causal;
  spec.window_left = 21;
  spec.window_right = 0;
  spec.bias = {true, true, false, true};
  spec.bias_hides = true;
  spec.key_bias = DType::f32;
  spec.mask = {true, false, true, true};
  spec.key_lengths = DType::i32;
  spec.alibi_slopes = DType::f32;
  spec.sinks = DType::f32;
  spec.dlse = DType::f32;
  spec.attn = true;
  spec.weights = true;
  spec.max_logit = DType::f64;
  return spec;
}

void add_features(std::vector<CaseSpec>& list) {
  const CaseSpec plain = shaped(2, 2, 2, 37, 45, 24, 20);
  const auto add = [&list](CaseSpec spec, const auto& change) {
    change(spec);
    list.push_back(spec);
  };
  add(plain, [](CaseSpec&) {});
  add(plain, [](CaseSpec& s) { s.scale = -0.4; });
  add(plain, [](CaseSpec& s) { s.softcap = 1.5; });
  add(plain, [](CaseSpec& s) { s.causality = Causality::causal; });
  add(plain, [](CaseSpec& s) { s.window_left = 7; });
  add(plain, [](CaseSpec& s) { s.window_right = 3; });
  add(plain, [](CaseSpec& s) { s.window_left = 0, s.window_right = 0; });
  add(plain, [](CaseSpec& s) { s.alibi_slopes = DType::f64; });
  add(plain, [](CaseSpec& s) { s.alibi_slopes = DType::f32, s.alibi_by_sequence = true; });
  add(plain, [](CaseSpec& s) { s.window_left = 9, s.window_right = -3; });
  add(plain, [](CaseSpec& s) { s.dropout = 0.3, s.dropout_seed = -7, s.weights = true; });
  add(plain, [](CaseSpec& s) { s.sinks = DType::f32, s.dlse = DType::f64, s.lse = DType::f64; });
  add(plain, [](CaseSpec& s) { s.key_lengths = DType::i64; });
  add(plain, [](CaseSpec& s) { s.query_offsets = DType::i32, s.causality = Causality::causal, s.window_left = 9; });
  add(plain,
      [](CaseSpec& s) { s.query_offsets = DType::i64, s.key_lengths = DType::i32, s.alibi_slopes = DType::f32; });
  add(plain, [](CaseSpec& s) { s.mask = {true, true, true, true}; });
  add(plain, [](CaseSpec& s) { s.bias = {true, true, true, true}, s.bias_hides = true; });
  add(plain, [](CaseSpec& s) { s.bias = {true, false, false, false}; });
  add(plain, [](CaseSpec& s) {
    s.bias = {true, false, true, true}, s.key_bias = DType::f32, s.key_bias_by_batch = true;
  });
  add(plain, [](CaseSpec& s) { s.key_indices = DType::i32, s.list_entries = 11, s.lists_by_batch = true; });
  add(plain, [](CaseSpec& s) {
    s.key_indices = DType::i64, s.list_entries = 4, s.lists_by_head = true, s.key_block_size = 7;
    s.causality = Causality::causal, s.bias = {true, true, true, true}, s.sinks = DType::f32;
  });
  add(plain, [](CaseSpec& s) { s.dlse = DType::f32, s.weights = true, s.attn = true; });
  add(plain, [](CaseSpec& s) { s.max_logit = DType::f32, s.max_logit_by_head = true, s.sinks = DType::f32; });
  add(plain, [](CaseSpec& s) { s.causality = Causality::causal, s.S = 20, s.sinks = DType::f64; });
}

/// Adds cases with a paged KV cache and with int8 k and v, for few and for many queries.
void add_caches(std::vector<CaseSpec>& list, DType dtype) {
  for (const std::int64_t page : {0, 1, 3, 16, 64, 100}) {
    for (const bool bytes : {false, true}) {
      if (page == 0 && !bytes) continue;
      const auto add = [&](CaseSpec spec) {
        spec.dtype = dtype;
        spec = gated(spec, GateInput::headwise, GateFn::sigmoid, GateOp::mul);
        if (page > 0) spec = paged(spec, page);
        list.push_back(bytes ? quantized(spec) : spec);
        if (bytes)
          list.push_back(with_first_rows(list.back(), page == 3 ? DType::bf16 : DType::f32, page == 16 ? 70 : 4));
      };
      add(shaped(2, 2, 2, 70, 90, 32, 24));
      add(shaped(2, 1, 8, 1, 1030, 64, 32));
      CaseSpec spec = with_all_features(shaped(2, 1, 3, 2, 700, 24, 17));
      spec.query_offsets = DType::i32;
      spec.window_left = 300;
      spec.weights = page == 16;  // with weights, the kernel for many queries runs
      add(spec);
    }
  }
}

/// Adds cases with few queries, for which the kernel divides the keys into several splits. The shapes cover every way
/// in which the kernel reads rows of k and v.
void add_few_queries(std::vector<CaseSpec>& list, DType dtype) {
  struct Rows {
    std::int64_t T, group, D, Dv;
  };
  for (const Rows& rows : {Rows{1, 1, 64, 64}, Rows{1, 8, 32, 16}, Rows{3, 1, 24, 17}, Rows{3, 3, 16, 32}}) {
    CaseSpec spec = shaped(1, 1, rows.group, rows.T, 1030, rows.D, rows.Dv);
    spec.dtype = dtype;
    if (dtype == DType::f32) list.push_back(gated(spec, GateInput::elementwise, GateFn::sigmoid, GateOp::mul));
    spec = gated(with_all_features(spec), GateInput::headwise, GateFn::sigmoid, GateOp::mul);
    spec.window_left = 700;
    spec.weights = false;
    list.push_back(spec);
  }
  // In `many`, the kernel divides the keys into 104 splits, two per head. Some splits have no key.
  // A thread computes three splits one after another, from different heads and sequences.
  CaseSpec many = gated(shaped(4, 13, 1, 1, 1100, 16, 16), GateInput::headwise, GateFn::sigmoid, GateOp::mul);
  many.dtype = dtype;
  list.push_back(many);
  list.push_back(quantized(many));
  // In `two`, the rows of k_first and v_first replace int8 rows in two splits.
  CaseSpec two = quantized(gated(shaped(1, 1, 2, 1, 2100, 16, 16), GateInput::headwise, GateFn::sigmoid, GateOp::mul));
  two.dtype = dtype;
  list.push_back(with_first_rows(two, DType::bf16, 2051));
  many.key_lengths = DType::i32;
  many.query_offsets = DType::i32;
  many.window_left = 300;
  list.push_back(many);
}

/// Adds cases with a mask or a bias that hides long runs of keys, which kernels skip.
void add_documents(std::vector<CaseSpec>& list, DType dtype) {
  const auto add = [&](CaseSpec spec) {
    spec.dtype = dtype;
    spec.hidden = Hidden::documents;
    list.push_back(gated(spec, GateInput::elementwise, GateFn::sigmoid, GateOp::mul));
  };
  CaseSpec masked = shaped(2, 1, 2, 310, 900, 24, 20);
  masked.mask = {true, true, true, true};
  add(masked);
  masked.causality = Causality::causal;
  masked.max_logit = DType::f32;
  add(masked);
  CaseSpec biased = shaped(1, 2, 1, 620, 620, 32, 32);
  biased.bias = {true, false, true, true};
  biased.bias_hides = true;
  biased.key_bias = DType::f32;
  add(biased);
  add(with_all_features(biased));
  for (const std::int64_t T : {1, 3}) {
    CaseSpec few = shaped(2, 1, 3, T, 2100, 32, 24);
    few.mask = {true, true, T == 3, true};
    add(few);
  }
}

/// Adds packed batches with few and with many queries. Some sequences are empty or have length 1.
void add_packed(std::vector<CaseSpec>& list, DType dtype) {
  for (const std::int64_t length : {40, 310}) {
    CaseSpec spec = shaped(1, 2, 2, length, length, 24, 20);
    spec.dtype = dtype;
    spec.cu_seqlens = DType::i32;
    spec.packed = 6;
    spec.causality = Causality::causal;
    list.push_back(gated(spec, GateInput::elementwise, GateFn::sigmoid, GateOp::mul));
    spec = gated(with_all_features(spec), GateInput::headwise, GateFn::sigmoid, GateOp::mul);
    spec.cu_seqlens = DType::i64;
    spec.query_offsets = DType::i64;
    list.push_back(spec);
    spec.weights = false;
    spec.bias = {true, false, false, false};
    spec.threads = 2;
    list.push_back(spec);
  }
  CaseSpec spec = shaped(1, 1, 1, 330, 1200, 16, 16);
  spec.dtype = dtype;
  spec.cu_seqlens = DType::i32;
  spec.packed = 5;
  spec.packed_queries = {1, 300, 0, 1, 28};
  spec.packed_keys = {700, 310, 40, 0, 150};
  spec.causality = Causality::causal;
  spec.sinks = DType::f32;
  list.push_back(spec);
}

/// Adds packed queries with a paged KV cache. Sequences have one, many or no queries. The seed determines the numbers
/// of keys.
void add_packed_caches(std::vector<CaseSpec>& list, DType dtype) {
  for (const std::int64_t page : {1, 16, 100}) {
    CaseSpec spec = shaped(1, 2, 2, 160, 310, 24, 20);
    spec.dtype = dtype;
    spec.cu_seqlens = DType::i32;
    spec.packed = 6;
    spec.packed_queries = {1, 90, 0, 3, 1, 65};
    spec.causality = Causality::causal;
    spec.threads = 2;
    spec = paged(gated(spec, GateInput::elementwise, GateFn::sigmoid, GateOp::mul), page);
    list.push_back(spec);
    list.push_back(quantized(spec));
    list.push_back(with_first_rows(list.back(), dtype, 5));
    spec = with_all_features(spec);
    list.push_back(spec);
    spec.bias = {true, false, false, false};
    spec.query_offsets = DType::i64;
    spec.weights = false;
    list.push_back(spec);
  }
}

/// Adds cases in which gate_threshold closes some rows: with many queries, with few queries, and with masks that depend
/// on a row's position.
void add_closed_rows(std::vector<CaseSpec>& list, DType dtype) {
  for (const GateInput grain : {GateInput::headwise, GateInput::elementwise}) {
    for (const double share : {0.3, 0.0, 0.9, 1.0}) {
      if (share != 0.3 && dtype != DType::f32) continue;
      CaseSpec spec = gated(shaped(2, 1, 2, 150, 130, 16, 20), grain, GateFn::sigmoid, GateOp::mul);
      spec.dtype = dtype;
      spec.closed_share = share;
      spec.causality = Causality::causal;
      spec.threads = 2;
      list.push_back(spec);
      list.push_back(with_all_features(spec));
      list.back().values = Values::sharp;
      CaseSpec few = gated(shaped(2, 2, 4, 3, 1030, 16, 17), grain, GateFn::silu, GateOp::mul);
      few.dtype = dtype;
      few.closed_share = share;
      few.alibi_slopes = DType::f32;
      few.sinks = DType::f32;
      few.threads = 2;
      list.push_back(few);
      few.closed_by_group = true;
      list.push_back(few);
    }
  }
}

/// Adds cases with a sink for each query, for few and many queries, and for small heads.
void add_query_sinks(std::vector<CaseSpec>& list, DType dtype) {
  CaseSpec packed = shaped(1, 2, 1, 330, 300, 16, 16);
  packed.cu_seqlens = DType::i32;
  packed.packed = 4;
  packed.packed_queries = {1, 300, 0, 29};
  for (CaseSpec spec : {shaped(2, 1, 2, 70, 600, 32, 24), shaped(3, 2, 1, 40, 50, 16, 16),
                        shaped(2, 1, 4, 2, 1030, 16, 32), shaped(2, 2, 2, 150, 300, 24, 16), packed}) {
    spec.dtype = dtype;
    spec.sinks = DType::f32;
    spec.sinks_by_query = true;
    spec.lse = spec.dlse = DType::f64;
    list.push_back(spec);
    spec.sinks = DType::f64;
    spec.sinks_by_batch = true;
    spec.causality = Causality::causal;
    spec.threads = 2;
    list.push_back(gated(spec, GateInput::headwise, GateFn::sigmoid, GateOp::mul));
  }
}

}  // namespace

std::string describe(const CaseSpec& spec) {
  std::string text = fmt::format("B={} Hq={} Hkv={} T={} S={} D={} Dv={} {}", spec.B, spec.Hq(), spec.Hkv, spec.T,
                                 spec.S, spec.D, spec.Dv, dtype_name(spec.dtype));
  const auto add = [&text](bool present, const std::string& part) {
    if (present) text += " " + part;
  };
  add(spec.layout != Layout::bhtd, fmt::format("layout={}", word_of(spec.layout)));
  add(spec.values != Values::normal, fmt::format("values={}", word_of(spec.values)));
  for_each_set_option<kAttentionOptions, AttentionOptions>(spec, [&](const auto& row, const std::string& value) {
    const bool is_read = row.part != OptionOf::gate || spec.gate_input != GateInput::none;
    add(is_read, fmt::format("{}={}", row.text.name, value));
  });
  add(spec.gate_input != GateInput::none,
      fmt::format("gate={}{}", word_of(spec.gate_input), spec.gate_f32 ? ":f32" : ""));
  add(spec.closed_share >= 0,
      fmt::format("gate_threshold=closes:{}{}", spec.closed_share, spec.closed_by_group ? ":groups" : ""));
  add(spec.key_bias != DType::none,
      fmt::format("key_bias={}{}", dtype_name(spec.key_bias), spec.key_bias_by_batch ? ":b" : ""));
  add(spec.key_indices != DType::none,
      fmt::format("key_indices={}:{}{}{}", dtype_name(spec.key_indices), spec.list_entries,
                  spec.lists_by_batch ? ":b" : "", spec.lists_by_head ? ":h" : ""));
  add(spec.bias.present, fmt::format("bias={}{}{}{}", map_text(spec.bias), spec.bias_f32 ? ":f32" : "",
                                     spec.bias_hides ? ":hides" : "", spec.bias_breaks ? ":breaks" : ""));
  add(spec.mask.present, fmt::format("mask={}", map_text(spec.mask)));
  add(spec.hidden != Hidden::scattered, fmt::format("hidden={}", word_of(spec.hidden)));
  add(spec.key_lengths != DType::none, fmt::format("key_lengths={}", dtype_name(spec.key_lengths)));
  add(spec.query_offsets != DType::none, fmt::format("query_offsets={}", dtype_name(spec.query_offsets)));
  add(spec.alibi_slopes != DType::none, fmt::format("alibi={}", dtype_name(spec.alibi_slopes)));
  add(spec.alibi_by_sequence, "alibi_by_sequence");
  add(spec.sinks != DType::none, fmt::format("sinks={}{}{}", dtype_name(spec.sinks), spec.sinks_by_query ? ":i" : "",
                                             spec.sinks_by_batch ? ":b" : ""));
  add(spec.huge_hidden_keys, "huge_hidden_keys");
  add(spec.lse != DType::f32, fmt::format("lse={}", dtype_name(spec.lse)));
  add(spec.dlse != DType::none, fmt::format("dlse={}", dtype_name(spec.dlse)));
  add(spec.attn, "attn");
  add(spec.weights, "weights");
  add(spec.max_logit != DType::none,
      fmt::format("max_logit={}{}", dtype_name(spec.max_logit), spec.max_logit_by_head ? ":head" : ""));
  add(spec.absent_gradients != 0, fmt::format("absent_gradients={:#x}", spec.absent_gradients));
  add(spec.threads != 1, fmt::format("threads={}", spec.threads));
  add(spec.cu_seqlens != DType::none, fmt::format("packed={}:{}", spec.packed, dtype_name(spec.cu_seqlens)));
  add(spec.page > 0, fmt::format("page={}", spec.page));
  add(spec.quantized, "int8");
  add(spec.first_rows != DType::none, fmt::format("first_rows={}:{}", dtype_name(spec.first_rows), spec.first));
  const StatisticsSpec& statistics = spec.statistics;
  const StatisticsSpec usual;
  add(statistics.absent != 0, fmt::format("absent_statistics={:#x}", statistics.absent));
  add(statistics.dtype != usual.dtype || statistics.index_dtype != usual.index_dtype,
      fmt::format("statistics={}:{}", dtype_name(statistics.dtype), dtype_name(statistics.index_dtype)));
  add(statistics.keys != usual.keys || statistics.queries != usual.queries,
      fmt::format("chosen={},{}", statistics.keys, statistics.queries));
  add(statistics.top_keys != usual.top_keys, fmt::format("top_keys={}", statistics.top_keys));
  add(statistics.window != usual.window, fmt::format("window_share={}", statistics.window));
  return text + fmt::format(" seed={}", spec.seed);
}

CaseSpec draw_spec(const Pick& pick) {
  CaseSpec spec;
  draw_sizes(spec, pick);
  spec.dtype = one_of(pick, std::array{DType::f32, DType::f64, DType::bf16, DType::f16});
  spec.layout = static_cast<Layout>(pick(6));
  spec.values = one_of(pick, std::array{Values::normal, Values::normal, Values::normal, Values::sharp, Values::extreme,
                                        Values::denormal});
  draw_scores(spec, pick);
  draw_gate(spec, pick);
  spec.lse = one_of(pick, std::array{DType::f32, DType::f64, DType::none});
  spec.dlse = one_of(pick, std::array{DType::none, DType::none, DType::f32, DType::f64});
  spec.attn = maybe(pick, 3);
  spec.weights = maybe(pick, 2);  // without weights, a separate kernel computes few queries
  spec.absent_gradients = maybe(pick, 4) ? static_cast<unsigned>(pick(64)) : 0U;
  spec.threads = 1 + static_cast<int>(pick(3));
  draw_cache(spec, pick);
  spec.seed = static_cast<std::uint64_t>(1 + pick(1000));
  if (maybe(pick, 4)) {
    spec.B = 1;
    spec.cu_seqlens = one_of(pick, std::array{DType::i32, DType::i64});
    spec.packed = one_of(pick, std::array<std::int64_t, 6>{2, 1, 3, 5, 9, 20});
  }
  draw_threshold(spec, pick);  // drawn after the fields above, whose values must not depend on it
  draw_statistics(spec.statistics, pick);
  if (spec.dtype == DType::bf16 && maybe(pick, 2)) spec.precision = Precision::native16;
  spec.huge_hidden_keys = maybe(pick, 3);
  if (maybe(pick, 4)) spec.key_bias = one_of(pick, std::array{DType::f32, DType::f64, DType::bf16, DType::f16});
  spec.key_bias_by_batch = spec.key_bias != DType::none && maybe(pick, 2);
  draw_lists(spec, pick);
  if (maybe(pick, 2)) spec.max_logit = one_of(pick, std::array{DType::f32, DType::f64});
  spec.max_logit_by_head = spec.max_logit != DType::none && maybe(pick, 2);
  spec.sinks_by_query = spec.sinks != DType::none && maybe(pick, 2);
  spec.sinks_by_batch = spec.sinks_by_query && maybe(pick, 2);
  draw_first_rows(spec, pick);
  return spec;
}

CaseSpec random_spec(std::uint64_t seed) { return drawn_at_random(seed, draw_spec); }

std::vector<CaseSpec> standard_cases() {
  std::vector<CaseSpec> list;
  add_features(list);
  const CaseSpec small = shaped(1, 2, 2, 19, 23, 16, 12);
  for (const GateOp op : {GateOp::mul, GateOp::add}) {
    for (const GateInput grain : {GateInput::headwise, GateInput::elementwise}) {
      for (const auto& fn : Words<GateFn>::kAll) list.push_back(gated(small, grain, fn.value, op));
    }
  }
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    for (int layout = 0; layout < 6; ++layout) {
      CaseSpec spec = gated(shaped(2, 2, 2, 33, 33, 32, 32), GateInput::elementwise, GateFn::sigmoid, GateOp::mul);
      spec.dtype = dtype;
      spec.layout = static_cast<Layout>(layout);
      list.push_back(spec);
      list.push_back(with_all_features(spec));
    }
    for (const std::int64_t width : {1, 64, 72, 80, 96, 128, 256, 512, 576}) {
      CaseSpec spec = gated(shaped(1, 1, 1, 21, 70, width, width), GateInput::headwise, GateFn::sigmoid, GateOp::mul);
      spec.dtype = dtype;
      list.push_back(spec);
    }
    CaseSpec spec = gated(shaped(1, 1, 2, 300, 300, 64, 64), GateInput::elementwise, GateFn::sigmoid, GateOp::mul);
    spec.dtype = dtype;
    spec.threads = 2;
    list.push_back(spec);
    spec.causality = Causality::causal;
    list.push_back(spec);
    add_few_queries(list, dtype);
    add_documents(list, dtype);
    add_packed(list, dtype);
    add_caches(list, dtype);
    add_packed_caches(list, dtype);
    add_closed_rows(list, dtype);
    add_query_sinks(list, dtype);
    // In `hidden`, the bias hides all keys of some queries, and there is no sink.
    CaseSpec hidden = shaped(1, 1, 2, 40, 40, 16, 16);
    hidden.dtype = dtype;
    hidden.bias = {true, true, true, true};
    hidden.bias_hides = true;
    list.push_back(hidden);
  }
  for (std::size_t n = 0, exact = list.size(); n < exact; ++n) {
    if (list[n].dtype != DType::bf16) continue;
    list.push_back(list[n]);
    list.back().precision = Precision::native16;
  }
  std::uint64_t seed = 1;
  for (CaseSpec& spec : list) spec.seed = seed++;
  return list;
}

}  // namespace headgate::verify
