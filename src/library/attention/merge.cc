// SPDX-License-Identifier: Apache-2.0
#include "library/attention/merge.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "library/attention/gate_checks.hpp"
#include "library/call/live_threads.hpp"
#include "library/core/check.hpp"
#include "library/core/element.hpp"
#include "library/core/format.hpp"

namespace headgate {
namespace {

constexpr std::int64_t kMaxSequences = std::int64_t{1} << 32;  // largest B; bounds the memory of KeyRangeVectors

/// Checks the parts, and sets the sizes in `m`.
/// Stores the tensors' names for error messages, such as "parts[0].attn", in `names`.
void check_parts(Call& call, std::span<const MergePart> parts, std::vector<std::string>& names, MergeProblem& m) {
  if (parts.empty()) call.fail("parts is empty but must have at least one part");
  names.reserve(2 * parts.size());
  for (std::size_t n = 0; n < parts.size(); ++n) {
    const Argument attn{names.emplace_back(formatted("parts[{}].attn", n)).c_str(), parts[n].attn};
    const Argument lse{names.emplace_back(formatted("parts[{}].lse", n)).c_str(), parts[n].lse};
    call.require_given(attn);
    call.require_given(lse);
    if (n == 0) {
      call.input(attn, {DType::f32, DType::f64, DType::bf16, DType::f16});
      m.dtype = attn.view.dtype;
      m.B = attn.view.shape[0];
      m.Hq = attn.view.shape[1];
      m.T = attn.view.shape[2];
      m.Dv = attn.view.shape[3];
      if (m.Dv < 1 || m.Dv > kMaxHeadDim) {
        call.fail("parts[0].attn has shape {}: Dv is {} but must be 1 to {}", shape_text(attn.view.shape), m.Dv,
                  kMaxHeadDim);
      }
    } else {
      call.input(attn, {m.dtype});
      call.shape(attn, "parts[0].attn", parts[0].attn.shape);
    }
    call.input(lse, {DType::f32, DType::f64});
    call.shape(lse, "(B,Hq,T,1)", {m.B, m.Hq, m.T, 1});
  }
  m.parts = parts;
}

/// Fails if an lse of any part is +∞, which marks a row that was skipped. `names` comes from check_parts().
void check_parts_computed(const Call& call, const MergeProblem& m, const std::vector<std::string>& names) {
  for (std::size_t n = 0; n < m.parts.size(); ++n) {
    check_rows_computed(call, {names[2 * n + 1].c_str(), m.parts[n].lse});
  }
}

void check_gate(Call& call, const ConstTensorView& view, const AttentionOptions& options, MergeProblem& m) {
  check_gate_choice(call, options.gate_fn, options.gate_op);
  m.context = call.context(options.context);
  const Argument gate{"gate", view};
  if (!call.given(gate)) return;
  check_gate_logits(call, gate, m.dtype, {m.B, m.Hq, m.T, m.Dv});
  m.gate_fn = options.gate_fn;
  m.gate_op = options.gate_op;
  if (m.gate_fn != GateFn::none) m.gate = view;
}

void check_row_output(Call& call, const Argument& arg, const MergeProblem& m) {
  if (!call.given(arg)) return;
  call.output(arg, {m.dtype});
  call.shape(arg, "(B,Hq,T,Dv)", {m.B, m.Hq, m.T, m.Dv});
}

void check_lse_output(Call& call, const Argument& arg, const MergeProblem& m) {
  if (!call.given(arg)) return;
  call.output(arg, {DType::f32, DType::f64});
  call.shape(arg, "(B,Hq,T,1)", {m.B, m.Hq, m.T, 1});
}

/// Checks a vector (1,1,1,B) of integers, which must be from `low` to `high`.
void check_vector(Call& call, const Argument& arg, std::int64_t B, std::int64_t low, std::int64_t high) {
  if (!call.given(arg)) return;
  call.input(arg, {DType::i32, DType::i64});
  call.shape(arg, "(1,1,1,B)", {1, 1, 1, B});
  call.entries(arg, B, low, high);
}

ConstTensorView columns(const Call& call, const Argument& map, std::int64_t begin, std::int64_t end, std::int64_t S) {
  if (!call.given(map)) return {};
  if (map.view.shape[3] != S) {
    call.fail("{} has shape {} but S = {}", map.name, shape_text(map.view.shape), S);
  }
  return narrow(map.view, 3, begin, end);
}

}  // namespace

AttentionInputs narrow_keys(const AttentionInputs& inputs, std::int64_t begin, std::int64_t end,
                            KeyRangeVectors& vectors) {
  Call call("narrow_keys");
  for (const Argument& arg : {Argument{"q", inputs.q}, Argument{"k", inputs.k}, Argument{"v", inputs.v}}) {
    call.require_given(arg);
  }
  if (inputs.cu_seqlens_q.present() || inputs.cu_seqlens_k.present()) {
    call.fail("cu_seqlens_q and cu_seqlens_k are given but a packed batch has no one range of keys");
  }
  if (inputs.block_table.present()) call.fail("block_table is given but a range of keys is not one of whole pages");
  if (inputs.key_indices.present()) {
    call.fail("key_indices is given but its entries number all keys: make lists of the range's keys, numbered from 0");
  }
  const std::int64_t B = inputs.q.shape[0];
  const std::int64_t S = inputs.k.shape[2];
  if (std::any_of(inputs.q.shape.begin(), inputs.q.shape.end(), [](std::int64_t size) { return size < 0; })) {
    call.fail("q has shape {} but sizes must be at least 0", shape_text(inputs.q.shape));
  }
  if (B > kMaxSequences) {
    call.fail("q has shape {}: B is {} but must be at most {}", shape_text(inputs.q.shape), B, kMaxSequences);
  }
  call.same_dim({"k", inputs.k}, {"q", inputs.q}, 0, "B");
  call.same_dim({"v", inputs.v}, {"k", inputs.k}, 2, "S");
  if (begin < 0 || begin > end || end > S) {
    call.fail("keys {} to {} are asked for but must be 0 <= begin <= end <= S = {}", begin, end, S);
  }
  check_vector(call, {"query_offsets", inputs.query_offsets}, B, begin - kMaxQueryOffset, kMaxQueryOffset);
  check_vector(call, {"key_lengths", inputs.key_lengths}, B, 0, S);

  const auto rows_of_scale = [&](const Argument& scale) {
    if (!call.given(scale)) return scale.view;
    call.same_dim(scale, {"k", inputs.k}, 2, "S");
    return narrow(scale.view, 2, begin, end);
  };
  // Returns the unrounded rows from key `begin` on, or an absent tensor if there are none.
  const auto unrounded_rows = [&](const Argument& first) {
    const std::int64_t F = first.view.shape[2];
    if (!call.given(first) || F <= begin) return ConstTensorView{};
    return narrow(first.view, 2, begin, F);
  };
  AttentionInputs range = inputs;
  range.k = narrow(inputs.k, 2, begin, end);
  range.v = narrow(inputs.v, 2, begin, end);
  range.k_scale = rows_of_scale({"k_scale", inputs.k_scale});
  range.v_scale = rows_of_scale({"v_scale", inputs.v_scale});
  range.k_first = unrounded_rows({"k_first", inputs.k_first});
  range.v_first = unrounded_rows({"v_first", inputs.v_first});
  range.bias = columns(call, {"bias", inputs.bias}, begin, end, S);
  range.key_bias = columns(call, {"key_bias", inputs.key_bias}, begin, end, S);
  range.mask = columns(call, {"mask", inputs.mask}, begin, end, S);
  vectors = {};
  vectors.query_offsets.reserve(static_cast<std::size_t>(B));
  for (std::int64_t b = 0; b < B; ++b) {
    const std::int64_t at =
        inputs.query_offsets.present() ? load_index(inputs.query_offsets, b) : S - inputs.q.shape[2];
    vectors.query_offsets.push_back(at - begin);
    if (!inputs.key_lengths.present()) continue;
    vectors.key_lengths.push_back(std::clamp<std::int64_t>(load_index(inputs.key_lengths, b) - begin, 0, end - begin));
  }
  range.query_offsets = make_vector_view(vectors.query_offsets.data(), B);
  if (inputs.key_lengths.present()) range.key_lengths = make_vector_view(vectors.key_lengths.data(), B);
  return range;
}

void attention_merge(const AttentionOutputs& outputs, std::span<const MergePart> parts, const ConstTensorView& gate,
                     const AttentionOptions& options) {
  Call call("attention_merge");
  MergeProblem m;
  std::vector<std::string> names;
  check_parts(call, parts, names, m);
  check_gate(call, gate, options, m);
  check_row_output(call, {"y", outputs.y}, m);
  check_row_output(call, {"attn", outputs.attn}, m);
  check_lse_output(call, {"lse", outputs.lse}, m);
  if (call.given({"weights", outputs.weights})) call.fail("weights is given but a merge has none");
  if (call.given({"max_logit", outputs.max_logit})) {
    call.fail("max_logit is given but a merge has none: take the largest of the parts' max_logit");
  }
  if (!outputs.y.present() && !outputs.attn.present() && !outputs.lse.present()) {
    call.fail("y, attn and lse are all absent");
  }
  call.no_overlap();
  check_parts_computed(call, m, names);
  m.outputs = outputs;
  run_on_live_threads(m.context.threads, [&m] { cpu_merge(m); });
}

void attention_merge_backward(std::span<const MergePartGradients> gradients, const TensorView& dgate,
                              std::span<const MergePart> parts, const ConstTensorView& gate,
                              const AttentionIncoming& incoming, const AttentionOptions& options) {
  Call call("attention_merge_backward");
  MergeProblem m;
  std::vector<std::string> names;
  check_parts(call, parts, names, m);
  check_gate(call, gate, options, m);
  const Argument dy{"dy", incoming.dy};
  call.require_given(dy);
  call.input(dy, {m.dtype});
  call.shape(dy, "(B,Hq,T,Dv)", {m.B, m.Hq, m.T, m.Dv});
  const Argument dlse{"dlse", incoming.dlse};
  if (call.given(dlse)) {
    call.input(dlse, {DType::f32, DType::f64});
    call.shape(dlse, "(B,Hq,T,1)", {m.B, m.Hq, m.T, 1});
  }
  if (gradients.size() != parts.size()) {
    call.fail("gradients has {} parts but parts has {}", gradients.size(), parts.size());
  }
  std::vector<std::string> gradient_names;
  gradient_names.reserve(2 * gradients.size());
  for (std::size_t n = 0; n < gradients.size(); ++n) {
    const auto name = [&](const char* what) {
      return gradient_names.emplace_back(formatted("gradients[{}].{}", n, what)).c_str();
    };
    check_row_output(call, {name("attn"), gradients[n].attn}, m);
    check_lse_output(call, {name("lse"), gradients[n].lse}, m);
  }
  const Argument gate_gradient{"dgate", dgate};
  if (call.given(gate_gradient)) {
    if (!gate.present()) call.fail("dgate is asked for but gate is absent");
    if (m.gate_fn == GateFn::none) call.fail("dgate is asked for but gate_fn is none");
    call.output(gate_gradient, {gate.dtype});
    call.shape(gate_gradient, "gate", gate.shape);
  }
  call.no_overlap();
  check_parts_computed(call, m, names);
  m.incoming = incoming;
  m.gradients = gradients;
  m.dgate = dgate;
  run_on_live_threads(m.context.threads, [&m] { cpu_merge(m); });
}

}  // namespace headgate
