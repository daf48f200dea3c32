// SPDX-License-Identifier: Apache-2.0
// Compares attention on int8 keys and values whose first rows are not rounded with the oracle, in every kernel, and
// checks that such rows which do not fit are refused.

#include <functional>
#include <string>

#include "headgate/error.hpp"
#include "library/attention/property.hpp"

namespace headgate {
namespace {

using verify::Case;
using verify::CaseSpec;
using verify::check_forward_case;

CaseSpec with_first_rows(CaseSpec spec, std::int64_t first, DType dtype = DType::f32) {
  spec.quantized = true;
  spec.first_rows = dtype;
  spec.first = first;
  return spec;
}

// Covers fewer first rows than a register tile, a whole tile, the border of a tile, all keys and more than all.
TEST(FirstRows, FewQueries_AnyNumberOfRows_MatchTheOracle) {
  for (const DType dtype : kDTypes) {
    for (const std::int64_t T : {1, 3}) {
      for (const std::int64_t D : {16, 24, 64}) {
        for (const std::int64_t S : {5, 16, 130, 2100}) {
          for (const std::int64_t first : {0, 1, 4, 5, 16, 64, 129, 2060, 3000}) {
            if (first > 2 * S) continue;
            CaseSpec spec = with_first_rows(sized(T, S, D, 16), first, first % 2 == 0 ? DType::f32 : DType::bf16);
            spec.dtype = dtype;
            spec.group = S == 130 ? 4 : 1;
            expect_right(spec, check_forward_case);
            if (S == 2100) continue;
            spec.causality = Causality::causal;
            spec.softcap = 2.0;
            expect_right(spec, check_forward_case);
          }
        }
      }
    }
  }
}

TEST(FirstRows, EveryKernelAndRule_SomeRows_MatchTheOracle) {
  for (const DType dtype : kDTypes) {
    for (const DType rows : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      CaseSpec few = with_first_rows(sized(2, 300, 32, 24), 6, rows);
      few.Hkv = 2, few.group = 2, few.dtype = dtype;
      CaseSpec many = few;
      many.T = 200;  // dense tiles
      CaseSpec small = few;
      small.T = small.S = 40;
      small.D = small.Dv = 16;  // small heads
      for (CaseSpec spec : {few, many, small}) {
        expect_right(spec, check_forward_case);
        spec.causality = Causality::causal;
        spec.window_left = 25;
        spec.sinks = DType::f32;
        expect_right(spec, check_forward_case);
        spec.weights = true;
        spec.bias = {true, true, false, true};
        expect_right(spec, check_forward_case);
        spec.weights = false;
        spec.key_indices = DType::i32;
        spec.list_entries = 20;
        expect_right(spec, check_forward_case);
      }
    }
  }
}

TEST(FirstRows, BadRows_AreRefusedByName) {
  const Case problem(with_first_rows(sized(2, 9, 8, 6), 3));
  const auto said_of = [&](const std::function<void(AttentionInputs&)>& spoil) -> std::string {
    AttentionInputs in = problem.inputs();
    spoil(in);
    try {
      attention_forward(problem.saving_outputs(), in, problem.options());
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing";
  };
  EXPECT_EQ(said_of([](AttentionInputs&) {}), "nothing");
  EXPECT_EQ(said_of([](AttentionInputs& in) { in.v_first = {}; }),
            "attention_forward: k_first is given but v_first is absent");
  EXPECT_EQ(said_of([](AttentionInputs& in) { in.k_first = {}; }),
            "attention_forward: v_first is given but k_first is absent");
  EXPECT_EQ(said_of([](AttentionInputs& in) { in.k_first.dtype = DType::i8; }),
            "attention_forward: k_first has dtype i8 but must be f32 or f64 or bf16 or f16");
  EXPECT_EQ(said_of([](AttentionInputs& in) { in.v_first.dtype = DType::bf16; }),
            "attention_forward: v_first has dtype bf16 but k_first has dtype f32");
  EXPECT_EQ(said_of([](AttentionInputs& in) { in.k_first.shape[3] = 7; }),
            "attention_forward: k_first has shape (1,1,3,7) but (B,Hkv,F,D) is (1,1,3,8)");
  EXPECT_EQ(said_of([](AttentionInputs& in) { in.v_first.shape[2] = 2; }),
            "attention_forward: v_first has shape (1,1,2,6) but (B,Hkv,F,Dv) is (1,1,3,6)");
  EXPECT_EQ(said_of([](AttentionInputs& in) {
              in.k.dtype = in.v.dtype = DType::f32;
              in.k.data = in.v.data = in.q.data;  // aligned to 4 bytes; nothing is read
              in.k_scale = in.v_scale = {};
            }),
            "attention_forward: k_first is given but k has dtype f32 and not i8");
}

TEST(FirstRows, Backward_IsRefusedByName) {
  const Case problem(with_first_rows(sized(2, 9, 8, 6), 3));
  AttentionInputs in = problem.inputs();
  in.k = in.v = in.q;
  in.k_scale = in.v_scale = {};
  try {
    attention_backward({}, in, {}, {}, {});
    ADD_FAILURE() << "the backward pass took first rows";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "attention_backward: k_first is given, but a cache has no gradients: the forward pass alone reads it");
  }
}

}  // namespace
}  // namespace headgate
