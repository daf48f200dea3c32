// SPDX-License-Identifier: Apache-2.0
// Tests small heads, forward and backward, on every vector target: the sizes at which they are split, their options,
// and the bounds beyond which other kernels take over.

#include "library/attention/cpu/small/small_heads.hpp"

#include <vector>

#include "library/attention/property.hpp"
#include "verify/case.hpp"

namespace headgate {
namespace {

using verify::CaseSpec;
using verify::check_backward_case;
using verify::check_forward_case;
using verify::GateInput;
using verify::Layout;

/// Uses enough heads to occupy all threads without splitting them, and more than the backward pass requires.
CaseSpec many_heads(CaseSpec spec) {
  spec.B = 2;
  spec.Hkv = 4;
  return spec;
}

/// Returns y of a forward pass with or without weights, which other kernels compute.
std::vector<std::uint8_t> bytes_of_y(CaseSpec spec, bool weights) {
  spec.weights = weights;
  verify::Case problem(spec);
  const AttentionOutputs out = problem.outputs();
  attention_forward(out, problem.inputs(), problem.options());
  const auto* y = static_cast<const std::uint8_t*>(out.y.data);
  return {y, y + out.y.numel() * static_cast<std::int64_t>(sizeof(float))};
}

bool has_bits_of_its_own(std::int64_t T, std::int64_t S, std::int64_t D) {
  const CaseSpec spec = sized(T, S, D, D);
  return bytes_of_y(spec, false) != bytes_of_y(spec, true);
}

TEST(SmallHeads, Kernels_SizesWithinTheirLimits_AreChosen) {
  static_assert(kSmallHeadRows == 256 && kSmallHeadDim == 256);
  EXPECT_TRUE(has_bits_of_its_own(256, 256, 64));
  EXPECT_TRUE(has_bits_of_its_own(100, 200, 256));
  EXPECT_TRUE(has_bits_of_its_own(9, 40, 64));
  EXPECT_FALSE(has_bits_of_its_own(257, 256, 64));
  EXPECT_FALSE(has_bits_of_its_own(256, 257, 64));
  EXPECT_FALSE(has_bits_of_its_own(100, 200, 272));
}

/// Covers the bounds of panels, of register tiles and their units, and of the sizes themselves.
TEST(SmallHeads, Heads_SizesAroundTileBounds_MatchTheOracle) {
  for (const DType dtype : kDTypes) {
    for (const std::int64_t T : {9, 12, 13, 16, 17, 20, 31, 32, 33, 45, 96, 97}) {
      for (const std::int64_t S : {1, 4, 5, 11, 12, 13, 16, 17, 28, 40}) {
        CaseSpec spec = sized(T, S, 16, 16);
        spec.dtype = dtype;
        if (S % 2 == 0) spec.causality = Causality::causal;
        expect_both(spec);
      }
    }
  }
}

TEST(SmallHeads, Heads_LargestSizes_MatchTheOracle) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Causality causality : {Causality::none, Causality::causal}) {
      for (const auto& [T, S] : {std::pair{255, 255}, {255, 256}, {256, 256}, {256, 257}, {257, 256}, {191, 193}}) {
        CaseSpec spec = many_heads(sized(T, S, 16, 16));
        spec.dtype = dtype;
        spec.causality = causality;
        expect_both(spec);
      }
      for (const auto& [D, Dv] : {std::pair{256, 256}, {255, 241}, {256, 16}, {3, 256}, {257, 256}, {256, 257}}) {
        CaseSpec spec = sized(40, 36, D, Dv);
        spec.dtype = dtype;
        spec.causality = causality;
        expect_both(spec);
      }
    }
  }
}

/// Dense, adjacent rows are read and written in place; others are copied.
TEST(SmallHeads, Heads_EveryLayoutAndType_MatchTheOracle) {
  for (const DType dtype : kDTypes) {
    for (int layout = 0; layout < 6; ++layout) {
      for (const auto& [D, Dv] : {std::pair{64, 64}, {64, 48}, {20, 12}}) {
        CaseSpec spec = sized(37, 29, D, Dv);
        spec.B = 2;
        spec.Hkv = 3;
        spec.group = 2;
        spec.dtype = dtype;
        spec.layout = static_cast<Layout>(layout);
        spec.dlse = DType::f32;
        spec.attn = D == Dv;
        expect_both(spec);
      }
    }
  }
}

TEST(SmallHeads, Heads_EveryGate_MatchTheOracle) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (int fn = 0; fn < 7; ++fn) {
      for (const GateOp op : {GateOp::mul, GateOp::add}) {
        for (const GateInput grain : {GateInput::headwise, GateInput::elementwise}) {
          CaseSpec spec = sized(35, 35, 32, 32);
          spec.dtype = dtype;
          spec.gate_fn = static_cast<GateFn>(fn);
          spec.gate_op = op;
          spec.gate_input = grain;
          expect_both(spec);
          spec.attn = true;
          expect_both(spec);
        }
      }
    }
  }
  CaseSpec spec = sized(35, 35, 32, 32);
  spec.gate_input = GateInput::none;
  expect_both(spec);
}

/// Covers causality, windows, key lengths and offsets: rows that see no key, keys that no row sees, panels that see few
/// keys.
TEST(SmallHeads, Heads_AnyMask_MatchTheOracle) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const DType sinks : {DType::none, DType::f32}) {
      for (const auto& [left, right] : {std::pair{-1, -1}, {20, 0}, {3, 5}, {-1, 2}, {0, -1}, {0, 0}}) {
        for (const bool offsets : {false, true}) {
          CaseSpec spec = sized(70, offsets ? 90 : 40, 32, 32);
          spec.B = 3;
          spec.dtype = dtype;
          spec.window_left = left;
          spec.window_right = right;
          spec.sinks = sinks;
          spec.dlse = DType::f64;
          if (offsets) spec.query_offsets = DType::i32;
          expect_both(spec);
          spec.key_lengths = DType::i64;
          expect_both(spec);
        }
      }
    }
  }
}

/// Covers maps of every shape, alone and together: maps that several heads share, maps of one head, and terms of keys.
TEST(SmallHeads, Heads_BiasAndMask_MatchTheOracle) {
  for (unsigned bits = 0; bits < 64; ++bits) {
    CaseSpec spec = sized(37, 43, 16, 16);
    spec.B = 3;
    spec.Hkv = 2;
    spec.group = 2;
    spec.dtype = kDTypes[bits % std::size(kDTypes)];
    spec.bias = {bits % 8 != 7, (bits & 1U) != 0, (bits & 2U) != 0, (bits & 4U) != 0};
    spec.mask = {bits / 8 != 7, (bits & 8U) != 0, (bits & 16U) != 0, (bits & 32U) != 0};
    spec.bias_hides = bits % 3 == 0;
    spec.bias_f32 = bits % 2 == 0;
    spec.key_bias = bits % 4 == 1 ? DType::f32 : DType::none;
    spec.key_bias_by_batch = bits % 8 == 1;
    spec.layout = static_cast<Layout>(bits % 6);
    spec.causality = bits % 5 == 0 ? Causality::causal : Causality::none;
    spec.threads = 3;
    expect_both(spec);
    spec.closed_share = 0.5;
    expect_right(spec, check_forward_case);
  }
}

TEST(SmallHeads, NarrowHeads_LargestSizesWithABias_MatchTheOracle) {
  for (const auto& [T, S] : {std::pair{511, 512}, {512, 512}, {513, 512}}) {
    CaseSpec spec = many_heads(sized(T, S, 16, 16));
    spec.bias = {true, false, true, true};
    spec.causality = Causality::causal;
    expect_both(spec);
  }
}

/// A mask that hides the last keys of each sequence is computed as key lengths.
TEST(SmallHeads, Mask_HidingTheLastKeys_GivesTheBitsOfKeyLengths) {
  CaseSpec spec = many_heads(sized(300, 300, 16, 16));  // with a mask these sizes take small heads, with lengths tiles
  spec.mask = {true, true, false, false};
  verify::Case problem(spec);
  const AttentionOutputs out = problem.outputs();
  AttentionInputs in = problem.inputs();
  auto* const shown = static_cast<std::uint8_t*>(const_cast<void*>(in.mask.data));
  const std::vector<std::int64_t> lengths{27, 0};
  const auto bytes = [&] {
    attention_forward(out, in, problem.options());
    const auto* y = static_cast<const std::uint8_t*>(out.y.data);
    return std::vector<std::uint8_t>(y, y + out.y.numel() * static_cast<std::int64_t>(sizeof(float)));
  };
  for (std::int64_t b = 0; b < spec.B; ++b) {
    for (std::int64_t j = 0; j < spec.S; ++j) shown[b * in.mask.strides[0] + j * in.mask.strides[3]] = j < lengths[b];
  }
  const std::vector<std::uint8_t> masked = bytes();
  in.mask = {};
  in.key_lengths = make_vector_view(lengths.data(), spec.B);
  EXPECT_EQ(masked, bytes());
}

/// Nothing of a mask is read if there are no queries: its address may be null.
TEST(SmallHeads, Mask_OfNoQueries_IsNotRead) {
  std::vector<float> k(2 * 3 * 8);
  AttentionInputs in;
  in.q = {nullptr, DType::f32, {2, 1, 0, 8}, {0, 0, 8, 1}};
  in.k = in.v = make_view<const float>(k.data(), Shape{2, 1, 3, 8});
  in.mask = {nullptr, DType::boolean, {2, 1, 0, 3}, {3, 0, 0, 1}};
  AttentionOutputs out;
  out.y = {nullptr, DType::f32, {2, 1, 0, 8}, {0, 0, 8, 1}};
  EXPECT_NO_THROW(attention_forward(out, in));
}

/// dbias is summed over ranges of sequences: over few or many, by one or by several tasks.
TEST(SmallHeads, Dbias_AnyNumberOfSequences_MatchesTheOracle) {
  for (const std::int64_t B : {1, 2, 31, 70}) {
    for (const bool by_batch : {false, true}) {
      for (const int threads : {1, 3}) {
        CaseSpec spec = sized(21, 18, 8, 8);
        spec.B = B;
        spec.Hkv = 2;
        spec.group = B == 2 ? 3 : 1;
        spec.bias = {true, by_batch, true, true};
        spec.dtype = B == 31 ? DType::bf16 : DType::f32;
        spec.key_lengths = B == 70 ? DType::i32 : DType::none;
        spec.threads = threads;
        expect_right(spec, check_backward_case);
      }
    }
  }
}

TEST(SmallHeads, Dbias_OfNoHeads_IsAccepted) {
  CaseSpec spec = sized(21, 18, 8, 8);
  spec.Hkv = 0;
  spec.bias = {true, false, true, true};
  expect_right(spec, check_backward_case);
}

TEST(SmallHeads, Gradients_OneAloneOrOneAbsent_MatchTheOracle) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    CaseSpec spec = sized(100, 40, 32, 16);  // more than a tile of queries
    spec.group = 2;
    spec.dtype = dtype;
    for (unsigned bit = 1; bit <= verify::kDgate; bit <<= 1) {
      spec.absent_gradients = bit;
      expect_right(spec, check_backward_case);
      spec.absent_gradients = 15U & ~bit;
      expect_right(spec, check_backward_case);
    }
  }
}

/// Packs small, long, short-query and empty sequences together.
TEST(SmallHeads, Heads_BesideLargerSequences_MatchTheOracle) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t page : {0, 16}) {
      CaseSpec spec = sized(257 + 256 + 40 + 1 + 12, 256 + 257 + 30 + 9, 16, 16);
      spec.Hkv = 2;
      spec.dtype = dtype;
      spec.causality = Causality::causal;
      spec.cu_seqlens = DType::i32;
      spec.packed = 6;
      spec.packed_queries = {257, 256, 0, 40, 1, 12};
      if (page == 0) {
        spec.packed_keys = {256, 257, 0, 30, 9, 0};
      } else {
        spec.page = page;
        spec.S = 256;
        spec.key_lengths = DType::i32;
      }
      spec.threads = 2;
      page == 0 ? expect_both(spec) : expect_right(spec, check_forward_case);
    }
  }
}

TEST(SmallHeads, Heads_PagedOrInt8Keys_MatchTheOracle) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const std::int64_t page : {0, 1, 16}) {
      for (const bool quantized : {false, true}) {
        CaseSpec spec = sized(33, 48, 32, 20);
        spec.B = spec.Hkv = spec.group = 2;
        spec.dtype = dtype;
        spec.page = page;
        spec.quantized = quantized;
        if (page > 0) spec.key_lengths = DType::i32;
        spec.causality = Causality::causal;
        expect_right(spec, check_forward_case);
      }
    }
  }
}

/// Tests rows that a gate threshold closes, so that panels hold rows that are not adjacent.
TEST(SmallHeads, Heads_GateThreshold_MatchTheOracle) {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16}) {
    for (const GateInput grain : {GateInput::headwise, GateInput::elementwise}) {
      for (const double share : {0.0, 0.3, 0.9, 1.0}) {
        for (const int threads : {1, 4}) {
          CaseSpec spec = sized(150, 130, 32, 32);
          spec.group = 3;
          spec.dtype = dtype;
          spec.gate_input = grain;
          spec.closed_share = share;
          spec.causality = Causality::causal;
          spec.window_left = 60;
          spec.threads = threads;
          expect_right(spec, check_forward_case);
        }
      }
    }
  }
}

}  // namespace
}  // namespace headgate
