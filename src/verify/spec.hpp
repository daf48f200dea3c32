// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headgate/attention.hpp"
#include "library/core/gate_functions.hpp"
#include "library/core/words.hpp"
#include "verify/layout.hpp"
#include "verify/pick.hpp"

namespace headgate::verify {

/// Distribution of the tensors' values.
/// - sharp: softmax is close to one-hot
/// - extreme: logits and gate logits are in the thousands
/// - denormal: some tensors have only subnormal numbers
enum class Values { normal, sharp, extreme, denormal };

/// Selects the keys that a mask or a bias hides.
/// - scattered: all keys of an eighth of the rows; in other rows, a third (mask) or a quarter (bias) of the keys
/// - scattered_keys: in every row, a third (mask) or a quarter (bias) of the keys
/// - documents: all keys outside one contiguous range, which is the same for an eighth of the rows
enum class Hidden { scattered, scattered_keys, documents };

/// Shape of the gate logits: none, (B,Hq,T,1) or (B,Hq,T,Dv).
enum class GateInput { none, headwise, elementwise };

}  // namespace headgate::verify

namespace headgate {

template <>
struct Words<verify::Hidden> {
  static constexpr std::array<Word<verify::Hidden>, 3> kAll{{{verify::Hidden::scattered, "scattered"},
                                                             {verify::Hidden::scattered_keys, "scattered_keys"},
                                                             {verify::Hidden::documents, "documents"}}};
};

template <>
struct Words<verify::Values> {
  static constexpr std::array<Word<verify::Values>, 4> kAll{{{verify::Values::normal, "normal"},
                                                             {verify::Values::sharp, "sharp"},
                                                             {verify::Values::extreme, "extreme"},
                                                             {verify::Values::denormal, "denormal"}}};
};

template <>
struct Words<verify::GateInput> {
  static constexpr std::array<Word<verify::GateInput>, 3> kAll{{{verify::GateInput::none, "none"},
                                                                {verify::GateInput::headwise, "headwise"},
                                                                {verify::GateInput::elementwise, "elementwise"}}};
};

}  // namespace headgate

namespace headgate::verify {

/// A bias or mask (B|1,Hq|1,T|1,S). A dimension has size 1 unless its flag full_… is set.
struct MapSpec {
  bool present = false;
  bool full_b = false;
  bool full_h = false;
  bool full_t = false;
};

/// Bits of CaseSpec::absent_gradients, one for each gradient. A set bit omits the gradient.
enum GradientBit : unsigned { kDq = 1, kDk = 2, kDv = 4, kDgate = 8, kDbias = 16, kDsinks = 32 };

/// Selects the outputs of attention_statistics: all except those in `absent`.
/// Outputs that describe the gate also require a gate that multiplies.
struct StatisticsSpec {
  unsigned absent = 0;  ///< if bit n is set, output n of kStatisticsOutputs is omitted
  DType dtype = DType::f32;
  DType index_dtype = DType::i64;  ///< dtype of topk_index, and of the selected keys and queries
  std::int64_t keys = 2, queries = 2, top_keys = 3;
  std::int64_t window = 1;
};

/// Describes a problem for tests, `headgate verify` and benchmarks. Case creates the problem's tensors.
/// The defaults describe the simplest problem. Tests simplify a failing random problem towards the defaults.
/// Case also sets the options gate_threshold, from `closed_share`, and `context`, from `threads`.
struct CaseSpec : AttentionOptions {
  std::int64_t B = 1, Hkv = 1, group = 1, T = 1, S = 1, D = 1, Dv = 1;  // Hq = Hkv · group
  DType dtype = DType::f32;
  Layout layout = Layout::bhtd;
  Values values = Values::normal;

  GateInput gate_input = GateInput::none;
  bool gate_f32 = false;  // true: gate is f32; false: the dtype of q

  MapSpec bias;
  bool bias_f32 = false;            // true: bias is f32; false: the dtype of q
  bool bias_hides = false;          // true: the bias is −∞ for the keys that `hidden` selects
  bool bias_breaks = false;         // true: one entry of the bias is +∞ and one is NaN
  DType key_bias = DType::none;     // dtype of key_bias, or none
  bool key_bias_by_batch = false;   // true: each sequence has its own row of key_bias; false: all share one
  DType key_indices = DType::none;  // dtype of the lists of keys, or none
  // true: each sequence (lists_by_batch) or each key/value head (lists_by_head) has its own lists
  bool lists_by_batch = false, lists_by_head = false;
  bool lists_full = false;        // true: each list has one entry from each of K equal parts of the keys
  std::int64_t list_entries = 0;  // K
  MapSpec mask;
  Hidden hidden = Hidden::scattered;  // keys hidden by the mask and, if bias_hides, by the bias
  DType key_lengths = DType::none;    // dtype of key_lengths: none, i32 or i64
  DType query_offsets = DType::none;  // dtype of query_offsets: none, i32 or i64
  DType alibi_slopes = DType::none;   // dtype of alibi_slopes: none, f32 or f64
  bool alibi_by_sequence = false;     // true: each sequence has its own slopes
  DType sinks = DType::none;          // dtype of sinks: none, f32 or f64
  bool sinks_by_query = false;        // true: each query has its own sink; false: each head has one
  bool sinks_by_batch = false;        // true: each batch has its own sinks; read only with sinks_by_query
  bool huge_hidden_keys = false;      // true: k and v are huge but finite for keys that no query sees

  DType lse = DType::f32;    // dtype of lse: none, f32 or f64; a backward pass always saves lse
  DType dlse = DType::none;  // dtype of dlse: none, f32 or f64
  bool attn = false;
  bool weights = false;
  DType max_logit = DType::none;  // dtype of max_logit: none, f32 or f64
  // true: max_logit has one number for each head of a sequence; false: one for each row
  bool max_logit_by_head = false;
  unsigned absent_gradients = 0;  // GradientBit
  int threads = 1;
  std::uint64_t seed = 1;
  DType cu_seqlens = DType::none;  // dtype of cu_seqlens: none, or i32/i64 for a packed batch of T queries, B = 1
  std::int64_t packed = 1;         // number of packed sequences; read only with cu_seqlens
  std::vector<std::int64_t> packed_queries, packed_keys;  // sequence lengths; drawn from the seed if empty

  std::int64_t page = 0;           // number of rows in a page of k and v; 0: no pages; > 0 requires key_lengths
  bool quantized = false;          // k and v are int8 with scales
  DType first_rows = DType::none;  // dtype of k_first and v_first, or none; read only with `quantized`
  std::int64_t first = 0;          // F, the number of rows of k_first and v_first per sequence
  double closed_share = -1.0;      // approximate fraction of rows that gate_threshold closes; < 0: no threshold
  bool closed_by_group = false;    // makes gates similar within a GQA group, so that gate_threshold closes whole groups

  StatisticsSpec statistics;

  std::int64_t Hq() const { return Hkv * group; }
  std::int64_t sequences() const { return cu_seqlens == DType::none ? B : packed; }
  /// Returns whether only the forward pass supports the problem: those with pages or with int8 k and v.
  bool forward_only() const { return page > 0 || quantized; }
  DType key_dtype() const { return quantized ? DType::i8 : dtype; }
  /// Return the number of pages per sequence and the total number of pages. At least two pages are unused.
  std::int64_t pages_each() const { return page > 0 ? S / page : 0; }
  std::int64_t pages() const { return sequences() * pages_each() + 2; }
  /// Returns whether the forward pass must save attn, the output o before the gate. Gates whose function can be 0, such
  /// as silu, require this: if y = 0 · o, y does not determine o.
  bool saves_attn() const { return attn || (gate_input != GateInput::none && loses_output(gate_fn, gate_op)); }
};

/// Returns one line with the sizes and every field that differs from its default.
std::string describe(const CaseSpec& spec);

/// Draws a spec with random numbers from `pick`.
CaseSpec draw_spec(const Pick& pick);

/// Draws a spec from random numbers seeded with `seed`.
CaseSpec random_spec(std::uint64_t seed);

/// Returns a fixed list of problems that covers every option and dtype, and sizes near the kernels' block sizes.
std::vector<CaseSpec> standard_cases();

}  // namespace headgate::verify
