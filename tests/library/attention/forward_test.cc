// SPDX-License-Identifier: Apache-2.0
// Compares the forward pass with the oracle, on every vector target, by the tolerance rule of
// docs/reference/numerics.md.

#include <array>
#include <cstddef>
#include <vector>

#include "library/attention/property.hpp"
#include "library/attention/reordered.hpp"
#include "library/core/element.hpp"
#include "verify/fill.hpp"

namespace headgate {
namespace {

using verify::CaseSpec;
using verify::check_forward_case;
using verify::GateInput;

class Forward : public ::testing::TestWithParam<DType> {};

TEST_P(Forward, Output_RandomProblems_MatchesTheOracle) {
  EXPECT_TRUE(holds_on_random_problems("forward is the oracle's", GetParam(), check_forward_case));
}

INSTANTIATE_TEST_SUITE_P(EveryDType, Forward, ::testing::Values(DType::f32, DType::f64, DType::bf16, DType::f16),
                         dtype_test_name);

TEST(Forward, Output_StandardCases_MatchesTheOracle) {
  for (const CaseSpec& spec : verify::standard_cases()) expect_right(spec, check_forward_case);
}

/// A split of the keys ends within a vector, after a whole vector has left its weights in the same memory.
TEST(Forward, FewQueries_KeysFillNoVector_MatchTheOracle) {
  CaseSpec whole = sized(1, 2048, 16, 16);
  for (const std::int64_t heads : {1, 4, 8}) {
    whole.group = heads;
    for (const bool quantized : {false, true}) {
      whole.quantized = quantized;
      for (const DType dtype : kDTypes) {
        whole.dtype = dtype;
        for (const std::int64_t S : {1, 4, 12, 20, 1028}) {
          CaseSpec spec = whole;
          spec.S = S;
          expect_right(whole, check_forward_case);
          expect_right(spec, check_forward_case);
        }
      }
    }
  }
}

/// Absorbed latent attention (MLA) decodes with 128 query heads on one key head.
TEST(Forward, FewQueries_ManyHeadsOfAKey_MatchTheOracle) {
  for (const DType dtype : kDTypes) {
    for (const std::int64_t T : {1, 2, 4}) {
      CaseSpec spec = sized(T, 1100, 40, 32);
      spec.dtype = dtype;
      spec.group = T == 4 ? 64 : 128;
      spec.causality = Causality::causal;
      spec.threads = 3;
      expect_right(spec, check_forward_case);
      spec.closed_share = 0.5;
      expect_right(spec, check_forward_case);
    }
  }
}

// Covers register tiles of every height, rows of whole cache lines, of whole vectors and neither.
TEST(Forward, FewQueries_Int8Keys_MatchTheOracle) {
  for (const std::int64_t T : {1, 2, 3, 4, 5, 6, 7, 8, 9}) {
    for (const std::int64_t D : {16, 48, 64, 80, 128, 496, 512}) {
      for (const std::int64_t S : {15, 16, 130}) {
        CaseSpec spec = sized(T, S, D, 32);
        spec.quantized = true;
        expect_right(spec, check_forward_case);
        spec.causality = Causality::causal;
        spec.softcap = 2.0;
        expect_right(spec, check_forward_case);
      }
    }
  }
}

// Rows are split into register tiles of eight, four and the remainder; columns into cache lines, vectors and the
// remainder.
TEST(Forward, FewQueries_EveryNumberOfRows_MatchTheOracle) {
  for (const DType dtype : kDTypes) {
    for (const std::int64_t T : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 14}) {
      for (const std::int64_t S : {9, 70, 1030}) {
        for (const std::int64_t D : {8, 16, 40, 48, 128, 176}) {
          CaseSpec spec = sized(T, S, D, D);
          spec.dtype = dtype;
          expect_right(spec, check_forward_case);
        }
      }
    }
  }
}

// Long sequences have longer splits.
TEST(Forward, FewQueries_LongSequences_MatchTheOracle) {
  for (const DType dtype : kDTypes) {
    for (const std::int64_t S : {16380, 16384, 18436}) {
      CaseSpec spec = sized(3, S, 16, 16);
      spec.dtype = dtype;
      expect_right(spec, check_forward_case);
      spec.causality = Causality::causal;
      spec.window_left = 2500;
      expect_right(spec, check_forward_case);
      spec.B = 2;
      spec.key_lengths = DType::i32;
      expect_right(spec, check_forward_case);
      spec.query_offsets = DType::i64;
      expect_right(spec, check_forward_case);
    }
  }
}

/// A static cache holds many more keys than a sequence has. With one partial softmax for each hidden split, this call
/// would need more memory than any machine has.
TEST(Forward, FewQueries_HugeCacheOfFewKeys_TakesNoMemoryForHiddenKeys) {
  constexpr std::int64_t kKeys = 10, kHuge = std::int64_t{1} << 40, kFar = std::int64_t{1} << 39;
  for (const std::int64_t T : {1, 16}) {
    std::vector<float> q(static_cast<std::size_t>(T)), v(kKeys);
    for (std::size_t n = 0; n < q.size(); ++n) q[n] = static_cast<float>(n) / 8;
    for (std::size_t n = 0; n < v.size(); ++n) v[n] = static_cast<float>(n);
    const auto y_of = [&](std::int64_t S, std::int64_t key_length, std::int64_t offset, std::int64_t window_left) {
      std::vector<float> y(q.size());
      const ConstTensorView keys(v.data(), DType::f32, {1, 1, S, 1}, {0, 0, S == kKeys ? 1 : 0, 1});
      AttentionInputs in{.q = make_view<const float>(q.data(), Shape{1, 1, T, 1}), .k = keys, .v = keys};
      in.key_lengths = make_vector_view(&key_length, 1);
      in.query_offsets = make_vector_view(&offset, 1);
      AttentionOptions options;
      options.window_left = window_left;
      attention_forward({.y = make_view(y.data(), Shape{1, 1, T, 1})}, in, options);
      return y;
    };
    const std::vector<float> first(q.size(), v[0]);  // all keys of a huge cache are key 0
    EXPECT_EQ(y_of(kHuge, kKeys, 0, -1), first);
    EXPECT_EQ(y_of(kHuge, kFar + T, kFar, 5), first);
    EXPECT_NE(y_of(kKeys, kKeys, 0, -1), first);
  }
}

TEST(Forward, OptionalOutputs_EveryCombination_MatchTheOracle) {
  CaseSpec spec;
  spec.B = spec.Hkv = spec.group = 2;
  spec.T = 21;
  spec.S = 34;
  spec.D = spec.Dv = 16;
  spec.gate_input = GateInput::elementwise;
  for (const DType lse : {DType::none, DType::f32, DType::f64}) {
    for (const bool attn : {false, true}) {
      for (const bool weights : {false, true}) {
        spec.lse = lse;
        spec.attn = attn;
        spec.weights = weights;
        expect_right(spec, check_forward_case);
      }
    }
  }
}

/// The sizes do not fill the blocks that the kernels copy.
TEST(Forward, Bias_AnyOrderOfDimensions_HasTheBitsOfAContiguousOne) {
  CaseSpec spec = sized(35, 37, 8, 8);
  spec.B = 2;
  spec.group = 9;
  spec.bias = {true, true, true, true};
  for (const DType dtype : kDTypes) {
    spec.dtype = dtype;
    verify::Case problem(spec);
    const auto bits = [&](const std::string& target, const ConstTensorView& bias) {
      const TargetGuard guard;
      set_target(target);
      AttentionInputs in = problem.inputs();
      in.bias = bias;
      problem.poison_outputs();
      attention_forward(problem.outputs(), in, problem.options());
      return problem.output_bytes();
    };
    for (const std::array<std::size_t, 4>& order : kBiasOrders) {
      std::vector<std::byte> memory;
      const ConstTensorView bias = problem.inputs().bias;
      const TensorView moved = reordered(bias, order, memory);
      verify::for_each_index(bias.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
        store(moved, b, h, i, j, load(bias, b, h, i, j));
      });
      for (const std::string& target : supported_targets()) {
        EXPECT_EQ(bits(target, bias), bits(target, moved)) << target << ", " << dtype_name(dtype) << ", " << order[3];
      }
    }
  }
}

/// Optional outputs do not change the others.
TEST(Forward, OptionalOutputs_AnyCombination_DoNotChangeY) {
  CaseSpec spec;
  spec.T = 40;
  spec.S = 300;
  spec.D = spec.Dv = 24;
  spec.gate_input = GateInput::headwise;
  verify::Case problem(spec);
  const AttentionOutputs all = problem.saving_outputs();
  const auto* y = static_cast<const float*>(all.y.data);
  attention_forward(all, problem.inputs(), problem.options());
  const std::vector<float> among_others(y, y + all.y.numel());
  AttentionOutputs alone;
  alone.y = all.y;
  problem.poison_outputs();
  attention_forward(alone, problem.inputs(), problem.options());
  EXPECT_EQ(among_others, std::vector<float>(y, y + all.y.numel()));
}

}  // namespace
}  // namespace headgate
