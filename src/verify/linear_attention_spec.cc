// SPDX-License-Identifier: Apache-2.0
#include "verify/linear_attention_spec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "library/core/linear_words.hpp"
#include "library/core/precision_words.hpp"

namespace headgate::verify {
namespace {

constexpr std::array kRules{LinearRule::gated_delta, LinearRule::linear, LinearRule::gated, LinearRule::delta};

/// Sequence lengths around multiples of the chunk size, 64 tokens.
constexpr std::array<std::int64_t, 20> kTokens{1,  2,  3,  5,  7,  8,   15,  16,  17,  31,
                                               33, 48, 63, 64, 65, 100, 127, 128, 129, 200};

/// Largest number of multiply-adds of one pass over the states. The oracle makes a dozen such passes in about ten
/// milliseconds.
constexpr std::int64_t kWorkLimit = 400'000;

void draw_heads(LinearCaseSpec& spec, const Pick& pick) {
  spec.Hk = 1 + pick(3);
  spec.Hv = spec.Hk * (1 + pick(3));
  switch (pick(3)) {
    case 0: spec.Hq = spec.Hv; break;
    case 1: spec.Hq = spec.Hv * (1 + pick(3)); break;
    default:
      spec.Hq = 1 + pick(spec.Hv);
      while (spec.Hv % spec.Hq != 0) --spec.Hq;
  }
}

void draw_sizes(LinearCaseSpec& spec, const Pick& pick) {
  spec.B = 1 + pick(3);
  draw_heads(spec, pick);
  spec.T = one_of(pick, kTokens);
  spec.D = one_of(pick, kWidths);
  spec.Dv = maybe(pick, 2) ? spec.D : one_of(pick, kWidths);
  const auto work = [&spec] { return spec.B * spec.Ho() * spec.T * spec.D * spec.Dv; };
  if (work() > kWorkLimit) spec.B = 1;
  if (work() > kWorkLimit) spec.Hq = spec.Hk = spec.Hv = 1;
  while (work() > kWorkLimit) {
    std::int64_t& largest = spec.T > spec.D + spec.Dv ? spec.T : spec.D > spec.Dv ? spec.D : spec.Dv;
    largest = (largest + 1) / 2;
  }
}

void draw_decay(LinearCaseSpec& spec, const Pick& pick) {
  if (!spec.may_decay()) return;
  spec.decay = one_of(pick, std::array{DecayInput::headwise, DecayInput::none, DecayInput::per_feature,
                                       DecayInput::headwise, DecayInput::per_feature});
  if (spec.decay == DecayInput::none) return;
  spec.decay_f32 = maybe(pick, 2);
  spec.strength = one_of(pick, std::array{DecayStrength::normal, DecayStrength::normal, DecayStrength::normal,
                                          DecayStrength::zero, DecayStrength::strong, DecayStrength::mixed});
}

void draw_beta(LinearCaseSpec& spec, const Pick& pick) {
  if (!spec.has_delta()) return;
  spec.beta = one_of(pick, std::array{BetaInput::headwise, BetaInput::none, BetaInput::shared});
  if (spec.beta == BetaInput::none) return;
  spec.beta_f32 = maybe(pick, 2);
  spec.beta_to_two = maybe(pick, 3);
}

void draw_states(LinearCaseSpec& spec, const Pick& pick) {
  constexpr std::array kKinds{DType::none, DType::f32, DType::f64};
  spec.state = one_of(pick, kKinds);
  spec.in_place = spec.state != DType::none && maybe(pick, 3);
  spec.new_state = one_of(pick, kKinds);
  spec.dstate = one_of(pick, kKinds);
}

LinearCaseSpec sized(std::int64_t T, std::int64_t D, std::int64_t Dv) {
  LinearCaseSpec spec;
  spec.T = T;
  spec.D = D;
  spec.Dv = Dv;
  return spec;
}

/// Returns the spec with the features of Gated DeltaNet: decay and β per head, normalised q and k, and an initial and a
/// final state.
LinearCaseSpec full(LinearCaseSpec spec) {
  spec.decay = DecayInput::headwise;
  spec.beta = BetaInput::headwise;
  spec.l2_norm = 1e-6;
  spec.state = spec.new_state = spec.dstate = DType::f32;
  return spec;
}

LinearCaseSpec with_heads(LinearCaseSpec spec, std::int64_t Hq, std::int64_t Hk, std::int64_t Hv) {
  spec.Hq = Hq;
  spec.Hk = Hk;
  spec.Hv = Hv;
  return spec;
}

void add_rules(std::vector<LinearCaseSpec>& list, DType dtype) {
  for (const LinearRule rule : kRules) {
    for (const DecayInput decay : {DecayInput::none, DecayInput::headwise, DecayInput::per_feature}) {
      for (const BetaInput beta : {BetaInput::none, BetaInput::headwise, BetaInput::shared}) {
        LinearCaseSpec spec = with_heads(sized(70, 20, 12), 2, 2, 2);
        spec.B = 2;
        spec.dtype = dtype;
        spec.rule = rule;
        spec.decay = decay;
        spec.beta = beta;
        if ((decay != DecayInput::none && !spec.may_decay()) || (beta != BetaInput::none && !spec.has_delta()))
          continue;
        list.push_back(spec);
      }
    }
  }
}

void add_strengths(std::vector<LinearCaseSpec>& list, DType dtype) {
  for (const DecayInput decay : {DecayInput::headwise, DecayInput::per_feature}) {
    for (const DecayStrength strength :
         {DecayStrength::normal, DecayStrength::zero, DecayStrength::strong, DecayStrength::mixed}) {
      LinearCaseSpec spec = full(sized(130, 16, 24));
      spec.dtype = dtype;
      spec.decay = decay;
      spec.strength = strength;
      spec.decay_f32 = strength == DecayStrength::zero;
      spec.beta_to_two = true;
      list.push_back(spec);
      spec.rule = LinearRule::gated;
      spec.beta = BetaInput::none;
      list.push_back(spec);
      spec.zero_keys_at_end = true;
      list.push_back(spec);
    }
  }
}

void add_shared_heads(std::vector<LinearCaseSpec>& list, DType dtype) {
  const LinearCaseSpec plain = full(sized(67, 16, 16));
  for (const LinearCaseSpec& heads :
       {with_heads(plain, 4, 2, 2), with_heads(plain, 6, 1, 2), with_heads(plain, 1, 1, 4), with_heads(plain, 2, 2, 6),
        with_heads(plain, 3, 1, 3)}) {
    LinearCaseSpec spec = heads;
    spec.dtype = dtype;
    spec.threads = 2;
    list.push_back(spec);
    spec.beta = BetaInput::shared;
    spec.beta_f32 = true;
    spec.decay = DecayInput::per_feature;
    spec.l2_norm.reset();
    list.push_back(spec);
  }
}

void add_layouts(std::vector<LinearCaseSpec>& list, DType dtype) {
  for (int layout = 0; layout < 6; ++layout) {
    LinearCaseSpec spec = with_heads(full(sized(66, 32, 32)), 2, 2, 4);
    spec.B = 2;
    spec.dtype = dtype;
    spec.layout = static_cast<Layout>(layout);
    list.push_back(spec);
    spec.decay = DecayInput::per_feature;
    spec.l2_norm.reset();
    spec.in_place = true;
    list.push_back(spec);
  }
}

void add_sizes(std::vector<LinearCaseSpec>& list, DType dtype) {
  const auto add = [&list, dtype](LinearCaseSpec spec) {
    spec.dtype = dtype;
    list.push_back(spec);
  };
  for (const std::int64_t width : {1, 17, 64, 72, 96, 128, 256}) {
    add(full(sized(9, width, width)));
    LinearCaseSpec spec = full(sized(66, width, 5));
    spec.decay = DecayInput::per_feature;
    add(spec);
    add(full(sized(66, 5, width)));
  }
  for (const std::int64_t tokens : {0, 1, 2, 63, 64, 65, 128, 129, 300}) add(full(sized(tokens, 16, 16)));
  LinearCaseSpec many = with_heads(full(sized(100, 32, 32)), 6, 3, 6);
  many.B = 2;
  many.threads = 2;
  add(many);
}

/// Adds cases for all combinations of initial and final states: each is absent, f32 or f64. Some cases update the state
/// in place.
void add_states(std::vector<LinearCaseSpec>& list, DType dtype) {
  for (const DType in : {DType::none, DType::f32, DType::f64}) {
    for (const DType out : {DType::none, DType::f32, DType::f64}) {
      LinearCaseSpec spec = full(sized(5, 12, 20));
      spec.dtype = dtype;
      spec.state = in;
      spec.new_state = out;
      spec.dstate = out;
      list.push_back(spec);
      if (in == DType::none || out != DType::f32) continue;
      spec.in_place = true;
      list.push_back(spec);
    }
  }
}

void add_packed(std::vector<LinearCaseSpec>& list, DType dtype) {
  for (const std::int64_t tokens : {40, 310}) {
    LinearCaseSpec spec = with_heads(full(sized(tokens, 12, 20)), 2, 1, 2);
    spec.dtype = dtype;
    spec.cu_seqlens = DType::i32;
    spec.packed = 6;
    spec.threads = 2;
    list.push_back(spec);
    spec.cu_seqlens = DType::i64;
    spec.decay = DecayInput::per_feature;
    spec.in_place = true;
    list.push_back(spec);
  }
  LinearCaseSpec spec = full(sized(200, 8, 8));
  spec.dtype = dtype;
  spec.cu_seqlens = DType::i32;
  spec.packed = 5;
  spec.packed_tokens = {1, 128, 0, 1, 70};
  list.push_back(spec);
  spec.snapshots = {.dtype = DType::f64, .lengths = DType::i32, .count = 4};
  list.push_back(spec);
}

}  // namespace

std::string describe(const LinearCaseSpec& spec) {
  std::string text = fmt::format("linear attention B={} Hq={} Hk={} Hv={} T={} D={} Dv={} {} rule={}", spec.B, spec.Hq,
                                 spec.Hk, spec.Hv, spec.T, spec.D, spec.Dv, dtype_name(spec.dtype), word_of(spec.rule));
  const auto add = [&text](bool present, const std::string& part) {
    if (present) text += " " + part;
  };
  add(spec.scale.has_value(), fmt::format("scale={}", spec.scale.value_or(0.0)));
  add(spec.l2_norm.has_value(), fmt::format("l2_norm={}", spec.l2_norm.value_or(0.0)));
  add(spec.precision != Precision::exact, fmt::format("precision={}", word_of(spec.precision)));
  add(spec.layout != Layout::bhtd, fmt::format("layout={}", word_of(spec.layout)));
  add(spec.correlated_keys, "keys=correlated");
  add(spec.zero_keys_at_end, "zero_keys_at_end");
  add(spec.decay != DecayInput::none,
      fmt::format("decay={}{}{}", word_of(spec.decay), spec.decay_f32 ? ":f32" : "",
                  spec.strength != DecayStrength::normal ? fmt::format(":{}", word_of(spec.strength)) : ""));
  add(spec.beta != BetaInput::none,
      fmt::format("beta={}{}{}", word_of(spec.beta), spec.beta_f32 ? ":f32" : "", spec.beta_to_two ? ":to2" : ""));
  add(spec.state != DType::none, fmt::format("state={}{}", dtype_name(spec.state), spec.in_place ? ":in_place" : ""));
  add(spec.new_state != DType::none && !spec.in_place, fmt::format("new_state={}", dtype_name(spec.new_state)));
  add(spec.dstate != DType::none, fmt::format("dstate={}", dtype_name(spec.dstate)));
  add(spec.absent_gradients != 0, fmt::format("absent_gradients={:#x}", spec.absent_gradients));
  add(spec.threads != 1, fmt::format("threads={}", spec.threads));
  add(spec.cu_seqlens != DType::none,
      fmt::format("packed={}:{}{}", spec.packed, dtype_name(spec.cu_seqlens),
                  spec.packed_tokens.empty() ? "" : fmt::format(":{}", fmt::join(spec.packed_tokens, ","))));
  add(spec.snapshots.present(), describe(spec.snapshots));
  return text + fmt::format(" seed={}", spec.seed);
}

LinearCaseSpec draw_linear_spec(const Pick& pick) {
  LinearCaseSpec spec;
  draw_sizes(spec, pick);
  spec.dtype = one_of(pick, std::array{DType::f32, DType::f64, DType::bf16, DType::f16});
  spec.layout = static_cast<Layout>(pick(6));
  spec.rule = one_of(pick, std::array{LinearRule::gated_delta, LinearRule::linear, LinearRule::gated, LinearRule::delta,
                                      LinearRule::gated_delta});
  if (maybe(pick, 3)) spec.scale = one_of(pick, std::array{1.0, -0.4, 0.0, 3.0});
  if (maybe(pick, 2)) spec.l2_norm = one_of(pick, std::array{1e-6, 0.0, 0.1});
  spec.correlated_keys = maybe(pick, 4);
  draw_decay(spec, pick);
  draw_beta(spec, pick);
  draw_states(spec, pick);
  spec.absent_gradients = maybe(pick, 4) ? static_cast<unsigned>(pick(64)) : 0U;
  spec.threads = 1 + static_cast<int>(pick(3));
  spec.seed = static_cast<std::uint64_t>(1 + pick(1000));
  if (maybe(pick, 4)) {
    spec.B = 1;
    spec.cu_seqlens = one_of(pick, std::array{DType::i32, DType::i64});
    spec.packed = one_of(pick, std::array<std::int64_t, 6>{2, 1, 3, 5, 9, 20});
  }
  spec.zero_keys_at_end = maybe(pick, 6);
  spec.snapshots = draw_snapshots(pick, {DType::f32, DType::f64});
  if (spec.dtype == DType::bf16 && maybe(pick, 2)) spec.precision = Precision::native16;
  return spec;
}

LinearCaseSpec random_linear_spec(std::uint64_t seed) { return drawn_at_random(seed, draw_linear_spec); }

std::vector<LinearCaseSpec> standard_linear_cases() {
  std::vector<LinearCaseSpec> list;
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    add_rules(list, dtype);
    add_strengths(list, dtype);
    add_shared_heads(list, dtype);
    add_layouts(list, dtype);
    add_sizes(list, dtype);
    add_states(list, dtype);
    add_packed(list, dtype);
  }
  for (std::size_t n = 0, exact = list.size(); n < exact; ++n) {
    if (list[n].dtype != DType::bf16) continue;
    list.push_back(list[n]);
    list.back().precision = Precision::native16;
  }
  std::uint64_t seed = 1;
  for (LinearCaseSpec& spec : list) spec.seed = seed++;
  return list;
}

}  // namespace headgate::verify
