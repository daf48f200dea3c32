// SPDX-License-Identifier: Apache-2.0
#include "tool/bench/cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <optional>
#include <utility>

#include "headgate/runtime.hpp"
#include "library/core/statistics_outputs.hpp"
#include "tool/bench/attention.hpp"
#include "tool/bench/linear_attention.hpp"
#include "tool/bench/stored_products.hpp"
#include "tool/bench/streaming.hpp"
#include "tool/bench/training.hpp"
#include "tool/bench/workload.hpp"

namespace headgate::bench {
namespace {

using verify::CaseSpec;
using verify::GateInput;
using verify::Hidden;

constexpr std::int64_t kHeads = 8;

// Guaranteed ratios of FLOP rates:
// - A pass with 16-bit storage takes at most 5% longer than one with f32.
// - A pass with a gate takes at most 2% longer than one without a gate.
// - A pass with a bias or a mask takes at most 10% longer than one without them.
// - Odd shapes, such as D = 72, reach 85% of the rate of the next regular shape.
// - Packed sequences of different lengths reach 90% of the rate of equally long ones.
constexpr double kStorageFloor = 1.0 / 1.05;
constexpr double kGateFloor = 1.0 / 1.02;
constexpr double kRuleFloor = 1.0 / 1.10;
constexpr double kOddShapeFloor = 0.85;
constexpr double kPackedFloor = 0.90;
// Guaranteed share of the machine's memory read rate when one call decodes one new token in each of many sequences.
constexpr double kSequencesFloor = 0.85;
// Guaranteed share of the machine's sgemm rate. A forward pass that reaches this share is fast enough, even if it
// misses its guaranteed share of the FMA peak (peak rate of fused multiply-adds).
constexpr double kSgemmShareFloor = 0.96;

/// Guaranteed speedup of Precision::native16 over Precision::exact on the same bf16 tensors.
constexpr double kNative16Floor = 1.6;

/// Guaranteed speedup of a gate threshold, which skips attention rows whose gate is closed.
/// `percent` is the percentage of rows that are computed. `floor` is the speedup over computing all rows.
struct OpenShare {
  int percent;
  double floor;
};
constexpr std::array kOpenShares{OpenShare{10, 6.0}, OpenShare{30, 2.6}, OpenShare{100, 0.99}};
/// Guaranteed speedup of decoding when the gate closes half of the GQA groups.
constexpr double kHalfClosedFloor = 1.7;
// Guarantees that all statistics together take at most 1.15 times as long as a forward pass.
// Statistics that do not need the exponential of every score take at most 0.6 times as long.
constexpr double kAllStatisticsFloor = 1.0 / 1.15;
constexpr double kScoreStatisticsFloor = 1.0 / 0.6;

/// Returns the spec of an attention problem with T = S = `length` and D = Dv = `dim`.
/// Its gate is an elementwise sigmoid that multiplies the output.
CaseSpec square(std::int64_t heads, std::int64_t length, std::int64_t dim) {
  CaseSpec spec;
  spec.Hkv = heads;
  spec.T = spec.S = length;
  spec.D = spec.Dv = dim;
  spec.gate_input = GateInput::elementwise;
  return spec;
}

CaseSpec causal(CaseSpec spec) {
  spec.causality = Causality::causal;
  return spec;
}

BenchGroup alone(std::string name, BenchOp op, const CaseSpec& spec, std::optional<double> floor) {
  return {{{std::move(name), attention_job(op, spec), 0, floor}}, {}};
}

BenchGroup alone_beside_sgemm(std::string name, const CaseSpec& spec, double floor) {
  return {{{std::move(name), attention_job(BenchOp::forward, spec), 0, floor, kSgemmShareFloor}}, {}};
}

void add_guaranteed_rates(std::vector<BenchGroup>& groups) {
  const auto b = BenchOp::backward;
  groups.push_back(alone_beside_sgemm("forward/D64", square(kHeads, 2048, 64), 0.85));
  groups.push_back(alone_beside_sgemm("forward/D128", square(kHeads, 2048, 128), 0.88));
  groups.push_back(alone_beside_sgemm("forward/D256", square(kHeads, 2048, 256), 0.88));
  groups.push_back(alone_beside_sgemm("forward/causal/D64", causal(square(kHeads, 2048, 64)), 0.80));
  groups.push_back(alone_beside_sgemm("forward/causal/D128", causal(square(kHeads, 2048, 128)), 0.84));
  groups.push_back(alone("forward/T512/D64", BenchOp::forward, square(kHeads, 512, 64), 0.76));
  groups.push_back(alone("backward/D64", b, square(kHeads, 2048, 64), 0.75));
  groups.push_back(alone("backward/D128", b, square(kHeads, 2048, 128), 0.80));
  groups.push_back(alone("backward/causal/D64", b, causal(square(kHeads, 2048, 64)), 0.70));
  groups.push_back(alone("backward/causal/D128", b, causal(square(kHeads, 2048, 128)), 0.76));
}

/// Adds cases that compare Precision::native16 with exact on bf16 tensors.
/// On a CPU without bf16 products, both run the same code and no ratio is guaranteed.
void add_native16(std::vector<BenchGroup>& groups) {
  const auto floor = native16_products().empty() ? std::nullopt : std::optional(kNative16Floor);
  const auto add = [&](BenchOp op, const std::string& shape, CaseSpec spec) {
    spec.dtype = DType::bf16;
    CaseSpec native16 = spec;
    native16.precision = Precision::native16;
    const std::string name = fmt::format("native16/{}/{}", word_of(op), shape);
    groups.push_back({{{name, attention_job(op, native16), 0, {}}, {name + "/exact", attention_job(op, spec), 0, {}}},
                      {{0, 1, floor}}});
  };
  for (const BenchOp op : {BenchOp::forward, BenchOp::backward}) {
    for (const std::int64_t dim : {64, 128, 256}) add(op, fmt::format("D{}", dim), square(kHeads, 2048, dim));
    for (const std::int64_t dim : {64, 128}) add(op, fmt::format("causal/D{}", dim), causal(square(kHeads, 2048, dim)));
    add(op, "T512/D64", square(kHeads, 512, 64));
    for (const std::int64_t dim : {64, 128}) {
      CaseSpec biased = square(kHeads, 2048, dim);
      biased.bias = {true, false, true, true};
      add(op, fmt::format("bias/D{}", dim), biased);
    }
  }
}

/// Returns the spec of decoding: `new_tokens` queries attend to 16384 keys. `group` query heads share a key/value head.
CaseSpec decoding(DType dtype, std::int64_t heads, std::int64_t group, std::int64_t new_tokens) {
  CaseSpec spec;
  spec.Hkv = heads;
  spec.group = group;
  spec.T = new_tokens;
  spec.S = 16384;
  spec.D = spec.Dv = 128;
  spec.dtype = dtype;
  spec.causality = Causality::causal;
  spec.gate_input = GateInput::elementwise;
  return spec;
}

/// Returns the guaranteed speed of decoding one new token, as a share of a machine limit.
/// The limits are the memory read rate and the FMA peak (peak rate of fused multiply-adds). The larger share counts.
double decoding_floor(DType dtype, std::int64_t group) {
  if (dtype == DType::f32 || group == 1) return 0.90;
  return group <= 4 ? 0.85 : 0.80;
}

constexpr double kEightTokensFloor = 8.0 / 1.15;

/// Adds decoding by absorbed latent attention (MLA): many query heads of 576 features share one key head.
void add_latent_decoding(std::vector<BenchGroup>& groups) {
  constexpr double kLatentFloor = 0.6;
  for (const std::int64_t heads : {8, 128}) {
    CaseSpec spec = decoding(DType::f32, 1, heads, 1);
    spec.D = 576;
    spec.Dv = 512;
    BenchGroup decode;
    decode.cases.push_back(
        {fmt::format("decode/f32/latent/heads{}", heads), attention_job(BenchOp::forward, spec), 0, kLatentFloor});
    groups.push_back(std::move(decode));
  }
}

void add_decoding(std::vector<BenchGroup>& groups, int threads) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const std::int64_t group : {1, 4, 8}) {
      BenchGroup decode;
      for (const std::int64_t new_tokens : {1, 8}) {
        const auto floor = new_tokens == 1 ? std::optional(decoding_floor(dtype, group)) : std::nullopt;
        decode.cases.push_back({fmt::format("decode/{}/group{}/new{}", dtype_name(dtype), group, new_tokens),
                                attention_job(BenchOp::forward, decoding(dtype, kHeads, group, new_tokens)), 0, floor});
      }
      if (group == 1) decode.ratios.push_back({1, 0, kEightTokensFloor});
      groups.push_back(std::move(decode));
    }
  }
  for (const std::int64_t group : {1, 4, 8}) {
    CaseSpec spec = decoding(DType::f32, kHeads, group, 1);
    spec.quantized = true;
    CaseSpec with_first_rows = spec;
    with_first_rows.first_rows = DType::f32;
    with_first_rows.first = 4;
    BenchGroup decode;
    for (const auto& [name, of] : {std::pair{"i8", spec}, std::pair{"i8-first4", with_first_rows}}) {
      decode.cases.push_back(
          {fmt::format("decode/{}/group{}/new1", name, group), attention_job(BenchOp::forward, of), 0, 0.80});
    }
    constexpr double kFirstRowsFloor = 0.95;
    decode.ratios.push_back({1, 0, kFirstRowsFloor});
    groups.push_back(std::move(decode));
  }
  if (threads == 1) return;
  constexpr double kOneHeadFloor = 1.7;
  BenchGroup one_head;
  for (const int used : {1, 2}) {
    one_head.cases.push_back({fmt::format("decode/f32/one-head/threads-{}", used),
                              attention_job(BenchOp::forward, decoding(DType::f32, 1, 1, 1)),
                              used,
                              {}});
  }
  one_head.ratios.push_back({1, 0, kOneHeadFloor});
  groups.push_back(std::move(one_head));
}

void add_small_sequences(std::vector<BenchGroup>& groups) {
  for (const BenchOp op : {BenchOp::forward, BenchOp::backward}) {
    constexpr std::pair<std::int64_t, std::optional<double>> kLengthsAndFloors[] = {
        {16, 0.25}, {32, 0.40}, {64, {}}, {128, 0.60}, {256, {}}};
    for (const auto& [length, floor] : kLengthsAndFloors) {
      CaseSpec spec = square(kHeads, length, 64);
      spec.B = 64;
      groups.push_back(alone(fmt::format("small/{}/T{}", word_of(op), length), op, spec, floor));
    }
  }
}

void add_double_precision(std::vector<BenchGroup>& groups) {
  CaseSpec spec = square(kHeads, 1024, 64);
  spec.dtype = DType::f64;
  groups.push_back(alone("f64/forward/D64", BenchOp::forward, spec, {}));
  groups.push_back(alone("f64/backward/D64", BenchOp::backward, spec, {}));
}

void add_one_head(std::vector<BenchGroup>& groups) {
  for (const BenchOp op : {BenchOp::forward, BenchOp::backward}) {
    BenchGroup group;
    for (const int threads : {1, 2}) {
      group.cases.push_back({fmt::format("one-head/{}/threads-{}", word_of(op), threads),
                             attention_job(op, square(1, 4096, 64)),
                             threads,
                             {}});
    }
    group.ratios.push_back({1, 0, kTwoCoresFloor});
    groups.push_back(std::move(group));
  }
}

void add_storage_types(std::vector<BenchGroup>& groups) {
  for (const BenchOp op : {BenchOp::forward, BenchOp::backward}) {
    for (const std::int64_t dim : {64, 128}) {
      BenchGroup group;
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        CaseSpec spec = square(kHeads, 2048, dim);
        spec.dtype = dtype;
        group.cases.push_back(
            {fmt::format("storage/{}/D{}/{}", word_of(op), dim, dtype_name(dtype)), attention_job(op, spec), 0, {}});
      }
      group.ratios = {{1, 0, kStorageFloor}, {2, 0, kStorageFloor}};
      groups.push_back(std::move(group));
    }
  }
}

void add_gate_cost(std::vector<BenchGroup>& groups) {
  for (const BenchOp op : {BenchOp::forward, BenchOp::backward}) {
    for (const std::int64_t length : {1024, 2048}) {
      for (const std::int64_t dim : {64, 128}) {
        BenchGroup group;
        for (const GateInput grain : {GateInput::elementwise, GateInput::none}) {
          CaseSpec spec = square(kHeads, length, dim);
          spec.gate_input = grain;
          group.cases.push_back(
              {fmt::format("gate/{}/T{}/D{}/{}", word_of(op), length, dim, grain == GateInput::none ? "off" : "on"),
               attention_job(op, spec),
               0,
               {}});
        }
        group.ratios.push_back({0, 1, kGateFloor});
        groups.push_back(std::move(group));
      }
    }
  }
}

/// Adds forward passes with a bias, with a boolean mask, with both, and with a bias and a key bias.
/// Compares each with the same pass without bias and mask.
void add_score_rules(std::vector<BenchGroup>& groups, Precision precision) {
  const bool has_halves = precision == Precision::native16;
  for (const std::int64_t dim : {64, 128}) {
    CaseSpec spec = square(kHeads, 2048, dim);
    spec.precision = precision;
    if (has_halves) spec.dtype = DType::bf16;
    CaseSpec biased = spec, masked = spec;
    biased.bias = {true, false, true, true};
    masked.mask = {true, false, false, true};
    masked.hidden = Hidden::scattered_keys;
    CaseSpec both = biased, of_keys = biased, documents = masked;
    both.hidden = masked.hidden;
    documents.hidden = Hidden::documents;
    both.mask = masked.mask;
    of_keys.key_bias = DType::f32;
    BenchGroup group;
    const auto add = [&](const char* rules, const CaseSpec& each) {
      const auto floor = has_halves ? std::nullopt : std::optional(kRuleFloor);
      if (!group.cases.empty()) group.ratios.push_back({group.cases.size(), 0, floor});
      const std::string name = fmt::format("{}rule/D{}/{}", has_halves ? "native16/" : "", dim, rules);
      group.cases.push_back({name, attention_job(BenchOp::forward, each), 0, {}});
    };
    add("none", spec);
    add("bias", biased);
    add("mask", masked);
    add("documents", documents);
    add("bias,mask", both);
    add("bias,key-bias", of_keys);
    groups.push_back(std::move(group));
  }
}

/// Adds cases with gate thresholds.
/// Every case counts the FLOPs of all rows, skipped ones included. The ratio of two rates is therefore a speedup.
void add_gate_threshold(std::vector<BenchGroup>& groups) {
  for (const bool is_causal : {false, true}) {
    const std::string prefix = fmt::format("threshold/{}T2048/D128", is_causal ? "causal/" : "");
    CaseSpec spec = square(kHeads, 2048, 128);
    spec.gate_input = GateInput::headwise;
    if (is_causal) spec = causal(spec);
    BenchGroup group;
    group.cases.push_back({prefix + "/off", attention_job(BenchOp::forward, spec), 0, {}});
    for (const OpenShare& open : kOpenShares) {
      spec.closed_share = 1.0 - 0.01 * open.percent;
      group.ratios.push_back({group.cases.size(), 0, open.floor});
      group.cases.push_back(
          {fmt::format("{}/open{}", prefix, open.percent), attention_job(BenchOp::forward, spec), 0, {}});
    }
    groups.push_back(std::move(group));
  }
  for (const std::int64_t heads_a_group : {1, 4}) {
    BenchGroup group;
    CaseSpec spec = decoding(DType::f32, kHeads, heads_a_group, 1);
    spec.gate_input = GateInput::headwise;
    spec.closed_by_group = true;
    for (const double closed : {-1.0, 0.5}) {
      spec.closed_share = closed;
      group.cases.push_back({fmt::format("threshold/decode/group{}/{}", heads_a_group, closed < 0 ? "off" : "half"),
                             attention_job(BenchOp::forward, spec),
                             0,
                             {}});
    }
    group.ratios.push_back({1, 0, kHalfClosedFloor});
    groups.push_back(std::move(group));
  }
}

// Adds cases that compare odd shapes with regular ones: D = 72 with 64, D = 80 with 96, and T = S = 1000 with 1024.
void add_odd_shapes(std::vector<BenchGroup>& groups) {
  for (const BenchOp op : {BenchOp::forward, BenchOp::backward}) {
    BenchGroup dims;
    for (const std::int64_t dim : {64, 72, 80, 96}) {
      dims.cases.push_back(
          {fmt::format("odd/{}/D{}", word_of(op), dim), attention_job(op, square(kHeads, 1024, dim)), 0, {}});
    }
    dims.ratios = {{1, 0, kOddShapeFloor}, {2, 3, kOddShapeFloor}};
    groups.push_back(std::move(dims));
    BenchGroup lengths;
    for (const std::int64_t length : {1000, 1024}) {
      lengths.cases.push_back(
          {fmt::format("odd/{}/T{}", word_of(op), length), attention_job(op, square(kHeads, length, 64)), 0, {}});
    }
    lengths.ratios.push_back({0, 1, kOddShapeFloor});
    groups.push_back(std::move(lengths));
  }
}

/// Returns `spec` as a packed batch where sequence n has lengths[n] keys and `new_tokens` queries.
/// If `new_tokens` is empty, each sequence has as many queries as keys.
CaseSpec packed(CaseSpec spec, const std::vector<std::int64_t>& lengths, std::optional<std::int64_t> new_tokens = {}) {
  spec.cu_seqlens = DType::i32;
  spec.packed = static_cast<std::int64_t>(lengths.size());
  spec.packed_keys = lengths;
  spec.packed_queries = new_tokens ? std::vector<std::int64_t>(lengths.size(), *new_tokens) : lengths;
  spec.T = std::accumulate(spec.packed_queries.begin(), spec.packed_queries.end(), std::int64_t{0});
  spec.S = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  return spec;
}

/// Adds cases that compare a packed batch of very different lengths with a batch of equally long sequences. Both have
/// about as many FLOPs in total.
void add_packed(std::vector<BenchGroup>& groups) {
  const std::vector<std::int64_t> skewed{512, 4096, 128, 1024, 256, 2048, 128, 512};
  constexpr std::int64_t kEqual = 1680;
  for (const BenchOp op : {BenchOp::forward, BenchOp::backward}) {
    for (const bool is_causal : {false, true}) {
      CaseSpec spec = square(4, kEqual, 128);
      if (is_causal) spec = causal(spec);
      CaseSpec equal = spec;
      equal.B = static_cast<std::int64_t>(skewed.size());
      const std::string name = fmt::format("packed/{}{}", word_of(op), is_causal ? "/causal" : "");
      groups.push_back({{{name + "/skewed", attention_job(op, packed(spec, skewed)), 0, {}},
                         {name + "/equal", attention_job(op, equal), 0, {}}},
                        {{0, 1, kPackedFloor}}});
    }
  }
  // Decodes one new token in each of 32 sequences, which have 100 to 8000 tokens.
  // The lengths form a geometric series in shuffled order: each length is 15% above the next smaller one.
  std::vector<std::int64_t> lengths;
  std::int64_t tokens = 0;
  for (int n = 0; n < 32; ++n) {
    lengths.push_back(static_cast<std::int64_t>(100 * std::pow(80.0, (n * 13 % 32) / 31.0)));
    tokens += lengths.back();
  }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    CaseSpec spec = causal(square(kHeads, 1, 128));
    spec.dtype = dtype;
    CaseSpec equal = spec;
    equal.B = 32;
    equal.S = tokens / 32;
    const std::string name = fmt::format("packed/decode/{}", dtype_name(dtype));
    groups.push_back(
        {{{name + "/skewed", attention_job(BenchOp::forward, packed(spec, lengths, 1)), 0, kSequencesFloor},
          {name + "/equal", attention_job(BenchOp::forward, equal), 0, {}}},
         {{0, 1, kPackedFloor}}});
  }
  // One call processes two whole prompts, and one new token in each of four other sequences.
  CaseSpec mixed = packed(causal(square(kHeads, 1, 128)), {8000, 1024, 3000, 500, 5000, 100});
  mixed.packed_queries = {1, 1024, 1, 500, 1, 1};
  mixed.T = 1024 + 500 + 4;
  groups.push_back(alone("packed/forward/mixed", BenchOp::forward, mixed, {}));
}

/// Adds cases where each query attends to a list of 2048 keys out of 32768 or more.
/// Compares these cases with attention to 2048 keys without a list.
/// Compares the statistics of these cases with the forward pass.
/// The shapes are those of GQA and of MLA with absorbed projections.
void add_listed(std::vector<BenchGroup>& groups) {
  constexpr std::int64_t kListed = 2048;
  struct Shape {
    const char* name;
    std::int64_t Hkv, group, T, S, D, Dv, block;
    std::vector<BenchOp> ops;
  };
  const std::vector<BenchOp> both{BenchOp::forward, BenchOp::backward};
  const Shape shapes[] = {
      {"gqa8", 2, 8, 128, 32768, 128, 128, 1, both},
      {"gqa8/blocks", 2, 8, 128, 32768, 128, 128, 128, both},
      {"gqa16", 1, 16, 128, 32768, 128, 128, 1, both},
      {"mla", 1, 128, 32, 32768, 576, 512, 1, both},
      {"decode/gqa8", 2, 8, 1, 131072, 128, 128, 1, {BenchOp::forward}},
      {"decode/mla", 1, 128, 1, 131072, 576, 512, 1, {BenchOp::forward}},
  };
  for (const Shape& shape : shapes) {
    for (const BenchOp op : shape.ops) {
      CaseSpec spec;
      spec.Hkv = shape.Hkv;
      spec.group = shape.group;
      spec.T = shape.T;
      spec.S = kListed;
      spec.D = shape.D;
      spec.Dv = shape.Dv;
      spec.gate_input = GateInput::headwise;
      CaseSpec listed = spec;
      listed.S = shape.S;
      listed.key_indices = DType::i32;
      listed.lists_full = true;
      listed.key_block_size = shape.block;
      listed.list_entries = kListed / shape.block;
      const std::string name = fmt::format("listed/{}/{}", word_of(op), shape.name);
      groups.push_back(
          {{{name, attention_job(op, listed), 0, {}}, {name + "/all", attention_job(op, spec), 0, {}}}, {{0, 1, {}}}});
      if (op != BenchOp::forward || shape.T == 1) continue;
      listed.statistics.window = 64;
      listed.statistics.queries = 0;
      const std::string figures = fmt::format("listed/statistics/{}", shape.name);
      groups.push_back(
          {{{figures, statistics_job(listed), 0, {}}, {figures + "/forward", attention_job(op, listed), 0, {}}},
           {{0, 1, {}}}});
    }
  }
}

/// Returns a bit mask for StatisticsSpec::absent that omits all outputs except those in `members`.
unsigned all_except(std::initializer_list<TensorView AttentionStatistics::*> members) {
  unsigned absent = ~0U;
  for (std::size_t n = 0; n < kStatisticsOutputs.size(); ++n) {
    if (std::find(members.begin(), members.end(), kStatisticsOutputs[n].member) != members.end()) absent &= ~(1U << n);
  }
  return absent;
}

/// Adds cases that compare attention_statistics() with the forward pass on the same problem.
void add_statistics(std::vector<BenchGroup>& groups) {
  using S = AttentionStatistics;
  for (const bool is_causal : {false, true}) {
    CaseSpec spec = square(kHeads, 2048, 128);
    if (is_causal) spec = causal(spec);
    spec.statistics.top_keys = 8;
    spec.statistics.window = 64;
    spec.statistics.queries = 8;
    spec.statistics.keys = 8;
    const std::string prefix = is_causal ? "statistics/causal/" : "statistics/";
    BenchGroup group;
    group.cases.push_back({prefix + "forward", attention_job(BenchOp::forward, spec), 0, {}});
    const auto add = [&](const char* name, unsigned absent, double floor) {
      spec.statistics.absent = absent;
      group.ratios.push_back({group.cases.size(), 0, floor});
      group.cases.push_back({prefix + name, statistics_job(spec), 0, {}});
    };
    add("all", 0, kAllStatisticsFloor);
    add("scores", all_except({&S::row_max, &S::mean_row_max}), kScoreStatisticsFloor);
    add("top-keys", all_except({&S::topk_index, &S::topk_weight}), kScoreStatisticsFloor);
    add("chosen", all_except({&S::first, &S::mean_first, &S::key_weights, &S::window_share, &S::rows}),
        kScoreStatisticsFloor);
    add("first", all_except({&S::first}), kScoreStatisticsFloor);
    groups.push_back(std::move(group));
  }
}

}  // namespace

std::vector<BenchGroup> bench_groups(int threads) {
  std::vector<BenchGroup> groups;
  add_guaranteed_rates(groups);
  if (threads > 1) add_one_head(groups);
  add_storage_types(groups);
  add_native16(groups);
  add_gate_cost(groups);
  add_score_rules(groups, Precision::exact);
  add_score_rules(groups, Precision::native16);
  add_gate_threshold(groups);
  add_odd_shapes(groups);
  add_double_precision(groups);
  add_decoding(groups, threads);
  add_latent_decoding(groups);
  add_small_sequences(groups);
  add_packed(groups);
  add_listed(groups);
  add_statistics(groups);
  for (BenchGroup& group : linear_attention_groups(threads)) groups.push_back(std::move(group));
  for (BenchGroup& group : streaming_groups()) groups.push_back(std::move(group));
  for (BenchGroup& group : stored_product_groups()) groups.push_back(std::move(group));
  for (BenchGroup& group : training_groups()) groups.push_back(std::move(group));
  return groups;
}

std::vector<BenchGroup> select_cases(const std::vector<BenchGroup>& groups,
                                     const std::function<bool(const std::string& name)>& wanted) {
  std::vector<BenchGroup> out;
  for (const BenchGroup& group : groups) {
    BenchGroup kept;
    std::vector<std::optional<std::size_t>> place(group.cases.size());
    for (std::size_t i = 0; i < group.cases.size(); ++i) {
      if (!wanted(group.cases[i].name)) continue;
      place[i] = kept.cases.size();
      kept.cases.push_back(group.cases[i]);
    }
    for (const BenchRatio& ratio : group.ratios) {
      const auto a = place[ratio.numerator];
      const auto b = place[ratio.denominator];
      if (a && b) kept.ratios.push_back({*a, *b, ratio.floor});
    }
    if (!kept.cases.empty()) out.push_back(std::move(kept));
  }
  return out;
}

const BenchCase* find_case(const std::vector<BenchGroup>& groups, const std::string& name) {
  for (const BenchGroup& group : groups) {
    for (const BenchCase& bench_case : group.cases) {
      if (bench_case.name == name) return &bench_case;
    }
  }
  return nullptr;
}

CaseSpec memory_spec() { return square(1, 32768, 64); }

}  // namespace headgate::bench
