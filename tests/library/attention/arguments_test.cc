// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "headgate/attention.hpp"
#include "library/attention/bad_call.hpp"
#include "library/attention/sample_call.hpp"

// Checks that bad arguments throw headgate::Error before anything is written, in one line that names the function, the
// argument and the values that disagree.

namespace headgate::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

// Arguments that both passes check.
class BadInput : public ::testing::TestWithParam<BadCall> {};

TEST_P(BadInput, Forward_BadInput_IsRefused) {
  SampleCall call;
  GetParam().spoil(call);
  expect_refused(
      call, "attention_forward", [&] { call.forward(); }, GetParam().said);
}

TEST_P(BadInput, Backward_BadInput_IsRefused) {
  SampleCall call;
  GetParam().spoil(call);
  expect_refused(
      call, "attention_backward", [&] { call.backward(); }, GetParam().said);
}

std::vector<BadCall> bad_presence() {
  return {
      {"q_absent", [](SampleCall& c) { c.in.q = {}; }, {"q is required"}},
      {"k_absent", [](SampleCall& c) { c.in.k = {}; }, {"k is required"}},
      {"v_absent", [](SampleCall& c) { c.in.v = {}; }, {"v is required"}},
      {"q_null", [](SampleCall& c) { c.in.q.data = nullptr; }, {"q has shape (2,4,3,8) but null data"}},
      {"bias_null", [](SampleCall& c) { c.in.bias.data = nullptr; }, {"bias has shape (1,4,1,5) but null data"}},
      {"mask_without_dtype", [](SampleCall& c) { c.in.mask.dtype = DType::none; }, {"mask has data but dtype none"}},
      {"gate_without_dtype", [](SampleCall& c) { c.in.gate.dtype = DType::none; }, {"gate has data but dtype none"}},
  };
}

std::vector<BadCall> bad_dtypes() {
  return {
      {"q_i32", [](SampleCall& c) { c.in.q.dtype = DType::i32; }, {"q has dtype i32", "f32 or f64 or bf16 or f16"}},
      {"q_unknown", [](SampleCall& c) { c.in.q.dtype = static_cast<DType>(99); }, {"q has dtype unknown (99)"}},
      {"k_f64", [](SampleCall& c) { c.in.k.dtype = DType::f64; }, {"k has dtype f64 but q has dtype f32"}},
      {"v_bf16", [](SampleCall& c) { c.in.v.dtype = DType::bf16; }, {"v has dtype bf16 but q has dtype f32"}},
      {"gate_f16", [](SampleCall& c) { c.in.gate.dtype = DType::f16; }, {"gate has dtype f16 but must be f32"}},
      {"bias_bool", [](SampleCall& c) { c.in.bias.dtype = DType::boolean; }, {"bias has dtype bool but must be f32"}},
      {"key_bias_bool", [](SampleCall& c) { c.in.key_bias.dtype = DType::boolean; }, {"key_bias has dtype bool"}},
      {"key_indices_f32",
       [](SampleCall& c) { c.in.key_indices.dtype = DType::f32; },
       {"key_indices has dtype f32 but must be i32 or i64"}},
      {"mask_f32", [](SampleCall& c) { c.in.mask.dtype = DType::f32; }, {"mask has dtype f32 but must be bool"}},
      {"key_lengths_f64",
       [](SampleCall& c) { c.in.key_lengths.dtype = DType::f64; },
       {"key_lengths has dtype f64 but must be i32 or i64"}},
      {"alibi_slopes_f16",
       [](SampleCall& c) { c.in.alibi_slopes.dtype = DType::f16; },
       {"alibi_slopes has dtype f16 but must be f32 or f64"}},
      {"sinks_i64",
       [](SampleCall& c) { c.in.sinks.dtype = DType::i64; },
       {"sinks has dtype i64 but must be f32 or f64"}},
  };
}

std::vector<BadCall> bad_shapes() {
  return {
      {"k_batch",
       [](SampleCall& c) { c.in.k.shape[0] = 1; },
       {"k has shape (1,2,5,8) but q has shape (2,4,3,8)", "B is 1 and 2"}},
      {"k_dim",
       [](SampleCall& c) { c.in.k.shape[3] = 7; },
       {"k has shape (2,2,5,7) but q has shape (2,4,3,8)", "D is 7 and 8"}},
      {"key_bias_heads",
       [](SampleCall& c) {
         c.in.key_bias = c.tensor(DType::f32, {kB, kHq, 1, kS});
       },
       {"key_bias has shape (2,4,1,5)", "(2,1,1,5)"}},
      {"key_indices_heads",
       [](SampleCall& c) {
         c.in.key_indices = c.tensor(DType::i32, {kB, kHq, kT, 3});
       },
       {"key_indices has shape (2,4,3,3) but (B|1,Hkv|1,T,K) is needed and (B,Hkv,T,K) is (2,2,3,3)"}},
      {"key_indices_one_row",
       [](SampleCall& c) {
         c.in.key_indices = c.tensor(DType::i32, {1, 1, 1, 3});
       },
       {"key_indices has shape (1,1,1,3)", "(B|1,Hkv|1,T,K)"}},
      {"v_batch",
       [](SampleCall& c) { c.in.v.shape[0] = 3; },
       {"v has shape (3,2,5,6) but k has shape (2,2,5,8)", "B is 3 and 2"}},
      {"v_heads",
       [](SampleCall& c) { c.in.v.shape[1] = 1; },
       {"v has shape (2,1,5,6) but k has shape (2,2,5,8)", "Hkv is 1 and 2"}},
      {"v_keys",
       [](SampleCall& c) { c.in.v.shape[2] = 4; },
       {"v has shape (2,2,4,6) but k has shape (2,2,5,8)", "S is 4 and 5"}},
      {"heads_no_multiple",
       [](SampleCall& c) { c.in.q.shape[1] = 3; },
       {"q has shape (2,3,3,8)", "Hq = 3 is not a multiple of Hkv = 2"}},
      {"heads_without_keys",
       [](SampleCall& c) { c.in.k.shape[1] = c.in.v.shape[1] = 0; },
       {"Hq = 4 is not a multiple of Hkv = 0"}},
      {"negative_size", [](SampleCall& c) { c.in.q.shape[2] = -3; }, {"q has shape (2,4,-3,8)", "at least 0"}},
      {"head_dim_0",
       [](SampleCall& c) { c.in.q.shape[3] = c.in.k.shape[3] = 0; },
       {"q has shape (2,4,3,0)", "D is 0 but must be 1 to 576"}},
      {"head_dim_577",
       [](SampleCall& c) {
         c.in.q = c.tensor(DType::f32, {kB, kHq, kT, 577});
         c.in.k = c.tensor(DType::f32, {kB, kHkv, kS, 577});
       },
       {"q has shape (2,4,3,577)", "D is 577 but must be 1 to 576"}},
      {"value_dim_0",
       [](SampleCall& c) { c.in.v.shape[3] = 0; },
       {"v has shape (2,2,5,0)", "Dv is 0 but must be 1 to 576"}},
      {"value_dim_577",
       [](SampleCall& c) {
         c.in.v = c.tensor(DType::f32, {kB, kHkv, kS, 577});
       },
       {"v has shape (2,2,5,577)", "Dv is 577 but must be 1 to 576"}},
      {"gate_rows",
       [](SampleCall& c) { c.in.gate.shape[2] = 2; },
       {"gate has shape (2,4,2,6)", "(B,Hq,T,1) = (2,4,3,1)", "(B,Hq,T,Dv) = (2,4,3,6)"}},
      {"gate_features", [](SampleCall& c) { c.in.gate.shape[3] = 2; }, {"gate has shape (2,4,3,2)", "(2,4,3,6)"}},
      {"gate_broadcast_heads", [](SampleCall& c) { c.in.gate.shape[1] = 1; }, {"gate has shape (2,1,3,6)"}},
      {"bias_batch",
       [](SampleCall& c) {
         c.in.bias = c.tensor(DType::f32, {3, 1, 1, kS});
       },
       {"bias has shape (3,1,1,5)", "(2,4,3,5)"}},
      {"bias_heads_kv", [](SampleCall& c) { c.in.bias.shape[1] = kHkv; }, {"bias has shape (1,2,1,5)", "(2,4,3,5)"}},
      {"bias_keys_1", [](SampleCall& c) { c.in.bias.shape[3] = 1; }, {"bias has shape (1,4,1,1)", "(2,4,3,5)"}},
      {"mask_rows", [](SampleCall& c) { c.in.mask.shape[2] = 2; }, {"mask has shape (2,1,2,5)", "(2,4,3,5)"}},
      {"mask_keys", [](SampleCall& c) { c.in.mask.shape[3] = 4; }, {"mask has shape (2,1,3,4)", "(2,4,3,5)"}},
      {"query_offsets_f32",
       [](SampleCall& c) {
         c.in.query_offsets = c.vector<float>({0, 0});
       },
       {"query_offsets has dtype f32 but must be i32 or i64"}},
      {"query_offsets_count",
       [](SampleCall& c) { c.in.query_offsets = c.vector<std::int64_t>({5}); },
       {"query_offsets has shape (1,1,1,1) but (1,1,1,B) is (1,1,1,2)"}},
      {"query_offsets_too_large",
       [](SampleCall& c) {
         c.in.query_offsets = c.vector<std::int64_t>({0, kMaxQueryOffset + 1});
       },
       {"query_offsets[1] is 1152921504606846977 but must be -1152921504606846976 to 1152921504606846976"}},
      {"key_indices_entry",
       [](SampleCall& c) {
         const TensorView lists = c.tensor(DType::i64, {1, kHkv, kT, 2});
         auto* entries = static_cast<std::int64_t*>(lists.data);
         std::fill_n(entries, lists.numel(), -1);
         entries[(1 * kT + 2) * 2 + 1] = 5;
         c.in.key_indices = lists;
       },
       {"key_indices[0,1,2,1] is 5 but must be -1 to 4"}},
      {"key_indices_block",
       [](SampleCall& c) {
         std::fill_n(static_cast<std::int32_t*>(const_cast<void*>(c.in.key_indices.data)), kB * kT * 3, -2);
         c.options.key_block_size = 3;
       },
       {"key_indices[0,0,0,0] is -2 but must be -1 to 1"}},
      {"key_lengths_count",
       [](SampleCall& c) { c.in.key_lengths = c.vector<std::int64_t>({5}); },
       {"key_lengths has shape (1,1,1,1) but (1,1,1,B) is (1,1,1,2)"}},
      {"alibi_slopes_count",
       [](SampleCall& c) { c.in.alibi_slopes.shape[3] = kHkv; },
       {"alibi_slopes has shape (1,1,1,2) but (1,1,1,Hq) is (1,1,1,4)"}},
      {"alibi_slopes_sequences",
       [](SampleCall& c) { c.in.alibi_slopes.shape[2] = kB + 1; },
       {"alibi_slopes has shape (1,1,3,4) but (1,1,B,Hq) is (1,1,2,4)"}},
      {"sinks_upright",
       [](SampleCall& c) {
         c.in.sinks.shape = {1, kHq, 1, 1};
       },
       {"sinks has shape (1,4,1,1) but (1,Hq,T,1) is (1,4,3,1)"}},
      {"sinks_count", [](SampleCall& c) { c.in.sinks.shape[3] = 3; }, {"sinks has shape (1,1,1,3) but (1,1,1,Hq) is"}},
      {"sinks_of_queries_of_another_batch",
       [](SampleCall& c) {
         c.in.sinks.shape = {kB + 1, kHq, kT, 1};
       },
       {"sinks has shape (3,4,3,1) but (B,Hq,T,1) is (2,4,3,1)"}},
  };
}

std::vector<BadCall> bad_memory() {
  return {
      {"elements_overflow",
       [](SampleCall& c) {
         c.in.q.shape = {kHuge, kHuge, 0, kD};
       },
       {"q has shape (9223372036854775807,9223372036854775807,0,8)", "overflows"}},
      {"scores_overflow",
       [](SampleCall& c) {
         c.in.q = {c.in.q.data, DType::f32, {1, 1, kHuge / 16, 8}, {0, 0, 0, 1}};
         c.in.k = {c.in.k.data, DType::f32, {1, 1, 64, 8}, {0, 0, 0, 1}};
         c.in.v = {c.in.v.data, DType::f32, {1, 1, 64, 8}, {0, 0, 0, 1}};
       },
       {"q has shape (1,1,576460752303423487,8)", "k has shape (1,1,64,8)", "B·Hq·T·S overflows"}},
      {"stride_overflow",
       [](SampleCall& c) { c.in.k.strides[2] = kHuge; },
       {"k has shape", "9223372036854775807", "address space"}},
      {"stride_lowest",
       [](SampleCall& c) { c.in.k.strides[0] = std::numeric_limits<std::int64_t>::min(); },
       {"k has shape", "-9223372036854775808", "address space"}},
      {"stride_bytes_wrap_to_0",
       [](SampleCall& c) { c.in.k.strides[0] = std::int64_t{1} << 62; },
       {"k has shape", "4611686018427387904", "address space"}},
      {"strides_sum_wraps_to_8_bytes",
       [](SampleCall& c) {
         const std::int64_t half = (std::int64_t{1} << 61) - 1;
         c.in.k.strides = {half, half, 1, 0};
       },
       {"k has shape", "2305843009213693951", "address space"}},
      {"strides_sum_beyond_2_to_60",
       [](SampleCall& c) {
         c.in.k.strides = {std::int64_t{1} << 58, std::int64_t{1} << 58, 8, 1};
       },
       {"k has shape", "288230376151711744", "address space"}},
      {"below_address_0",
       [](SampleCall& c) { c.in.v.strides[0] = -(std::int64_t{1} << 57); },
       {"v has shape", "address space"}},
      {"above_all_addresses",
       [](SampleCall& c) { c.in.v.data = reinterpret_cast<void*>(~std::uintptr_t{0} - 15); },
       {"v has shape (2,2,5,6)", "address space"}},
      {"misaligned",
       [](SampleCall& c) { c.in.v.data = static_cast<const char*>(c.in.v.data) + 2; },
       {"v has data 0x", "not aligned to the 4 bytes of f32"}},
  };
}

/// Narrows the sample's tensors to one batch, with sequences of 2 and 1 queries, and 4 and 1 keys.
void pack(SampleCall& c) {
  const auto narrow = [](auto& view) { view.shape[0] = std::min<std::int64_t>(view.shape[0], 1); };
  for (auto* in : {&c.in.q, &c.in.k, &c.in.v, &c.in.gate, &c.in.bias, &c.in.mask, &c.saved.y, &c.saved.lse,
                   &c.saved.attn, &c.incoming.dy, &c.incoming.dlse}) {
    narrow(*in);
  }
  for (auto* out : {&c.out.y, &c.out.lse, &c.out.attn, &c.out.weights, &c.out.max_logit, &c.grad.dq, &c.grad.dk,
                    &c.grad.dv, &c.grad.dgate, &c.grad.dbias}) {
    narrow(*out);
  }
  c.in.key_lengths = c.vector<std::int32_t>({3, 1});
  c.in.cu_seqlens_q = c.vector<std::int32_t>({0, 2, 3});
  c.in.key_bias = c.tensor(DType::f32, {1, 1, 1, kS});
  const TensorView lists = c.tensor(DType::i32, {1, 1, kT, 3});
  std::fill_n(static_cast<std::int32_t*>(lists.data), lists.numel(), 0);
  c.in.key_indices = lists;
  c.in.cu_seqlens_k = c.vector<std::int64_t>({0, 4, 5});
}

BadCall bad_packing(const std::string& name, const std::function<void(SampleCall&)>& spoil,
                    const std::vector<std::string>& said) {
  return {name,
          [spoil](SampleCall& c) {
            pack(c);
            spoil(c);
          },
          said};
}

std::vector<BadCall> bad_packed_batches() {
  return {
      {"cu_seqlens_with_batches",
       [](SampleCall& c) {
         c.in.cu_seqlens_q = c.in.cu_seqlens_k = c.vector<std::int32_t>({0, 3});
       },
       {"cu_seqlens_q is given but q has shape (2,4,3,8): B is 2 but must be 1"}},
      bad_packing("cu_seqlens_k_absent", [](SampleCall& c) { c.in.cu_seqlens_k = {}; },
                  {"cu_seqlens_q is given but cu_seqlens_k is absent"}),
      bad_packing("cu_seqlens_q_absent", [](SampleCall& c) { c.in.cu_seqlens_q = {}; },
                  {"cu_seqlens_k is given but cu_seqlens_q is absent"}),
      bad_packing("cu_seqlens_f32",
                  [](SampleCall& c) {
                    c.in.cu_seqlens_q = c.vector<float>({0, 2, 3});
                  },
                  {"cu_seqlens_q has dtype f32 but must be i32 or i64"}),
      bad_packing("cu_seqlens_empty", [](SampleCall& c) { c.in.cu_seqlens_q.shape[3] = 0; },
                  {"cu_seqlens_q has shape (1,1,1,0) but must be (1,1,1,N+1)"}),
      bad_packing("cu_seqlens_upright",
                  [](SampleCall& c) {
                    c.in.cu_seqlens_q.shape = {3, 1, 1, 1};
                  },
                  {"cu_seqlens_q has shape (3,1,1,1) but (1,1,1,N+1) is (1,1,1,1)"}),
      bad_packing("cu_seqlens_counts",
                  [](SampleCall& c) {
                    c.in.cu_seqlens_k = c.vector<std::int32_t>({0, 5});
                  },
                  {"cu_seqlens_k has shape (1,1,1,2) but cu_seqlens_q has shape (1,1,1,3): N + 1 is 2 and 3"}),
      bad_packing("cu_seqlens_start",
                  [](SampleCall& c) {
                    c.in.cu_seqlens_q = c.vector<std::int32_t>({1, 2, 3});
                  },
                  {"cu_seqlens_q[0] is 1 but must be 0"}),
      bad_packing("cu_seqlens_descend",
                  [](SampleCall& c) {
                    c.in.cu_seqlens_q = c.vector<std::int32_t>({0, -1, 3});
                  },
                  {"cu_seqlens_q[1] is -1 but cu_seqlens_q[0] is 0"}),
      bad_packing("cu_seqlens_beyond",
                  [](SampleCall& c) {
                    c.in.cu_seqlens_k = c.vector<std::int64_t>({0, 9, 5});
                  },
                  {"cu_seqlens_k[1] is 9 but must be at most S = 5"}),
      bad_packing("cu_seqlens_end",
                  [](SampleCall& c) {
                    c.in.cu_seqlens_k = c.vector<std::int64_t>({0, 4, 4});
                  },
                  {"cu_seqlens_k[2] is 4 but must be S = 5"}),
      bad_packing("packed_key_lengths_count", [](SampleCall& c) { c.in.key_lengths = c.vector<std::int32_t>({4}); },
                  {"key_lengths has shape (1,1,1,1) but (1,1,1,N) is (1,1,1,2)"}),
      bad_packing("packed_key_indices_beyond",
                  [](SampleCall& c) { static_cast<std::int32_t*>(const_cast<void*>(c.in.key_indices.data))[6] = 1; },
                  {"key_indices[0,0,2,0] is 1 but must be -1 to 0"}),
      bad_packing("packed_key_length_beyond",
                  [](SampleCall& c) {
                    c.in.key_lengths = c.vector<std::int32_t>({4, 2});
                  },
                  {"key_lengths[1] is 2 but must be 0 to S_n = 1"}),
      bad_packing("packed_query_offsets_count", [](SampleCall& c) { c.in.query_offsets = c.vector<std::int32_t>({4}); },
                  {"query_offsets has shape (1,1,1,1) but (1,1,1,N) is (1,1,1,2)"}),
  };
}

TEST(PackedBatch, SampleCall_Unchanged_IsAccepted) {
  SampleCall call;
  pack(call);
  call.forward();
  call.backward();
}

std::vector<BadCall> bad_values() {
  return {
      {"key_length_negative",
       [](SampleCall& c) {
         c.in.key_lengths = c.vector<std::int32_t>({-1, 2});
       },
       {"key_lengths[0] is -1 but must be 0 to S = 5"}},
      {"key_length_beyond",
       [](SampleCall& c) {
         c.in.key_lengths = c.vector<std::int32_t>({5, 6});
       },
       {"key_lengths[1] is 6 but must be 0 to S = 5"}},
      {"key_length_huge",
       [](SampleCall& c) {
         c.in.key_lengths = c.vector<std::int64_t>({5, kHuge});
       },
       {"key_lengths[1] is 9223372036854775807"}},
      {"alibi_nan",
       [](SampleCall& c) {
         c.in.alibi_slopes = c.vector<double>({0, 0, kNan, 0});
       },
       {"alibi_slopes[2] is nan"}},
      {"alibi_of_a_sequence_nan",
       [](SampleCall& c) {
         const TensorView slopes = c.vector<double>({0, 0, 0, 0, 0, 0, kNan, 0});
         c.in.alibi_slopes = make_view(static_cast<double*>(slopes.data), Shape{1, 1, kB, kHq});
       },
       {"alibi_slopes[1,2] is nan"}},
      {"alibi_beyond_f32",
       [](SampleCall& c) {
         c.in.alibi_slopes = c.vector<double>({0, 0, 0, 1e39});
       },
       {"alibi_slopes[3] is 1e+39 but must be finite in f32"}},
      {"sink_nan",
       [](SampleCall& c) {
         c.in.sinks = c.vector<double>({0, kNan, 0, 0});
       },
       {"sinks[1] is nan"}},
      {"sink_inf",
       [](SampleCall& c) {
         c.in.sinks = c.vector<double>({0, 0, 0, kInf});
       },
       {"sinks[3] is inf"}},
      {"sink_of_a_query_nan",
       [](SampleCall& c) {
         const TensorView sinks = c.tensor(DType::f64, {kB, kHq, kT, 1});
         static_cast<double*>(sinks.data)[(kHq + 2) * kT] = kNan;
         c.in.sinks = sinks;
       },
       {"sinks[1,2,0] is nan"}},
      {"scale_nan", [](SampleCall& c) { c.options.scale = kNan; }, {"scale is nan"}},
      {"scale_inf", [](SampleCall& c) { c.options.scale = -kInf; }, {"scale is -inf"}},
      {"scale_huge", [](SampleCall& c) { c.options.scale = 3e38; }, {"scale is 3e+38", "in f32, times log2(e)"}},
      {"softcap_negative", [](SampleCall& c) { c.options.softcap = -2.5; }, {"softcap is -2.5"}},
      {"softcap_nan", [](SampleCall& c) { c.options.softcap = kNan; }, {"softcap is nan"}},
      {"softcap_inf", [](SampleCall& c) { c.options.softcap = kInf; }, {"softcap is inf"}},
      {"softcap_below_f32", [](SampleCall& c) { c.options.softcap = 1e-39; }, {"softcap is 1e-39", "normal in f32"}},
      {"gate_threshold_negative",
       [](SampleCall& c) { c.options.gate_threshold = -0.5; },
       {"gate_threshold is -0.5 but must be at least 0 and finite in f32"}},
      {"gate_threshold_nan", [](SampleCall& c) { c.options.gate_threshold = kNan; }, {"gate_threshold is nan"}},
      {"gate_threshold_inf", [](SampleCall& c) { c.options.gate_threshold = kInf; }, {"gate_threshold is inf"}},
      {"gate_threshold_beyond_f32",
       [](SampleCall& c) { c.options.gate_threshold = 1e39; },
       {"gate_threshold is 1e+39 but must be at least 0 and finite in f32"}},
      {"gate_threshold_without_gate",
       [](SampleCall& c) {
         c.options.gate_threshold = 0.5;
         c.in.gate = {};
         c.grad.dgate = {};
       },
       {"gate_threshold is 0.5 but there is no gate that multiplies"}},
      {"gate_threshold_of_no_function",
       [](SampleCall& c) {
         c.options.gate_threshold = 0.5;
         c.options.gate_fn = GateFn::none;
       },
       {"gate_threshold is 0.5 but there is no gate that multiplies"}},
      {"gate_threshold_of_a_sum",
       [](SampleCall& c) {
         c.options.gate_threshold = 0.5;
         c.options.gate_op = GateOp::add;
       },
       {"gate_threshold is 0.5 but there is no gate that multiplies"}},
      {"dropout_of_all", [](SampleCall& c) { c.options.dropout = 1.0; }, {"dropout is 1 but must be in [0, 1)"}},
      {"dropout_nan", [](SampleCall& c) { c.options.dropout = kNan; }, {"dropout is nan but must be in [0, 1)"}},
      {"threads", [](SampleCall& c) { c.options.context.threads = -1; }, {"threads is -1 but must be at least 0"}},
      {"causality",
       [](SampleCall& c) { c.options.causality = static_cast<Causality>(2); },
       {"causality is 2 but must be 0 to 1"}},
      {"gate_fn",
       [](SampleCall& c) { c.options.gate_fn = static_cast<GateFn>(7); },
       {"gate_fn is 7 but must be one of sigmoid, sigmoid2, ns_sigmoid, silu, softplus, identity, none"}},
      {"gate_fn_negative", [](SampleCall& c) { c.options.gate_fn = static_cast<GateFn>(-1); }, {"gate_fn is -1"}},
      {"gate_op",
       [](SampleCall& c) { c.options.gate_op = static_cast<GateOp>(2); },
       {"gate_op is 2 but must be 0 to 1"}},
  };
}

INSTANTIATE_TEST_SUITE_P(Presence, BadInput, ::testing::ValuesIn(bad_presence()), test_name);
INSTANTIATE_TEST_SUITE_P(DTypes, BadInput, ::testing::ValuesIn(bad_dtypes()), test_name);
INSTANTIATE_TEST_SUITE_P(Shapes, BadInput, ::testing::ValuesIn(bad_shapes()), test_name);
INSTANTIATE_TEST_SUITE_P(Memory, BadInput, ::testing::ValuesIn(bad_memory()), test_name);
INSTANTIATE_TEST_SUITE_P(PackedBatches, BadInput, ::testing::ValuesIn(bad_packed_batches()), test_name);
INSTANTIATE_TEST_SUITE_P(Values, BadInput, ::testing::ValuesIn(bad_values()), test_name);

/// Turns k and v into pages, one for each sequence.
void make_pages(SampleCall& c) {
  c.in.block_table = c.vector<std::int32_t>({1, 0});
  c.in.block_table.shape = {1, 1, kB, 1};
  c.in.block_table.strides = {2, 2, 1, 1};
}

/// Turns k and v into int8.
void make_bytes(SampleCall& c) {
  c.in.k.dtype = c.in.v.dtype = DType::i8;
  c.in.k_scale = c.tensor(DType::f32, {kB, kHkv, kS, 1});
  c.in.v_scale = c.tensor(DType::f32, {kB, kHkv, kS, 1});
}

std::vector<BadCall> bad_caches() {
  const auto paged = [](const std::function<void(SampleCall&)>& spoil) {
    return [spoil](SampleCall& c) {
      make_pages(c);
      spoil(c);
    };
  };
  const auto bytes = [](const std::function<void(SampleCall&)>& spoil) {
    return [spoil](SampleCall& c) {
      make_bytes(c);
      spoil(c);
    };
  };
  return {
      {"table_dtype",
       paged([](SampleCall& c) { c.in.block_table.dtype = DType::i64; }),
       {"block_table has dtype i64 but must be i32"}},
      {"table_shape",
       paged([](SampleCall& c) { c.in.block_table.shape[2] = 1; }),
       {"block_table has shape (1,1,1,1) but (1,1,B,M) is (1,1,2,1)"}},
      {"table_without_lengths",
       paged([](SampleCall& c) { c.in.key_lengths = {}; }),
       {"block_table is given but key_lengths is absent"}},
      {"table_beyond_pages",
       paged([](SampleCall& c) {
         c.in.block_table = c.vector<std::int32_t>({1, 2});
         c.in.block_table.shape = {1, 1, kB, 1};
         c.in.block_table.strides = {2, 2, 1, 1};
       }),
       {"block_table[1,0] is 2 but must be 0 to 1: k has P = 2 pages"}},
      {"pages_of_v",
       paged([](SampleCall& c) { c.in.v.shape[0] = 1; }),
       {"v has shape (1,2,5,6) but k has shape (2,2,5,8): P is 1 and 2"}},
      {"pages_of_no_token", paged([](SampleCall& c) { c.in.k.shape[2] = c.in.v.shape[2] = 0; }), {"pages of 0 tokens"}},
      {"lengths_beyond_pages",
       paged([](SampleCall& c) {
         c.in.key_lengths = c.vector<std::int64_t>({5, 6});
       }),
       {"key_lengths[1] is 6 but must be 0 to S = 5"}},
      {"bytes_of_k_alone",
       bytes([](SampleCall& c) { c.in.v.dtype = DType::f32; }),
       {"v has dtype f32 but k has dtype i8"}},
      {"bytes_of_v_alone",
       bytes([](SampleCall& c) { c.in.k.dtype = DType::f32; }),
       {"v has dtype i8 but q has dtype f32"}},
      {"scale_absent", bytes([](SampleCall& c) { c.in.k_scale = {}; }), {"k_scale is required by k of dtype i8"}},
      {"scale_dtype",
       bytes([](SampleCall& c) { c.in.v_scale.dtype = DType::f64; }),
       {"v_scale has dtype f64 but must be f32"}},
      {"scale_shape",
       bytes([](SampleCall& c) { c.in.k_scale.shape[3] = kD; }),
       {"k_scale has shape (2,2,5,8) but (B,Hkv,S,1) is (2,2,5,1)"}},
      {"scale_of_floats",
       [](SampleCall& c) {
         c.in.v_scale = c.tensor(DType::f32, {kB, kHkv, kS, 1});
       },
       {"v_scale is given but v has dtype f32 and not i8"}},
  };
}

class BadForward : public ::testing::TestWithParam<BadCall> {};

TEST_P(BadForward, Forward_BadArgument_IsRefused) {
  SampleCall call;
  GetParam().spoil(call);
  expect_refused(
      call, "attention_forward", [&] { call.forward(); }, GetParam().said);
}

std::vector<BadCall> bad_outputs() {
  return {
      {"attn_without_y", [](SampleCall& c) { c.out.y = {}; }, {"attn is asked for but y is absent"}},
      {"nothing_asked",
       [](SampleCall& c) { c.out = {}; },
       {"y is required but absent, and so are lse, weights and max_logit"}},
      {"max_logit_bf16",
       [](SampleCall& c) { c.out.max_logit.dtype = DType::bf16; },
       {"max_logit has dtype bf16 but must be f32 or f64"}},
      {"max_logit_rows",
       [](SampleCall& c) { c.out.max_logit.shape[2] = kS; },
       {"max_logit has shape (2,4,5,1) but (B,Hq,T,1) is (2,4,3,1)"}},
      {"max_logit_heads",
       [](SampleCall& c) {
         c.out.max_logit.shape = {1, kHq, 1, 1};
       },
       {"max_logit has shape (1,4,1,1) but (B,Hq,1,1) is (2,4,1,1)"}},
      {"threshold_without_y",
       [](SampleCall& c) {
         c.out = {.lse = c.out.lse};
         c.options.gate_threshold = 0.5;
       },
       {"gate_threshold is 0.5 but y is absent"}},
      {"lse_alone_of_bad_v",
       [](SampleCall& c) {
         c.out = {.lse = c.out.lse};
         c.in.v.shape[2] = 4;
       },
       {"v has shape (2,2,4,6) but k has shape (2,2,5,8)"}},
      {"y_null", [](SampleCall& c) { c.out.y.data = nullptr; }, {"y has shape (2,4,3,6) but null data"}},
      {"y_f64", [](SampleCall& c) { c.out.y.dtype = DType::f64; }, {"y has dtype f64 but must be f32"}},
      {"y_head_dim",
       [](SampleCall& c) { c.out.y.shape[3] = kD; },
       {"y has shape (2,4,3,8) but (B,Hq,T,Dv) is (2,4,3,6)"}},
      {"y_kv_heads",
       [](SampleCall& c) { c.out.y.shape[1] = kHkv; },
       {"y has shape (2,2,3,6) but (B,Hq,T,Dv) is (2,4,3,6)"}},
      {"lse_bf16", [](SampleCall& c) { c.out.lse.dtype = DType::bf16; }, {"lse has dtype bf16 but must be f32 or f64"}},
      {"lse_rank_3",
       [](SampleCall& c) {
         c.out.lse.shape = {1, kB, kHq, kT};
       },
       {"lse has shape (1,2,4,3) but (B,Hq,T,1) is (2,4,3,1)"}},
      {"attn_f16", [](SampleCall& c) { c.out.attn.dtype = DType::f16; }, {"attn has dtype f16 but must be f32"}},
      {"attn_shape",
       [](SampleCall& c) { c.out.attn.shape[2] = kS; },
       {"attn has shape (2,4,5,6) but (B,Hq,T,Dv) is (2,4,3,6)"}},
      {"weights_f64",
       [](SampleCall& c) { c.out.weights.dtype = DType::f64; },
       {"weights has dtype f64 but must be f32"}},
      {"weights_shape",
       [](SampleCall& c) { c.out.weights.shape[3] = kT; },
       {"weights has shape (2,4,3,3) but (B,Hq,T,S) is (2,4,3,5)"}},
      {"weights_without_dtype",
       [](SampleCall& c) { c.out.weights.dtype = DType::none; },
       {"weights has data but dtype none"}},
      {"y_stride_0",
       [](SampleCall& c) { c.out.y.strides[1] = 0; },
       {"y has shape (2,4,3,6) and strides (72,0,6,1)", "overlap"}},
      {"lse_stride_0",
       [](SampleCall& c) { c.out.lse.strides[2] = 0; },
       {"lse has shape (2,4,3,1) and strides (12,3,0,1)", "overlap"}},
      {"y_rows_overlap",
       [](SampleCall& c) { c.out.y.strides[2] = 5; },
       {"y has shape (2,4,3,6) and strides (72,18,5,1)", "overlap"}},
      {"y_rows_overlap_backwards", [](SampleCall& c) { c.out.y.strides[2] = -5; }, {"(72,18,-5,1)", "overlap"}},
      {"y_is_q",
       [](SampleCall& c) { c.out.y.data = const_cast<void*>(c.in.q.data); },
       {"y overlaps q in memory", "(2,4,3,6)", "(2,4,3,8)"}},
      {"y_is_gate",
       [](SampleCall& c) { c.out.y.data = const_cast<void*>(c.in.gate.data); },
       {"y overlaps gate in memory"}},
      {"y_is_attn", [](SampleCall& c) { c.out.attn = c.out.y; }, {"attn overlaps y in memory"}},
      {"y_ends_in_lse",
       [](SampleCall& c) { c.out.lse.data = static_cast<float*>(c.out.y.data) + kB * kHq * kT * kDv - 1; },
       {"lse overlaps y in memory"}},
      {"y_in_sinks",
       [](SampleCall& c) {
         c.in.sinks = {static_cast<float*>(c.out.y.data) + 8, DType::f64, {1, 1, 1, kHq}, {0, 0, 0, 1}};
       },
       {"y overlaps sinks in memory"}},
      {"fused_slot_too_early",
       [](SampleCall& c) {  // rows [q (8) | y (6)] of 14: y one element early reaches into the row's q
         auto* fused = static_cast<float*>(c.tensor(DType::f32, {kB, kHq, kT, 14}).data);
         c.in.q = make_view(fused, {kB, kHq, kT, kD}, {kHq * kT * 14, kT * 14, 14, 1});
         c.out.y = make_view(fused + kD - 1, {kB, kHq, kT, kDv}, {kHq * kT * 14, kT * 14, 14, 1});
       },
       {"y overlaps q in memory"}},
  };
}

INSTANTIATE_TEST_SUITE_P(Caches, BadForward, ::testing::ValuesIn(bad_caches()), test_name);
INSTANTIATE_TEST_SUITE_P(Outputs, BadForward, ::testing::ValuesIn(bad_outputs()), test_name);

class BadBackward : public ::testing::TestWithParam<BadCall> {};

TEST_P(BadBackward, Backward_BadArgument_IsRefused) {
  SampleCall call;
  GetParam().spoil(call);
  expect_refused(
      call, "attention_backward", [&] { call.backward(); }, GetParam().said);
}

std::vector<BadCall> bad_saved() {
  const auto lose_attn = [](GateFn fn) {
    return [fn](SampleCall& c) {
      c.options.gate_fn = fn;
      c.saved.attn = {};
    };
  };
  return {
      {"y_absent", [](SampleCall& c) { c.saved.y = {}; }, {"y is required"}},
      {"y_dtype", [](SampleCall& c) { c.saved.y.dtype = DType::f64; }, {"y has dtype f64 but must be f32"}},
      {"y_shape",
       [](SampleCall& c) { c.saved.y.shape[3] = kD; },
       {"y has shape (2,4,3,8) but (B,Hq,T,Dv) is (2,4,3,6)"}},
      {"lse_absent", [](SampleCall& c) { c.saved.lse = {}; }, {"lse is required"}},
      {"lse_dtype",
       [](SampleCall& c) { c.saved.lse.dtype = DType::f16; },
       {"lse has dtype f16 but must be f32 or f64"}},
      {"lse_shape",
       [](SampleCall& c) { c.saved.lse.shape[2] = kS; },
       {"lse has shape (2,4,5,1) but (B,Hq,T,1) is (2,4,3,1)"}},
      {"lse_of_a_closed_row_f64",
       [](SampleCall& c) { static_cast<double*>(const_cast<void*>(c.saved.lse.data))[16] = kInf; },
       {"lse[1,1,1] is inf: gate_threshold left this row out of the forward pass, or its scores or sinks overflowed"}},
      {"lse_of_a_closed_row_f32",
       [](SampleCall& c) {
         c.saved.lse = c.tensor(DType::f32, {kB, kHq, kT, 1});
         static_cast<float*>(const_cast<void*>(c.saved.lse.data))[2] = static_cast<float>(kInf);
       },
       {"lse[0,0,2] is inf"}},
      {"gate_threshold",
       [](SampleCall& c) { c.options.gate_threshold = 0.25; },
       {"gate_threshold is 0.25 but must be 0: rows that are not computed have no gradients"}},
      {"attn_absent_silu", lose_attn(GateFn::silu), {"attn is required"}},
      {"attn_absent_identity", lose_attn(GateFn::identity), {"attn is required"}},
      {"attn_shape",
       [](SampleCall& c) { c.saved.attn.shape[1] = kHkv; },
       {"attn has shape (2,2,3,6) but (B,Hq,T,Dv) is (2,4,3,6)"}},
      {"attn_dtype", [](SampleCall& c) { c.saved.attn.dtype = DType::bf16; }, {"attn has dtype bf16 but must be f32"}},
      {"dy_absent", [](SampleCall& c) { c.incoming.dy = {}; }, {"dy is required"}},
      {"dy_dtype", [](SampleCall& c) { c.incoming.dy.dtype = DType::f16; }, {"dy has dtype f16 but must be f32"}},
      {"dy_shape",
       [](SampleCall& c) { c.incoming.dy.shape[0] = 1; },
       {"dy has shape (1,4,3,6) but (B,Hq,T,Dv) is (2,4,3,6)"}},
      {"dlse_dtype",
       [](SampleCall& c) { c.incoming.dlse.dtype = DType::i32; },
       {"dlse has dtype i32 but must be f32 or f64"}},
      {"dlse_shape",
       [](SampleCall& c) { c.incoming.dlse.shape[1] = 1; },
       {"dlse has shape (2,1,3,1) but (B,Hq,T,1) is (2,4,3,1)"}},
  };
}

std::vector<BadCall> bad_gradients() {
  return {
      {"dq_dtype", [](SampleCall& c) { c.grad.dq.dtype = DType::f64; }, {"dq has dtype f64 but must be f32"}},
      {"dq_shape",
       [](SampleCall& c) { c.grad.dq.shape[3] = kDv; },
       {"dq has shape (2,4,3,6) but q has shape (2,4,3,8)"}},
      {"dk_query_heads",
       [](SampleCall& c) {
         c.grad.dk = c.tensor(DType::f32, {kB, kHq, kS, kD});
       },
       {"dk has shape (2,4,5,8) but k has shape (2,2,5,8)"}},
      {"dv_shape",
       [](SampleCall& c) { c.grad.dv.shape[3] = kD; },
       {"dv has shape (2,2,5,8) but v has shape (2,2,5,6)"}},
      {"dv_null", [](SampleCall& c) { c.grad.dv.data = nullptr; }, {"dv has shape (2,2,5,6) but null data"}},
      {"dgate_without_gate", [](SampleCall& c) { c.in.gate = {}; }, {"dgate is asked for but gate is absent"}},
      {"dgate_without_gate_fn",
       [](SampleCall& c) { c.options.gate_fn = GateFn::none; },
       {"dgate is asked for but gate_fn is none"}},
      {"dgate_shape",
       [](SampleCall& c) { c.grad.dgate.shape[3] = 1; },
       {"dgate has shape (2,4,3,1) but gate has shape (2,4,3,6)"}},
      {"dgate_dtype", [](SampleCall& c) { c.grad.dgate.dtype = DType::f64; }, {"dgate has dtype f64 but must be f32"}},
      {"dbias_without_bias", [](SampleCall& c) { c.in.bias = {}; }, {"dbias is asked for but bias is absent"}},
      {"dbias_stretched",
       [](SampleCall& c) {
         c.grad.dbias = c.tensor(DType::f32, {kB, kHq, kT, kS});
       },
       {"dbias has shape (2,4,3,5) but bias has shape (1,4,1,5)"}},
      {"dsinks_without_sinks", [](SampleCall& c) { c.in.sinks = {}; }, {"dsinks is asked for but sinks is absent"}},
      {"dsinks_of_heads",
       [](SampleCall& c) {
         c.in.sinks = c.tensor(DType::f64, {kB, kHq, kT, 1});
       },
       {"dsinks has shape (1,1,1,4) but sinks has shape (2,4,3,1)"}},
      {"dsinks_dtype",
       [](SampleCall& c) { c.grad.dsinks.dtype = DType::f32; },
       {"dsinks has dtype f32 but must be f64"}},
      {"dk_stride_0",
       [](SampleCall& c) { c.grad.dk.strides[0] = 0; },
       {"dk has shape (2,2,5,8) and strides (0,40,8,1)", "overlap"}},
      {"dq_is_q", [](SampleCall& c) { c.grad.dq.data = const_cast<void*>(c.in.q.data); }, {"dq overlaps q in memory"}},
      {"dq_is_dk", [](SampleCall& c) { c.grad.dq.data = c.grad.dk.data; }, {"dk overlaps dq in memory"}},
      {"dgate_is_y",
       [](SampleCall& c) { c.grad.dgate.data = const_cast<void*>(c.saved.y.data); },
       {"dgate overlaps y in memory"}},
      {"dgate_is_dy",
       [](SampleCall& c) { c.grad.dgate.data = const_cast<void*>(c.incoming.dy.data); },
       {"dgate overlaps dy in memory"}},
      {"dsinks_is_lse",
       [](SampleCall& c) { c.grad.dsinks.data = const_cast<void*>(c.saved.lse.data); },
       {"dsinks overlaps lse in memory"}},
  };
}

std::vector<BadCall> caches() {
  return {{"table", make_pages, {"block_table is given, but a cache has no gradients"}},
          {"bytes", make_bytes, {"k_scale is given, but a cache has no gradients"}}};
}

INSTANTIATE_TEST_SUITE_P(Caches, BadBackward, ::testing::ValuesIn(caches()), test_name);
INSTANTIATE_TEST_SUITE_P(Saved, BadBackward, ::testing::ValuesIn(bad_saved()), test_name);
INSTANTIATE_TEST_SUITE_P(Gradients, BadBackward, ::testing::ValuesIn(bad_gradients()), test_name);

TEST(BadArguments, Message_DTypesOfAnArgument_NamesEachOnce) {
  SampleCall call;
  call.in.bias.dtype = DType::f16;
  try {
    call.forward();
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "attention_forward: bias has dtype f16 but must be f32");
  }
}

TEST(BadArguments, SampleCall_Unchanged_WritesItsOutputs) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    SampleCall call(dtype);
    const auto before = call.snapshot();
    ASSERT_NO_THROW(call.forward()) << dtype_name(dtype);
    EXPECT_FALSE(call.unchanged_since(before)) << dtype_name(dtype);
    const auto between = call.snapshot();
    ASSERT_NO_THROW(call.backward()) << dtype_name(dtype);
    EXPECT_FALSE(call.unchanged_since(between)) << dtype_name(dtype);
  }
}

}  // namespace
}  // namespace headgate::testing
