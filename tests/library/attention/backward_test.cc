// SPDX-License-Identifier: Apache-2.0
// Compares the backward pass, fed by the forward pass, with the oracle, on every vector target, by the tolerance rule
// of docs/reference/numerics.md.

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "library/attention/property.hpp"
#include "library/attention/reordered.hpp"
#include "library/core/element.hpp"
#include "verify/fill.hpp"

namespace headgate {
namespace {

using verify::CaseSpec;
using verify::check_backward_case;
using verify::GateInput;

class Backward : public ::testing::TestWithParam<DType> {};

TEST_P(Backward, Gradients_RandomProblems_MatchTheOracle) {
  EXPECT_TRUE(holds_on_random_problems("gradients are the oracle's", GetParam(), check_backward_case));
}

INSTANTIATE_TEST_SUITE_P(EveryDType, Backward, ::testing::Values(DType::f32, DType::f64, DType::bf16, DType::f16),
                         dtype_test_name);

TEST(Backward, Gradients_StandardCases_MatchTheOracle) {
  for (const CaseSpec& spec : verify::standard_cases()) expect_right(spec, check_backward_case);
}

/// Asks for every gradient.
CaseSpec all_gradients() {
  CaseSpec spec;
  spec.B = spec.Hkv = spec.group = 2;
  spec.T = 33;
  spec.S = 40;
  spec.D = 20;
  spec.Dv = 12;
  spec.gate_input = GateInput::elementwise;
  spec.bias = {true, false, true, true};
  spec.sinks = DType::f32;
  spec.dlse = DType::f32;
  return spec;
}

TEST(Backward, Gradients_OneAloneOrOneAbsent_MatchTheOracle) {
  CaseSpec spec = all_gradients();
  for (unsigned bit = 1; bit <= verify::kDsinks; bit <<= 1) {
    spec.absent_gradients = bit;
    expect_right(spec, check_backward_case);
    spec.absent_gradients = 63U & ~bit;
    expect_right(spec, check_backward_case);
  }
  spec.absent_gradients = 63;  // without any gradient, nothing is written
  expect_right(spec, check_backward_case);
}

TEST(Backward, BiasGradient_BroadcastDimensions_SumsOverThem) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    for (unsigned bits = 0; bits < 8; ++bits) {
      CaseSpec spec = all_gradients();
      spec.dtype = dtype;
      spec.bias = {true, (bits & 1U) != 0, (bits & 2U) != 0, (bits & 4U) != 0};
      spec.bias_f32 = bits % 2 == 0;
      expect_right(spec, check_backward_case);
    }
  }
}

/// Heads fill whole vectors, blocks of 16 bytes, or neither. dbias is a single term or a sum over sequences.
TEST(Backward, BiasGradient_AnyOrderOfDimensions_HasTheBitsOfAContiguousOne) {
  CaseSpec spec = sized(35, 37, 8, 8);
  spec.B = 2;
  for (const std::int64_t heads : {16, 4, 9}) {
    spec.group = heads;
    for (const bool over_sequences : {false, true}) {
      spec.bias = {true, !over_sequences, true, true};
      for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
        spec.dtype = dtype;
        verify::Case problem(spec);
        problem.poison_outputs();
        attention_forward(problem.saving_outputs(), problem.inputs(), problem.options());
        for (const std::string& target : supported_targets()) {
          const TargetGuard guard;
          set_target(target);
          problem.poison_gradients();
          AttentionGradients gradients = problem.gradients();
          const TensorView contiguous = gradients.dbias;
          attention_backward(gradients, problem.inputs(), problem.saved(), problem.incoming(), problem.options());
          for (const std::array<std::size_t, 4>& order : kBiasOrders) {
            std::vector<std::byte> memory;
            gradients.dbias = reordered(contiguous, order, memory);
            attention_backward(gradients, problem.inputs(), problem.saved(), problem.incoming(), problem.options());
            std::int64_t different = 0;
            verify::for_each_index(contiguous.shape,
                                   [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
                                     if (load(gradients.dbias, b, h, i, j) != load(contiguous, b, h, i, j)) ++different;
                                   });
            EXPECT_EQ(different, 0) << target << ", " << dtype_name(dtype) << ", " << heads << " heads, " << order[3];
          }
        }
      }
    }
  }
}

TEST(Backward, AddedGate_SavedOutputPresentOrAbsent_HasTheRightGradients) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    for (const bool attn : {false, true}) {
      CaseSpec spec = all_gradients();
      spec.dtype = dtype;
      spec.gate_op = GateOp::add;
      spec.gate_fn = GateFn::silu;
      spec.attn = attn;
      expect_right(spec, check_backward_case);
    }
  }
}

/// Returns dv of T queries of one head beside one key, whose products q·k lie within ±100, with lse saved in f64 and
/// all of dy 1.
std::vector<float> dv_of_one_key(std::int64_t T, std::int64_t D, bool masked) {
  std::mt19937 random(static_cast<unsigned>(T));
  std::uniform_real_distribution<float> coordinate(-1.0F, 1.0F);
  std::vector<float> q(T * D), k(D), v(D, 2.0F), y(T * D), dy(T * D, 1.0F), dv(D);
  for (float& x : q) x = coordinate(random);
  for (float& x : k) x = 100.0F / static_cast<float>(D) * coordinate(random);
  std::vector<double> lse(T);
  std::vector<std::uint8_t> mask(T, 1);
  const Shape queries{1, 1, T, D}, keys{1, 1, 1, D}, rows{1, 1, T, 1};
  AttentionInputs in;
  in.q = make_view(q.data(), queries);
  in.k = make_view(k.data(), keys);
  in.v = make_view(v.data(), keys);
  if (masked) in.mask = {mask.data(), DType::boolean, rows, contiguous_strides(rows)};
  AttentionOptions options;
  options.scale = 4.0;
  AttentionOutputs out;
  out.y = make_view(y.data(), queries);
  out.lse = make_view(lse.data(), rows);
  attention_forward(out, in, options);
  AttentionGradients gradients;
  gradients.dv = make_view(dv.data(), keys);
  attention_backward(gradients, in, {out.y, out.lse, {}}, {make_view(dy.data(), queries), {}}, options);
  return dv;
}

// P is 1 if both passes round s alike: the score cancels from exp(s − lse).
TEST(Backward, OneKey_LargeScores_HasWeightOne) {
  const TargetGuard guard;
  for (const std::string& target : supported_targets()) {
    set_target(target);
    for (const std::int64_t T : {2, 8, 20, 100, 300}) {
      for (const bool masked : {false, true}) {
        EXPECT_EQ(dv_of_one_key(T, 64, masked), std::vector<float>(64, static_cast<float>(T)))
            << target << ", " << T << " queries" << (masked ? ", masked" : "");
      }
    }
  }
}

TEST(Backward, ManyBatchesWithoutQueries_DqAlone_ReturnsAtOnce) {
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  float x = 0.0F;
  const TensorView rows(&x, DType::f32, {kMany, 1, 0, 1}, {0, 0, 0, 0});
  AttentionInputs in;
  in.q = rows;
  in.k = in.v = ConstTensorView(&x, DType::f32, {kMany, 1, 5, 1}, {0, 0, 0, 0});
  AttentionGradients gradients;
  gradients.dq = rows;
  attention_backward(gradients, in, {rows, rows, {}}, {rows, {}});
}

}  // namespace
}  // namespace headgate
