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

/// The values of tensors. sharp: softmax close to one-hot; extreme: logits and gate logits in the thousands; denormal:
/// some tensors below the smallest normal number.
enum class Values { normal, sharp, extreme, denormal };

/// The gate's logits: none, (B,Hq,T,1) or (B,Hq,T,Dv).
enum class GateInput { none, headwise, elementwise };

}  // namespace headgate::verify

namespace headgate {

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

/// A (B|1,Hq|1,T|1,S) input: present, and full where set.
struct MapSpec {
  bool present = false;
  bool full_b = false;
  bool full_h = false;
  bool full_t = false;
};

/// Bits of CaseSpec::absent_gradients.
enum GradientBit : unsigned { kDq = 1, kDk = 2, kDv = 4, kDgate = 8, kDbias = 16, kDsinks = 32 };

/// What is asked of attention_statistics. All outputs that the selection and the gate allow, but for the absent ones.
struct StatisticsSpec {
  unsigned absent = 0;  ///< bit n: row n of kStatisticsOutputs
  DType dtype = DType::f32;
  DType index_dtype = DType::i64;  ///< of topk_index and of the selection
  std::int64_t keys = 2, queries = 2, top_keys = 3;
  std::int64_t window = 1;
};

/// The description of a problem, for tests, `headgate verify` and bench. `Case` makes its tensors. The defaults are the
/// simplest problem, so that a failing random one shrinks towards it. Of the options, gate_threshold and context are
/// set by Case: read `closed_share` and `threads`.
struct CaseSpec : AttentionOptions {
  std::int64_t B = 1, Hkv = 1, group = 1, T = 1, S = 1, D = 1, Dv = 1;  // Hq = Hkv · group
  DType dtype = DType::f32;
  Layout layout = Layout::bhtd;
  Values values = Values::normal;

  GateInput gate_input = GateInput::none;
  bool gate_f32 = false;  // else the dtype of q

  MapSpec bias;
  bool bias_f32 = false;     // else the dtype of q
  bool bias_hides = false;   // a quarter of its entries and an eighth of its rows are −∞
  bool bias_breaks = false;  // one entry is +∞ and one NaN
  MapSpec mask;
  DType key_lengths = DType::none;    // none, i32, i64
  DType query_offsets = DType::none;  // none, i32, i64
  DType alibi_slopes = DType::none;   // none, f32, f64
  bool alibi_by_sequence = false;     // each sequence has slopes of its own
  DType sinks = DType::none;          // none, f32, f64
  bool huge_hidden_keys = false;      // k and v of keys that no query sees are the largest number of their dtype

  DType lse = DType::f32;    // none, f32, f64; the backward pass always saves one
  DType dlse = DType::none;  // none, f32, f64
  bool attn = false;
  bool weights = false;
  unsigned absent_gradients = 0;  // GradientBit
  int threads = 1;
  std::uint64_t seed = 1;
  DType cu_seqlens = DType::none;  // none, i32, i64: a packed batch of T queries, and S keys unless paged, in all, B 1
  std::int64_t packed = 1;         // its sequences; read only with cu_seqlens
  std::vector<std::int64_t> packed_queries, packed_keys;  // their lengths, drawn from the seed where empty

  std::int64_t page = 0;       // tokens of a page of k and v; 0: no block table. With pages, key_lengths is there too
  bool quantized = false;      // k and v are int8 with scales
  double closed_share = -1.0;  // about the share of rows that gate_threshold closes in forward passes; < 0: none is set
  bool closed_by_group = false;  // gates differ most between K/V heads, so that groups of heads close as a whole

  StatisticsSpec statistics;

  std::int64_t Hq() const { return Hkv * group; }
  std::int64_t sequences() const { return cu_seqlens == DType::none ? B : packed; }
  /// What the forward pass alone takes.
  bool forward_only() const { return page > 0 || quantized; }
  DType key_dtype() const { return quantized ? DType::i8 : dtype; }
  /// Pages that a sequence may have, and all that there are: a few are no sequence's.
  std::int64_t pages_each() const { return page > 0 ? S / page : 0; }
  std::int64_t pages() const { return sequences() * pages_each() + 2; }
  /// silu and identity may be 0, and then o cannot be recovered from y.
  bool saves_attn() const { return attn || (gate_input != GateInput::none && loses_output(gate_fn, gate_op)); }
};

/// One line, every field that is not at its default.
std::string describe(const CaseSpec& spec);

/// Draws a spec by asking `pick`.
CaseSpec draw_spec(const Pick& pick);

/// draw_spec from a random sequence.
CaseSpec random_spec(std::uint64_t seed);

/// A fixed list that covers every feature and dtype, and sizes around block edges.
std::vector<CaseSpec> standard_cases();

}  // namespace headgate::verify
