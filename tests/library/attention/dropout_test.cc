// SPDX-License-Identifier: Apache-2.0
// Checks dropout of attention weights: its random numbers, both passes against the oracle on every vector target, and
// that what is dropped depends on the seed and on a weight's place alone.

#include "verify/oracle/dropout.hpp"

#include <array>
#include <cmath>
#include <set>
#include <vector>

#include "library/attention/property.hpp"

namespace headgate {
namespace {

using verify::CaseSpec;
using verify::GateInput;

/// Every dtype, masked and not, over several blocks of keys and queries.
CaseSpec with_dropout(double p, std::int64_t T, std::int64_t S) {
  CaseSpec spec = sized(T, S, 24, 20);
  spec.B = spec.Hkv = spec.group = 2;
  spec.gate_input = GateInput::elementwise;
  spec.dropout = p;
  spec.dropout_seed = 0x0123456789ABCDEF;
  spec.weights = true;
  return spec;
}

/// The weights of one head, (T,S), for values that do not matter.
std::vector<float> weights_of(std::int64_t T, std::int64_t S, double p, std::int64_t seed, std::int64_t B = 1,
                              std::int64_t H = 1) {
  const Shape queries{B, H, T, 1}, keys{B, H, S, 1}, scores{B, H, T, S};
  std::vector<float> q(B * H * T), k(B * H * S), v(B * H * S, 1.0F), y(B * H * T), weights(B * H * T * S);
  AttentionInputs in;
  in.q = make_view(q.data(), queries);
  in.k = make_view(k.data(), keys);
  in.v = make_view(v.data(), keys);
  AttentionOutputs out;
  out.y = make_view(y.data(), queries);
  out.weights = make_view(weights.data(), scores);
  AttentionOptions options;
  options.dropout = p;
  options.dropout_seed = seed;
  attention_forward(out, in, options);
  return weights;
}

// The known answers of the reference implementation, Random123.
TEST(Dropout, RandomNumbers_OfTheOracle_AreThoseOfPhilox) {
  using Words = std::array<std::uint32_t, 4>;
  constexpr std::uint32_t kOnes = 0xFFFFFFFFU;
  EXPECT_EQ(reference::philox({0, 0, 0, 0}, 0), (Words{0x6627E8D5U, 0xE169C58DU, 0xBC57AC4CU, 0x9B00DBD8U}));
  EXPECT_EQ(reference::philox({kOnes, kOnes, kOnes, kOnes}, ~std::uint64_t{0}),
            (Words{0x408F276DU, 0x41C83B0EU, 0xA20BC7C6U, 0x6D5451FDU}));
  EXPECT_EQ(reference::philox({0x243F6A88U, 0x85A308D3U, 0x13198A2EU, 0x03707344U}, 0x299F31D0A4093822U),
            (Words{0xD16CFE09U, 0x94FDCCEBU, 0x5001E420U, 0x24126EA1U}));
}

TEST(Dropout, BothPasses_AnyShape_MatchTheOracle) {
  for (const DType dtype : kDTypes) {
    for (const double p : {0.1, 0.5, 0.99}) {
      for (const auto& [T, S] : {std::pair{1, 1}, {1, 300}, {9, 33}, {100, 200}, {130, 500}}) {
        CaseSpec spec = with_dropout(p, T, S);
        spec.dtype = dtype;
        expect_both(spec);
      }
    }
  }
}

TEST(Dropout, WithEveryRule_MatchesTheOracle) {
  for (const Precision precision : {Precision::exact, Precision::native16}) {
    CaseSpec spec = with_dropout(0.3, 70, 140);
    spec.dtype = precision == Precision::native16 ? DType::bf16 : DType::f32;
    spec.precision = precision;
    spec.causality = Causality::causal;
    spec.window_left = 90;
    spec.softcap = 20.0;
    spec.bias = {true, false, true, true};
    spec.mask = {true, true, false, true};
    spec.key_lengths = DType::i32;
    spec.alibi_slopes = spec.sinks = spec.dlse = DType::f32;
    expect_both(spec);
  }
}

TEST(Dropout, PackedBatch_MatchesTheOracle) {
  CaseSpec spec = with_dropout(0.4, 150, 260);
  spec.B = 1;
  spec.cu_seqlens = DType::i32;
  spec.packed = 5;
  expect_both(spec);
}

TEST(Dropout, OfNothing_LeavesTheBitsAsTheyAre) { EXPECT_EQ(weights_of(40, 70, 0.0, 5), weights_of(40, 70, 0.0, 6)); }

TEST(Dropout, Weights_OnEachTarget_AreTheSameOnes) {
  const TargetGuard guard;
  std::set<std::vector<bool>> dropped;
  for (const std::string& target : supported_targets()) {
    set_target(target);
    std::vector<bool> zeros;
    for (const float w : weights_of(50, 450, 0.25, 42)) zeros.push_back(w == 0.0F);
    dropped.insert(zeros);
  }
  EXPECT_EQ(dropped.size(), 1U);
}

TEST(Dropout, Weights_ManyOfThem_AreDroppedWithTheProbability) {
  constexpr std::int64_t kT = 300, kS = 1000;
  for (const double p : {0.05, 0.5, 0.9}) {
    double kept = 0;
    for (const float w : weights_of(kT, kS, p, 7)) {
      if (w == 0.0F) continue;
      ++kept;
      ASSERT_NEAR(w, 1.0 / (1.0 - p) / kS, 1e-6 / (1.0 - p));
    }
    constexpr double kCount = kT * kS;
    EXPECT_NEAR(kept, (1.0 - p) * kCount, 5.0 * std::sqrt(kCount * p * (1.0 - p))) << p;
  }
}

// As many weights of two masks agree as of independent ones.
TEST(Dropout, Masks_OfOtherSeedsHeadsAndSequences_AreIndependent) {
  constexpr std::int64_t kT = 100, kS = 200;
  constexpr double kCount = kT * kS;
  const std::vector<float> both = weights_of(kT, kS, 0.5, 1, 2, 2), other = weights_of(kT, kS, 0.5, 2, 2, 2);
  const auto agreeing = [](const float* a, const float* b) {
    double same = 0;
    for (std::int64_t n = 0; n < kT * kS; ++n) same += (a[n] == 0.0F) == (b[n] == 0.0F) ? 1 : 0;
    return same;
  };
  for (const std::int64_t head : {1, 2, 3}) {
    EXPECT_NEAR(agreeing(both.data(), both.data() + head * kT * kS), kCount / 2, 2.5 * std::sqrt(kCount)) << head;
  }
  EXPECT_NEAR(agreeing(both.data(), other.data()), kCount / 2, 2.5 * std::sqrt(kCount));
}

}  // namespace
}  // namespace headgate
