// SPDX-License-Identifier: Apache-2.0
#include "bench/cases.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "bench/attention.hpp"
#include "bench/training.hpp"
#include "bench/workload.hpp"

namespace headgate::bench {
namespace {

using verify::CaseSpec;
using verify::GateInput;

constexpr std::int64_t kHeads = 8;

// Guaranteed ratios of rates: 16-bit storage at most 5% slower than f32, the gate at most 2%, two cores at least 1.8
// times as fast as one, odd shapes at most 15% slower than their neighbours.
constexpr double kStorageFloor = 1.0 / 1.05;
constexpr double kGateFloor = 1.0 / 1.02;
constexpr double kTwoCoresFloor = 1.8;
constexpr double kOddShapeFloor = 0.85;

/// T = S = length, D = Dv = dim, an elementwise sigmoid gate that is multiplied.
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

void add_guaranteed_rates(std::vector<BenchGroup>& groups) {
  const auto f = BenchOp::forward;
  const auto b = BenchOp::backward;
  groups.push_back(alone("forward/D64", f, square(kHeads, 2048, 64), 0.85));
  groups.push_back(alone("forward/D128", f, square(kHeads, 2048, 128), 0.88));
  groups.push_back(alone("forward/D256", f, square(kHeads, 2048, 256), 0.88));
  groups.push_back(alone("forward/causal/D64", f, causal(square(kHeads, 2048, 64)), 0.80));
  groups.push_back(alone("forward/causal/D128", f, causal(square(kHeads, 2048, 128)), 0.84));
  groups.push_back(alone("forward/T512/D64", f, square(kHeads, 512, 64), 0.76));
  groups.push_back(alone("backward/D64", b, square(kHeads, 2048, 64), 0.75));
  groups.push_back(alone("backward/D128", b, square(kHeads, 2048, 128), 0.80));
  groups.push_back(alone("backward/causal/D64", b, causal(square(kHeads, 2048, 64)), 0.70));
  groups.push_back(alone("backward/causal/D128", b, causal(square(kHeads, 2048, 128)), 0.76));
}

void add_decoding(std::vector<BenchGroup>& groups) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const std::int64_t group : {1, 4, 8}) {
      for (const std::int64_t new_tokens : {1, 8}) {
        CaseSpec spec;
        spec.Hkv = kHeads;
        spec.group = group;
        spec.T = new_tokens;
        spec.S = 16384;
        spec.D = spec.Dv = 128;
        spec.dtype = dtype;
        spec.causality = Causality::causal;
        spec.gate_input = GateInput::elementwise;
        groups.push_back(alone(fmt::format("decode/{}/group{}/new{}", dtype_name(dtype), group, new_tokens),
                               BenchOp::forward, spec, {}));
      }
    }
  }
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

// The neighbours of D = 72 and 80 are 64 and 96, that of T = S = 1000 is 1024.
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

}  // namespace

std::vector<BenchGroup> bench_groups(int threads) {
  std::vector<BenchGroup> groups;
  add_guaranteed_rates(groups);
  if (threads > 1) add_one_head(groups);
  add_storage_types(groups);
  add_gate_cost(groups);
  add_odd_shapes(groups);
  add_double_precision(groups);
  add_decoding(groups);
  add_small_sequences(groups);
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
