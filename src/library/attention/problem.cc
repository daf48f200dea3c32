// SPDX-License-Identifier: Apache-2.0
#include "library/attention/problem.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <numbers>
#include <string>
#include <tuple>
#include <utility>

#include "library/attention/gate_checks.hpp"
#include "library/call/compute_range.hpp"
#include "library/core/attention_tensors.hpp"
#include "library/core/check.hpp"
#include "library/core/element.hpp"
#include "library/core/format.hpp"
#include "library/core/gate_functions.hpp"
#include "library/core/statistics_outputs.hpp"

namespace headgate {
namespace {

/// Checks the shape of the block table, which must have one row per sequence. Sets p.page and p.S from the table.
/// Does nothing if there is no block table.
void check_pages(Call& call, const AttentionInputs& in, Problem& p) {
  const Argument table{"block_table", in.block_table};
  if (!call.given(table)) return;
  call.input(table, {DType::i32});
  const std::int64_t entries = table.view.shape[3];
  call.shape(table, p.packed() ? "(1,1,N,M)" : "(1,1,B,M)", {1, 1, p.N, entries});
  p.page = in.k.shape[2];
  if (p.page == 0) call.fail("k has shape {}: pages of 0 tokens", shape_text(in.k.shape));
  if (__builtin_mul_overflow(entries, p.page, &p.S)) {
    call.fail("block_table has shape {} and k has shape {}: S = M·page overflows 64 bits",
              shape_text(in.block_table.shape), shape_text(in.k.shape));
  }
}

/// Checks the dtypes of q, k and v.
void check_qkv_dtypes(Call& call, const AttentionInputs& in) {
  const Argument q{"q", in.q};
  const Argument k{"k", in.k};
  const Argument v{"v", in.v};
  call.require_given(q);
  call.input(q, {DType::f32, DType::f64, DType::bf16, DType::f16});
  for (const Argument* arg : {&k, &v}) {
    call.require_given(*arg);
    call.input(*arg, {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i8});
  }
  if (in.k.dtype != in.q.dtype && in.k.dtype != DType::i8) {
    call.fail("k has dtype {} but q has dtype {}", dtype_name(in.k.dtype), dtype_name(in.q.dtype));
  }
  if (in.v.dtype != in.k.dtype) {
    const bool with_q = in.k.dtype == in.q.dtype;
    call.fail("v has dtype {} but {} has dtype {}", dtype_name(in.v.dtype), with_q ? "q" : "k", dtype_name(in.k.dtype));
  }
}

/// Checks q, k and v. Sets the sizes in `p` from their shapes.
void check_qkv(Call& call, const AttentionInputs& in, Problem& p) {
  const Argument q{"q", in.q};
  const Argument k{"k", in.k};
  const Argument v{"v", in.v};
  check_qkv_dtypes(call, in);
  const bool paged = call.given({"block_table", in.block_table});
  if (!paged) call.same_dim(k, q, 0, "B");
  call.same_dim(k, q, 3, "D");
  call.same_dim(v, k, 0, paged ? "P" : "B");
  call.same_dim(v, k, 1, "Hkv");
  call.same_dim(v, k, 2, paged ? "page" : "S");
  for (const Argument* arg : {&q, &v}) {
    const std::int64_t dim = arg->view.shape[3];
    if (dim < 1 || dim > kMaxHeadDim) {
      call.fail("{} has shape {}: {} is {} but must be 1 to {}", arg->name, shape_text(arg->view.shape),
                arg == &q ? "D" : "Dv", dim, kMaxHeadDim);
    }
  }
  p.B = in.q.shape[0];
  p.Hq = in.q.shape[1];
  p.Hkv = in.k.shape[1];
  p.T = in.q.shape[2];
  p.S = in.k.shape[2];
  p.D = in.q.shape[3];
  p.Dv = in.v.shape[3];
  if (p.Hkv == 0 ? p.Hq != 0 : p.Hq % p.Hkv != 0) {
    call.fail("q has shape {} but k has shape {}: Hq = {} is not a multiple of Hkv = {}", shape_text(in.q.shape),
              shape_text(in.k.shape), p.Hq, p.Hkv);
  }
  p.group = p.Hkv == 0 ? 1 : p.Hq / p.Hkv;
}

/// Fails if the number of attention scores overflows 64 bits.
void check_size_of_scores(const Call& call, const AttentionInputs& in, const Problem& p) {
  const std::int64_t batches = p.page > 0 ? p.N : p.B;
  if (product_fits({batches, p.Hq, p.T, p.S})) return;
  call.fail("q has shape {} and k has shape {}: {}·Hq·T·S overflows 64 bits", shape_text(in.q.shape),
            shape_text(in.k.shape), batches == p.B ? "B" : "N");
}

/// Checks k_scale and v_scale. If k and v are int8, each needs one scale per token and head. Otherwise scales must be
/// absent.
void check_scales(Call& call, const AttentionInputs& in) {
  for (const auto& [scale, of] : {std::pair{Argument{"k_scale", in.k_scale}, Argument{"k", in.k}},
                                  std::pair{Argument{"v_scale", in.v_scale}, Argument{"v", in.v}}}) {
    const bool needed = of.view.dtype == DType::i8;
    if (call.given(scale) && !needed) {
      call.fail("{} is given but {} has dtype {} and not i8", scale.name, of.name, dtype_name(of.view.dtype));
    }
    if (!needed) continue;
    if (!call.given(scale)) call.fail("{} is required by {} of dtype i8 but absent", scale.name, of.name);
    call.input(scale, {DType::f32});
    call.shape(scale, in.block_table.present() ? "(P,Hkv,page,1)" : "(B,Hkv,S,1)",
               {of.view.shape[0], of.view.shape[1], of.view.shape[2], 1});
  }
}

/// Checks k_first and v_first, which hold the first F rows of each sequence without rounding to int8.
void check_first_rows(Call& call, const AttentionInputs& in, const Problem& p) {
  const Argument k{"k_first", in.k_first};
  const Argument v{"v_first", in.v_first};
  if (call.given(k) != call.given(v)) {
    call.fail("{} is given but {} is absent", call.given(k) ? k.name : v.name, call.given(k) ? v.name : k.name);
  }
  if (!call.given(k)) return;
  if (in.k.dtype != DType::i8) {
    call.fail("k_first is given but k has dtype {} and not i8", dtype_name(in.k.dtype));
  }
  const std::int64_t F = k.view.shape[2];
  for (const auto& [rows, letters, width] : {std::tuple{k, p.packed() ? "(N,Hkv,F,D)" : "(B,Hkv,F,D)", p.D},
                                             std::tuple{v, p.packed() ? "(N,Hkv,F,Dv)" : "(B,Hkv,F,Dv)", p.Dv}}) {
    call.input(rows, {DType::f32, DType::f64, DType::bf16, DType::f16});
    call.shape(rows, letters, {p.N, p.Hkv, F, width});
  }
  if (in.v_first.dtype != in.k_first.dtype) {
    call.fail("v_first has dtype {} but k_first has dtype {}", dtype_name(in.v_first.dtype),
              dtype_name(in.k_first.dtype));
  }
}

/// Returns true if the call is so small that one thread finishes it before a second thread could start.
/// The limit is 2^18 multiply-adds, which take one thread about ten microseconds.
/// If fewer than eight queries share a key, the limit is half as large, because each loaded number is used less often.
/// Both limits were measured in the forward pass.
/// The backward pass uses the same limits, but could use twice as large ones.
bool is_small_work(const Problem& p) {
  constexpr double kSmall = 1 << 18;
  constexpr std::int64_t kFewQueries = 8;
  double work = static_cast<double>(p.D + p.Dv);
  for (const std::int64_t n : {p.B, p.Hq, p.T, p.S}) work *= static_cast<double>(n);
  return work <= (p.T * p.group < kFewQueries ? kSmall / 2 : kSmall);
}

void check_dropout(const Call& call, const AttentionOptions& options) {
  const double dropout = options.dropout;
  if (!(dropout >= 0.0 && dropout < 1.0)) call.fail("dropout is {} but must be in [0, 1)", dropout);
}

void check_options(const Call& call, const AttentionOptions& options, const ComputeRange& range, Problem& p) {
  p.scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(p.D)));
  // Kernels multiply scores by scale · log2(e), so that this product must be finite.
  if (!(std::abs(p.scale) * std::numbers::log2e <= range.huge)) {
    call.fail("scale is {} but must be finite in {}, times log2(e) too", p.scale, range.name);
  }
  p.softcap = options.softcap;
  if (!(p.softcap == 0.0 || (p.softcap >= range.tiny && p.softcap <= range.huge))) {
    call.fail("softcap is {} but must be 0 for none, or positive, finite and normal in {}", p.softcap, range.name);
  }
  check_enum(call, "causality", options.causality, Causality::causal);
  check_enum(call, "precision", options.precision, Precision::native16);
  p.precision = options.precision;
  if (p.precision == Precision::native16 && p.inputs.q.dtype != DType::bf16) {
    call.fail("precision is native16 but q is {}, not bf16", dtype_name(p.inputs.q.dtype));
  }
  check_dropout(call, options);
  p.dropout = options.dropout;
  p.dropout_seed = options.dropout_seed;
  check_gate_choice(call, options.gate_fn, options.gate_op);
  p.context = call.context(options.context);
  if (options.context.threads == 0 && is_small_work(p)) p.context.threads = 1;

  p.window_left = options.window_left;
  p.window_right = options.window_right;
  if (options.causality == Causality::causal && (p.window_right == kNoWindow || p.window_right > 0)) p.window_right = 0;
  if (p.inputs.query_offsets.present()) return;
  // Removes window limits that hide no key.
  if (p.window_left >= p.S - 1) p.window_left = kNoWindow;
  if (p.window_right >= p.T - 1) p.window_right = kNoWindow;
}

void check_gate(Call& call, const AttentionInputs& in, const AttentionOptions& options, Problem& p) {
  const Argument gate{"gate", in.gate};
  if (!call.given(gate)) return;
  check_gate_logits(call, gate, in.q.dtype, {p.B, p.Hq, p.T, p.Dv});
  p.gate_headwise = gate.view.shape[3] == 1;
  p.gate_fn = options.gate_fn;
  p.gate_op = options.gate_op;
  if (p.gate_fn == GateFn::none) p.inputs.gate = {};
}

void check_range_of_gate_threshold(const Call& call, const AttentionOptions& options, const ComputeRange& range) {
  const double threshold = options.gate_threshold;
  if (!(threshold >= 0.0 && threshold <= range.huge)) {
    call.fail("gate_threshold is {} but must be at least 0 and finite in {}", threshold, range.name);
  }
}

void check_gate_threshold(const Call& call, const AttentionOptions& options, const ComputeRange& range, Problem& p) {
  check_range_of_gate_threshold(call, options, range);
  p.gate_threshold = options.gate_threshold;
  if (p.gate_threshold > 0.0 && (p.gate_fn == GateFn::none || p.gate_op != GateOp::mul)) {
    call.fail("gate_threshold is {} but there is no gate that multiplies", p.gate_threshold);
  }
}

void check_biases_and_mask(Call& call, const AttentionInputs& in, Problem& p) {
  const Shape full{p.B, p.Hq, p.T, p.S};
  const Argument bias{"bias", in.bias};
  if (call.given(bias)) {
    call.input(bias, {in.q.dtype, DType::f32});
    call.broadcastable(bias, full);
    p.inputs.bias = broadcast_to(in.bias, full);
  }
  const Argument key_bias{"key_bias", in.key_bias};
  if (call.given(key_bias)) {
    call.input(key_bias, {DType::f32, DType::f64, DType::bf16, DType::f16});
    call.broadcastable(key_bias, {p.B, 1, 1, p.S}, "(B|1,1,1,S)", "(B,1,1,S)");
    p.inputs.key_bias = broadcast_to(in.key_bias, full);
  }
  const Argument mask{"mask", in.mask};
  if (call.given(mask)) {
    call.input(mask, {DType::boolean});
    call.broadcastable(mask, full);
    p.inputs.mask = broadcast_to(in.mask, full);
  }
}

/// Checks cu_seqlens_q, the bounds of the sequences in a packed batch. Sets p.N, the number of sequences.
void check_query_bounds(Call& call, const AttentionInputs& in, Problem& p) {
  const Argument queries{"cu_seqlens_q", in.cu_seqlens_q};
  p.N = p.B;
  if (!call.given(queries)) return;
  if (p.B != 1)
    call.fail("cu_seqlens_q is given but q has shape {}: B is {} but must be 1", shape_text(in.q.shape), p.B);
  call.bounds(queries, "T", p.T);
  p.N = queries.view.shape[3] - 1;
}

/// Checks cu_seqlens_k, the bounds of the sequences in packed keys. With a block table, cu_seqlens_k must be absent.
void check_key_bounds(Call& call, const AttentionInputs& in, const Problem& p) {
  const Argument queries{"cu_seqlens_q", in.cu_seqlens_q};
  const Argument keys{"cu_seqlens_k", in.cu_seqlens_k};
  if (call.given(keys) && p.page > 0) {
    call.fail("cu_seqlens_k is given together with block_table: key_lengths say how many keys a sequence has in pages");
  }
  if (call.given(keys) != p.packs_keys()) {
    call.fail("{} is given but {} is absent", p.packed() ? queries.name : keys.name,
              p.packed() ? keys.name : queries.name);
  }
  if (!p.packs_keys()) return;
  call.bounds(keys, "S", p.S);
  call.same_dim(keys, queries, 3, "N + 1");
}

/// Returns the shape of a tensor with one entry per sequence, as text for error messages.
const char* sequences_letters(const Problem& p) { return p.packed() ? "(1,1,1,N)" : "(1,1,1,B)"; }

void check_key_lengths(Call& call, const AttentionInputs& in, const Problem& p) {
  const Argument lengths{"key_lengths", in.key_lengths};
  if (!call.given(lengths)) return;
  call.input(lengths, {DType::i32, DType::i64});
  call.shape(lengths, sequences_letters(p), {1, 1, 1, p.N});
  for (std::int64_t n = 0; n < p.N; ++n) {
    const std::int64_t keys = load_index(in.key_lengths, n);
    const std::int64_t most = p.packs_keys() ? p.sequence(n).S : p.S;
    if (keys < 0 || keys > most) {
      call.fail("key_lengths[{}] is {} but must be 0 to S{} = {}", n, keys, p.packs_keys() ? "_n" : "", most);
    }
  }
}

void check_query_offsets(Call& call, const AttentionInputs& in, const Problem& p) {
  const Argument offsets{"query_offsets", in.query_offsets};
  if (!call.given(offsets)) return;
  call.input(offsets, {DType::i32, DType::i64});
  call.shape(offsets, sequences_letters(p), {1, 1, 1, p.N});
  call.entries(offsets, p.N, -kMaxQueryOffset, kMaxQueryOffset);
}

/// Checks the page numbers in each row of the block table, up to the page of the sequence's last key.
/// Later entries are never read.
void check_block_table(const Call& call, const AttentionInputs& in, const Problem& p) {
  if (!in.block_table.present()) return;
  if (!in.key_lengths.present()) call.fail("block_table is given but key_lengths is absent");
  const std::int64_t pages = in.k.shape[0];
  for (std::int64_t b = 0; b < p.N; ++b) {
    const std::int64_t keys = load_index(in.key_lengths, b);
    const std::int64_t used = keys / p.page + (keys % p.page != 0 ? 1 : 0);
    for (std::int64_t m = 0; m < used; ++m) {
      const std::int64_t e = page_of(in.block_table, b, m);
      if (e < 0 || e >= pages) {
        call.fail("block_table[{},{}] is {} but must be 0 to {}: k has P = {} pages", b, m, e, pages - 1, pages);
      }
    }
  }
}

/// Checks the K entries of one key list. Each entry must be -1, or the number of a key block from 0 to `blocks` - 1.
/// `at` is the index of the list in key_indices, for the error message.
template <typename Index>
void check_list(const Call& call, const Index* list, std::int64_t stride, std::int64_t K, std::int64_t blocks,
                const std::array<std::int64_t, 3>& at) {
  const auto is_wrong = [blocks](std::int64_t e) { return e < -1 || e >= blocks; };
  bool any_wrong = false;
  if (stride == 1) {
    for (std::int64_t n = 0; n < K; ++n) any_wrong |= is_wrong(list[n]);  // no early exit, so that the loop vectorizes
    if (!any_wrong) return;
  }
  for (std::int64_t n = 0; n < K; ++n) {
    const std::int64_t e = list[n * stride];
    if (!is_wrong(e)) continue;
    call.fail("key_indices[{},{},{},{}] is {} but must be -1 to {}", at[0], at[1], at[2], n, e, blocks - 1);
  }
}

/// Checks key_indices, which has one key list per query and key/value head. Broadcasts key_indices over batches and
/// heads.
void check_key_indices(Call& call, const AttentionInputs& in, const AttentionOptions& options, Problem& p) {
  const Argument arg{"key_indices", in.key_indices};
  p.key_block_size = options.key_block_size;
  if (p.key_block_size < 1) call.fail("key_block_size is {} but must be at least 1", p.key_block_size);
  if (!call.given(arg)) {
    if (p.key_block_size != 1) call.fail("key_block_size is {} but key_indices is absent", p.key_block_size);
    return;
  }
  call.input(arg, {DType::i32, DType::i64});
  const Shape full{p.B, p.Hkv, p.T, arg.view.shape[3]};
  if (arg.view.shape[2] != p.T) call.shape(arg, "(B|1,Hkv|1,T,K)", full);
  call.broadcastable(arg, full, "(B|1,Hkv|1,T,K)", "(B,Hkv,T,K)");
  p.inputs.key_indices = broadcast_to(in.key_indices, full);
  const std::int64_t K = full[3];
  const Shape& strides = arg.view.strides;
  const auto check_row = [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t S) {
    const std::int64_t at = b * strides[0] + h * strides[1] + i * strides[2];
    const std::int64_t blocks = S / p.key_block_size + (S % p.key_block_size != 0 ? 1 : 0);
    if (arg.view.dtype == DType::i32) {
      check_list(call, static_cast<const std::int32_t*>(arg.view.data) + at, strides[3], K, blocks, {b, h, i});
    } else {
      check_list(call, static_cast<const std::int64_t*>(arg.view.data) + at, strides[3], K, blocks, {b, h, i});
    }
  };
  for (std::int64_t b = 0; b < arg.view.shape[0]; ++b) {
    for (std::int64_t h = 0; h < arg.view.shape[1]; ++h) {
      for (std::int64_t n = 0; p.packed() && n < p.N; ++n) {
        const Sequence s = p.sequence(n);
        for (std::int64_t i = s.q0; i < s.q0 + s.T; ++i) check_row(b, h, i, s.S);
      }
      for (std::int64_t i = 0; !p.packed() && i < p.T; ++i) check_row(b, h, i, p.S);
    }
  }
}

/// Checks the ALiBi slopes. There is one slope per query head, or one per sequence and query head.
void check_alibi_slopes(Call& call, const Argument& arg, const ComputeRange& range, const Problem& p) {
  if (!call.given(arg)) return;
  call.input(arg, {DType::f32, DType::f64});
  const bool by_sequence = arg.view.shape[2] != 1;
  call.shape(arg,
             !by_sequence ? "(1,1,1,Hq)"
             : p.packed() ? "(1,1,N,Hq)"
                          : "(1,1,B,Hq)",
             {1, 1, by_sequence ? p.N : 1, p.Hq});
  for (std::int64_t n = 0; n < arg.view.shape[2]; ++n) {
    for (std::int64_t h = 0; h < p.Hq; ++h) {
      const double value = load(arg.view, 0, 0, n, h);
      if (std::abs(value) <= range.huge) continue;
      const std::string index = by_sequence ? formatted("{},{}", n, h) : formatted("{}", h);
      call.fail("{}[{}] is {} but must be finite in {}", arg.name, index, value, range.name);
    }
  }
}

/// Checks the sink logits, which must be finite or −∞.
/// There is one logit per query head, or one per query head and query. All batches may share them.
void check_sinks(Call& call, const AttentionInputs& in, const ComputeRange& range, Problem& p) {
  const Argument arg{"sinks", in.sinks};
  if (!call.given(arg)) return;
  call.input(arg, {DType::f32, DType::f64});
  p.sinks_by_query = !are_sinks_of_heads(arg.view);
  const std::int64_t batches = arg.view.shape[0] == 1 ? 1 : p.B;
  if (p.sinks_by_query) {
    call.shape(arg, batches == 1 ? "(1,Hq,T,1)" : "(B,Hq,T,1)", {batches, p.Hq, p.T, 1});
  } else {
    call.shape(arg, "(1,1,1,Hq)", {1, 1, 1, p.Hq});
    std::swap(p.inputs.sinks.shape[1], p.inputs.sinks.shape[3]);
    std::swap(p.inputs.sinks.strides[1], p.inputs.sinks.strides[3]);
  }
  for (std::int64_t row = 0, T = p.inputs.sinks.shape[2]; row < batches * p.Hq * T; ++row) {
    const std::int64_t b = row / T / p.Hq, h = row / T % p.Hq, i = row % T;
    const double value = load(p.inputs.sinks, b, h, i, 0);
    if (value == -std::numeric_limits<double>::infinity() || std::abs(value) <= range.huge) continue;
    const std::string index = p.sinks_by_query ? formatted("{},{},{}", b, h, i) : formatted("{}", h);
    call.fail("{}[{}] is {} but must be finite in {}, or -inf", arg.name, index, value, range.name);
  }
  p.inputs.sinks = broadcast_to(p.inputs.sinks, {p.B, p.Hq, p.T, 1});
}

Problem check_common(Call& call, const AttentionInputs& in, const AttentionOptions& options) {
  Problem p;
  p.inputs = in;
  check_qkv(call, in, p);
  check_query_bounds(call, in, p);
  check_pages(call, in, p);
  check_size_of_scores(call, in, p);
  check_scales(call, in);
  check_first_rows(call, in, p);
  const ComputeRange range = compute_range(in.q.dtype);
  check_options(call, options, range, p);
  check_gate(call, in, options, p);
  check_gate_threshold(call, options, range, p);
  check_biases_and_mask(call, in, p);
  check_key_bounds(call, in, p);
  check_key_lengths(call, in, p);
  check_block_table(call, in, p);
  check_query_offsets(call, in, p);
  check_key_indices(call, in, options, p);
  check_alibi_slopes(call, {"alibi_slopes", in.alibi_slopes}, range, p);
  check_sinks(call, in, range, p);
  return p;
}

/// Selects whether check_query_tensors() checks tensors that the call reads or tensors that it writes.
enum class Access { reads, writes };

/// Checks the tensors of `views` that the table kRows names: outputs, saved tensors or incoming gradients.
/// Fails if the call reads a required tensor that is absent.
template <Access kAccess, const auto& kRows, class Struct>
void check_query_tensors(Call& call, const Struct& views, const Problem& p) {
  for (const auto& row : kRows) {
    const Argument arg{row.name, views.*row.member};
    if (kAccess == Access::reads && row.traits.required) call.require_given(arg);
    if (!call.given(arg)) continue;
    const auto check_types = [&](std::initializer_list<DType> types) {
      kAccess == Access::reads ? call.input(arg, types) : call.output(arg, types);
    };
    row.elements == Elements::of_q ? check_types({p.inputs.q.dtype}) : check_types({DType::f32, DType::f64});
    const Shape rows{p.B, p.Hq, p.T, last_dim(row.kind, p.S, p.Dv)};
    if (row.kind == TensorKind::rows_or_heads && arg.view.shape[2] == 1 && arg.view.shape != rows) {
      call.shape(arg, p.packed() ? "(N,Hq,1,1)" : "(B,Hq,1,1)", {p.N, p.Hq, 1, 1});
      continue;
    }
    const char* const letters = row.kind == TensorKind::heads    ? "(B,Hq,T,Dv)"
                                : row.kind == TensorKind::scores ? "(B,Hq,T,S)"
                                                                 : "(B,Hq,T,1)";
    call.shape(arg, letters, rows);
  }
}

/// Checks the saved tensors of the backward pass. y and lse are required. attn is required if `needs_attn`:
/// dgate depends on attn, which cannot be computed from y where the gate is 0.
void check_saved(Call& call, const AttentionSaved& saved, bool needs_attn, const Problem& p) {
  check_query_tensors<Access::reads, kSavedTensors>(call, saved, p);
  if (needs_attn && !saved.attn.present()) {
    call.fail("attn is required by dgate under a {} gate that multiplies but absent", word_of(p.gate_fn));
  }
}

/// Returns inputs for checking a call that does not read v. Puts k in place of v, so that the checks of v's shape pass.
/// This v has as many columns as the gate.
AttentionInputs without_values(const AttentionInputs& given) {
  AttentionInputs in = given;
  in.v = in.k;
  in.v_scale = in.k_scale;
  in.v_first = in.k_first;
  for (ConstTensorView* rows : {&in.v, &in.v_first}) {
    rows->shape[3] = in.gate.present() ? std::clamp<std::int64_t>(in.gate.shape[3], 1, kMaxHeadDim) : 1;
    rows->strides[3] = 0;
  }
  return in;
}

/// Returns the inputs that attention_statistics reads. v is left out. The gate is left out unless first_gated is
/// requested.
AttentionInputs read_by_statistics(const Call& call, const AttentionStatistics& outputs, const AttentionInputs& given,
                                   const AttentionOptions& options) {
  AttentionInputs in = given;
  if (!wants_row_statistic(outputs, kFirstGated)) {
    in.gate = {};
  } else if (!in.gate.present()) {
    call.fail("first_gated is asked for but gate is absent");
  } else if (options.gate_fn == GateFn::none) {
    call.fail("first_gated is asked for but gate_fn is none");
  } else if (options.gate_op == GateOp::add) {
    call.fail("first_gated is asked for but gate_op is add, and nothing passes a gate that is added");
  }
  return without_values(in);
}

void check_selection(Call& call, const AttentionStatistics& outputs, const StatisticsSelection& selection,
                     const Problem& p) {
  call.indices({"keys", selection.keys}, "(1,1,1,J)", "S", p.S);
  call.indices({"queries", selection.queries}, "(1,1,1,R)", "T", p.T);
  for (const TensorView AttentionStatistics::*member :
       {&AttentionStatistics::key_weights, &AttentionStatistics::mean_key_weights}) {
    if ((outputs.*member).present() && !selection.keys.present()) {
      call.fail("{} is asked for but keys is absent",
                member == &AttentionStatistics::key_weights ? "key_weights" : "mean_key_weights");
    }
  }
  if (outputs.rows.present() && !selection.queries.present()) call.fail("rows is asked for but queries is absent");
  if (wants_row_statistic(outputs, kWindowShare) && selection.window < 0) {
    call.fail("window is {} but must be at least 0", selection.window);
  }
}

/// Turns `p` into a forward pass without y, which writes only lse, weights or max_logit.
/// Sets Dv to 0, so that kernels do not multiply by values. Removes the gate, because it is not read.
void leave_out_y(const Call& call, ForwardProblem& p) {
  if (p.outputs.attn.present()) call.fail("attn is asked for but y is absent");
  if (!p.outputs.lse.present() && !p.outputs.weights.present() && !p.outputs.max_logit.present()) {
    call.fail("y is required but absent, and so are lse, weights and max_logit");
  }
  if (p.gate_threshold > 0.0) {
    call.fail("gate_threshold is {} but y is absent: it must then be 0, since the gate is not read", p.gate_threshold);
  }
  p.Dv = p.inputs.v.shape[3] = p.inputs.v_first.shape[3] = 0;
  p.inputs.gate = {};
}

/// Sets B and N to 0 if there are no queries and no keys. Empty tensors may have a huge B, over which kernels would
/// loop.
void leave_out_empty(Problem& p) {
  if (p.T == 0 && p.S == 0) p.B = p.N = 0;
}

}  // namespace

ForwardProblem check_forward(const AttentionOutputs& outputs, const AttentionInputs& inputs,
                             const AttentionOptions& options) {
  Call call("attention_forward");
  const bool reads_values = outputs.y.present() || inputs.v.present();
  ForwardProblem p{check_common(call, reads_values ? inputs : without_values(inputs), options), outputs};
  if (!call.given({"y", outputs.y})) leave_out_y(call, p);
  check_query_tensors<Access::writes, kAttentionOutputs>(call, outputs, p);
  call.no_overlap();
  leave_out_empty(p);
  if (p.T == 0) p.N = 0;
  return p;
}

BackwardProblem check_backward(const AttentionGradients& gradients, const AttentionInputs& inputs,
                               const AttentionSaved& saved, const AttentionIncoming& incoming,
                               const AttentionOptions& options) {
  Call call("attention_backward");
  for (const AttentionInput& row : kAttentionInputs) {
    if (row.traits.forward_only && call.given({row.name, inputs.*row.member})) {
      call.fail("{} is given, but a cache has no gradients: the forward pass alone reads it", row.name);
    }
  }
  BackwardProblem p{check_common(call, inputs, options), saved, incoming, gradients};
  if (p.gate_threshold > 0.0) {
    call.fail("gate_threshold is {} but must be 0: rows that are not computed have no gradients", p.gate_threshold);
  }
  if (gradients.dgate.present() && inputs.gate.present() && p.gate_fn == GateFn::none) {
    call.fail("dgate is asked for but gate_fn is none");
  }
  check_saved(call, saved, loses_output(p.gate_fn, p.gate_op) && gradients.dgate.present(), p);
  check_query_tensors<Access::reads, kIncomingTensors>(call, incoming, p);
  for (const AttentionGradient& row : kAttentionGradients) {
    call.gradient({row.name, gradients.*row.member}, {input_of_gradient(row).name, inputs.*row.gradient_of});
  }
  call.no_overlap();
  check_rows_computed(call, {"lse", saved.lse});
  leave_out_empty(p);
  return p;
}

StatisticsProblem check_statistics(const AttentionStatistics& outputs, const AttentionInputs& inputs,
                                   const ConstTensorView& lse, const StatisticsSelection& selection,
                                   const AttentionOptions& options) {
  Call call("attention_statistics");
  AttentionOptions all_rows = options;  // lse = +∞ marks rows that gate_threshold skipped
  all_rows.gate_threshold = 0.0;
  all_rows.dropout = 0.0;  // ignores dropout, which does not affect lse
  const bool causal = options.causality == Causality::causal && options.window_right >= kNoWindow;
  StatisticsProblem p{check_common(call, read_by_statistics(call, outputs, inputs, options), all_rows),
                      causal || options.window_right == 0, lse, selection, outputs};
  check_dropout(call, options);
  check_range_of_gate_threshold(call, options, compute_range(p.inputs.q.dtype));
  p.inputs.v = p.inputs.v_scale = p.inputs.v_first = {};
  const Argument log_sum{"lse", lse};
  call.require_given(log_sum);
  call.input(log_sum, {DType::f32, DType::f64});
  call.shape(log_sum, "(B,Hq,T,1)", {p.B, p.Hq, p.T, 1});
  check_selection(call, outputs, selection, p);

  const ConstTensorView top = outputs.topk_index.present() ? outputs.topk_index : outputs.topk_weight;
  StatisticsSizes sizes{p.B, p.Hq, p.T, p.S};
  sizes.sequences = p.N;
  sizes.key_batches = p.packs_keys() ? p.B : p.N;
  sizes.chosen_keys = selection.keys.shape[3];
  sizes.chosen_rows = selection.queries.shape[3];
  sizes.top_keys = top.shape[3];
  if (top.present() && (sizes.top_keys < 1 || sizes.top_keys > kMaxTopKeys)) {
    call.fail("{} has shape {}: K is {} but must be 1 to {}",
              outputs.topk_index.present() ? "topk_index" : "topk_weight", shape_text(top.shape), sizes.top_keys,
              kMaxTopKeys);
  }
  if (top.present() && p.S > std::numeric_limits<std::int32_t>::max()) {
    call.fail("k has shape {} but top keys are counted in 32 bits", shape_text(inputs.k.shape));
  }
  bool sums = false;
  const char* const sequences = p.packed() ? "N" : "B";
  for (const StatisticsOutput& output : kStatisticsOutputs) {
    const Argument arg{output.name, outputs.*output.member};
    if (!call.given(arg)) continue;
    if (output.is_index()) {
      call.output(arg, {DType::i32, DType::i64});
    } else {
      call.output(arg, {DType::f32, DType::f64});
    }
    call.shape(arg, letters_of(output, sequences, p.packs_keys() ? "B" : sequences).c_str(), sizes.shape(output));
    sums = sums || output.third == StatisticsDim::one;
  }
  call.no_overlap();
  if (!sums) leave_out_empty(p);
  return p;
}

}  // namespace headgate
