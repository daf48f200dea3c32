// SPDX-License-Identifier: Apache-2.0
#include "attention/problem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>

#include "attention/overlap.hpp"
#include "core/check.hpp"
#include "core/element.hpp"
#include "core/statistics_outputs.hpp"
#include "gates/gate_functions.hpp"
#include "headgate/runtime.hpp"

namespace headgate {
namespace {

/// A view may span this many bytes: beyond any address space (57 bits), and sums of a few spans still fit in int64.
constexpr std::int64_t kMaxSpanBytes = std::int64_t{1} << 60;

struct Argument {
  const char* name = "";
  ConstTensorView view;
};

std::string dtype_text(DType dtype) {
  if (dtype == DType::none || dtype_bytes(dtype) != 0) return dtype_name(dtype);
  return fmt::format("unknown ({})", static_cast<std::int32_t>(dtype));
}

std::string dtypes_text(std::initializer_list<DType> dtypes) {
  std::string text;
  for (auto dtype = dtypes.begin(); dtype != dtypes.end(); ++dtype) {
    if (std::find(dtypes.begin(), dtype, *dtype) != dtype) continue;
    text += fmt::format("{}{}", text.empty() ? "" : " or ", dtype_name(*dtype));
  }
  return text;
}

/// Whether max(dim, 1) over `shape` multiplies up without overflow.
bool product_fits(const Shape& shape) {
  std::int64_t product = 1;
  for (const std::int64_t dim : shape) {
    if (__builtin_mul_overflow(product, std::max<std::int64_t>(dim, 1), &product)) return false;
  }
  return true;
}

bool span_fits(const ConstTensorView& view) {
  const std::int64_t bytes = dtype_bytes(view.dtype);
  std::int64_t low = 0;
  std::int64_t high = 0;
  for (std::size_t d = 0; d < 4; ++d) {
    std::int64_t reach = 0;
    if (view.shape[d] <= 1) continue;
    if (__builtin_mul_overflow(view.shape[d] - 1, view.strides[d], &reach)) return false;
    if (__builtin_mul_overflow(reach, bytes, &reach)) return false;
    if (reach < -kMaxSpanBytes || reach > kMaxSpanBytes) return false;
    (reach < 0 ? low : high) += reach;
  }
  if (high - low > kMaxSpanBytes) return false;
  const auto address = reinterpret_cast<std::uintptr_t>(view.data);
  return static_cast<std::uintptr_t>(-low) <= address &&
         static_cast<std::uintptr_t>(high + bytes) <= std::numeric_limits<std::uintptr_t>::max() - address;
}

/// Whether sorting by stride proves that no two elements share memory: each stride is longer than all that lies
/// below it. Refuses also the few interleavings that are free of overlap without being nested.
bool elements_disjoint(const ConstTensorView& view) {
  std::array<std::pair<std::int64_t, std::int64_t>, 4> dims{};  // |stride|, extent − 1
  for (std::size_t d = 0; d < 4; ++d) {
    if (view.shape[d] > 1) dims[d] = {std::abs(view.strides[d]), view.shape[d] - 1};
  }
  std::sort(dims.begin(), dims.end());
  std::int64_t span = 0;
  for (const auto& [stride, steps] : dims) {
    if (steps == 0) continue;
    if (stride <= span) return false;
    span += stride * steps;
  }
  return true;
}

/// As many arguments as a call can have, without an allocation.
class ArgumentList {
 public:
  void add(const Argument& arg) { arguments_[count_++] = arg; }
  const Argument* begin() const { return arguments_.data(); }
  const Argument* end() const { return arguments_.data() + count_; }

 private:
  static constexpr std::size_t kMost = 24;  // inputs of the backward pass: 15; outputs of statistics: 16
  std::array<Argument, kMost> arguments_;
  std::size_t count_ = 0;
};

/// The checks of one call. Every failure is one line that begins with the function's name.
class Call {
 public:
  explicit Call(const char* function) : function_(function) {}

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(fmt::format("{}: ", function_) + fmt::format(format, std::forward<Args>(args)...));
  }

  /// False for an absent tensor; one without a dtype must not carry data.
  bool given(const Argument& arg) const {
    if (!arg.view.present() && arg.view.data != nullptr) fail("{} has data but dtype none", arg.name);
    return arg.view.present();
  }

  void require_given(const Argument& arg) const {
    if (!given(arg)) fail("{} is required but absent", arg.name);
  }

  /// What holds for every view: dtype, sizes, memory.
  void input(const Argument& arg, std::initializer_list<DType> dtypes) {
    check(arg, dtypes);
    inputs_.add(arg);
  }

  void output(const Argument& arg, std::initializer_list<DType> dtypes) {
    check(arg, dtypes);
    outputs_.add(arg);
  }

  void shape(const Argument& arg, const char* letters, const Shape& expected) const {
    if (arg.view.shape != expected) {
      fail("{} has shape {} but {} is {}", arg.name, shape_text(arg.view.shape), letters, shape_text(expected));
    }
  }

  /// Every leading dimension is full or 1, the last one full.
  void broadcastable(const Argument& arg, const Shape& full) const {
    for (std::size_t d = 0; d < 4; ++d) {
      if (arg.view.shape[d] != full[d] && (d == 3 || arg.view.shape[d] != 1)) {
        fail("{} has shape {} but (B|1,Hq|1,T|1,S) is needed and (B,Hq,T,S) is {}", arg.name,
             shape_text(arg.view.shape), shape_text(full));
      }
    }
  }

  void same_dim(const Argument& a, const Argument& b, std::size_t dim, const char* letter) const {
    if (a.view.shape[dim] != b.view.shape[dim]) {
      fail("{} has shape {} but {} has shape {}: {} is {} and {}", a.name, shape_text(a.view.shape), b.name,
           shape_text(b.view.shape), letter, a.view.shape[dim], b.view.shape[dim]);
    }
  }

  /// Refuses an output that shares memory with itself, an input or another output. Views that interleave in one
  /// buffer, such as the parts of a fused projection, pass.
  void no_overlap() const {
    for (const Argument& output : outputs_) {
      const auto& [name, view] = output;
      if (view.numel() > 0 && !elements_disjoint(view)) {
        fail("{} has shape {} and strides {} under which elements overlap", name, shape_text(view.shape),
             shape_text(view.strides));
      }
      for (const Argument& other : inputs_) disjoint(output, other);
      for (const Argument* other = outputs_.begin(); other != &output; ++other) disjoint(output, *other);
    }
  }

 private:
  void check(const Argument& arg, std::initializer_list<DType> dtypes) const {
    const ConstTensorView& view = arg.view;
    if (std::find(dtypes.begin(), dtypes.end(), view.dtype) == dtypes.end()) {
      fail("{} has dtype {} but must be {}", arg.name, dtype_text(view.dtype), dtypes_text(dtypes));
    }
    if (std::any_of(view.shape.begin(), view.shape.end(), [](std::int64_t dim) { return dim < 0; })) {
      fail("{} has shape {} but sizes must be at least 0", arg.name, shape_text(view.shape));
    }
    if (!product_fits(view.shape)) {
      fail("{} has shape {} whose number of elements overflows 64 bits", arg.name, shape_text(view.shape));
    }
    check_memory(arg);
  }

  void check_memory(const Argument& arg) const {
    const ConstTensorView& view = arg.view;
    if (view.numel() > 0 && view.data == nullptr) {
      fail("{} has shape {} but null data", arg.name, shape_text(view.shape));
    }
    if (view.numel() > 0 && reinterpret_cast<std::uintptr_t>(view.data) % dtype_bytes(view.dtype) != 0) {
      fail("{} has data {} which is not aligned to the {} bytes of {}", arg.name, view.data, dtype_bytes(view.dtype),
           dtype_name(view.dtype));
    }
    // An empty view reaches no element, but kernels may still step over its outer dimensions.
    ConstTensorView reach = view;
    if (view.numel() == 0) reach.data = reinterpret_cast<const void*>(std::uintptr_t{1} << 62);
    if (!span_fits(reach)) {
      fail("{} has shape {} and strides {} which reach outside the address space", arg.name, shape_text(view.shape),
           shape_text(view.strides));
    }
  }

  void disjoint(const Argument& a, const Argument& b) const {
    if (provably_overlap(a.view, b.view)) {
      fail("{} overlaps {} in memory: {} has shape {} and strides {}, {} has shape {} and strides {}", a.name, b.name,
           a.name, shape_text(a.view.shape), shape_text(a.view.strides), b.name, shape_text(b.view.shape),
           shape_text(b.view.strides));
    }
  }

  const char* function_;
  ArgumentList inputs_;
  ArgumentList outputs_;
};

/// q, k and v, and the sizes they set.
void check_qkv(Call& call, const AttentionInputs& in, Problem& p) {
  const Argument q{"q", in.q};
  const Argument k{"k", in.k};
  const Argument v{"v", in.v};
  for (const Argument* arg : {&q, &k, &v}) {
    call.require_given(*arg);
    call.input(*arg, {DType::f32, DType::f64, DType::bf16, DType::f16});
    if (arg->view.dtype != in.q.dtype) {
      call.fail("{} has dtype {} but q has dtype {}", arg->name, dtype_name(arg->view.dtype), dtype_name(in.q.dtype));
    }
  }
  call.same_dim(k, q, 0, "B");
  call.same_dim(k, q, 3, "D");
  call.same_dim(v, k, 0, "B");
  call.same_dim(v, k, 1, "Hkv");
  call.same_dim(v, k, 2, "S");
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
  if (!product_fits({p.B, p.Hq, p.T, p.S})) {
    call.fail("q has shape {} and k has shape {}: B·Hq·T·S overflows 64 bits", shape_text(in.q.shape),
              shape_text(in.k.shape));
  }
}

/// Least and greatest magnitudes of the type that scores are computed in.
struct ScoreRange {
  double tiny, huge;
  const char* name;
};

ScoreRange score_range(DType dtype) {
  if (dtype == DType::f64) return {std::numeric_limits<double>::min(), std::numeric_limits<double>::max(), "f64"};
  return {std::numeric_limits<float>::min(), std::numeric_limits<float>::max(), "f32"};
}

template <typename Enum>
void check_enum(const Call& call, const char* name, Enum value, Enum last) {
  const auto code = static_cast<std::int32_t>(value);
  if (code < 0 || code > static_cast<std::int32_t>(last)) {
    call.fail("{} is {} but must be 0 to {}", name, code, static_cast<std::int32_t>(last));
  }
}

void check_gate_fn(const Call& call, GateFn fn) {
  if (fn == GateFn::none || gate_row(fn) < kGateFunctions.size()) return;
  call.fail("gate_fn is {} but must be 0 to {}", static_cast<std::int32_t>(fn), kGateFunctions.size());
}

void check_options(const Call& call, const AttentionOptions& options, const ScoreRange& range, Problem& p) {
  p.scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(p.D)));
  if (!(std::abs(p.scale) <= range.huge)) call.fail("scale is {} but must be finite in {}", p.scale, range.name);
  p.softcap = options.softcap;
  if (!(p.softcap == 0.0 || (p.softcap >= range.tiny && p.softcap <= range.huge))) {
    call.fail("softcap is {} but must be 0 for none, or positive, finite and normal in {}", p.softcap, range.name);
  }
  check_enum(call, "causality", options.causality, Causality::causal);
  check_gate_fn(call, options.gate_fn);
  check_enum(call, "gate_op", options.gate_op, GateOp::add);
  for (const auto& [name, window] :
       {std::pair{"window_left", options.window_left}, std::pair{"window_right", options.window_right}}) {
    if (window < -1) call.fail("{} is {} but must be at least -1", name, window);
  }
  try {
    p.context = resolved(options.context);
  } catch (const Error& error) {
    call.fail("{}", error.what());
  }

  p.window_left = options.window_left;
  p.window_right = options.causality == Causality::causal ? 0 : options.window_right;
  if (p.inputs.query_offsets.present()) return;
  // Windows that hide nothing are none.
  if (p.window_left >= p.S - 1) p.window_left = -1;
  if (p.window_right >= p.T - 1) p.window_right = -1;
}

void check_gate(Call& call, const AttentionInputs& in, const AttentionOptions& options, Problem& p) {
  const Argument gate{"gate", in.gate};
  if (!call.given(gate)) return;
  call.input(gate, {in.q.dtype, DType::f32});
  p.gate_headwise = gate.view.shape[3] == 1;
  const Shape elementwise{p.B, p.Hq, p.T, p.Dv};
  const Shape headwise{p.B, p.Hq, p.T, 1};
  if (gate.view.shape != headwise && gate.view.shape != elementwise) {
    call.fail("gate has shape {} but must be (B,Hq,T,1) = {} or (B,Hq,T,Dv) = {}", shape_text(gate.view.shape),
              shape_text(headwise), shape_text(elementwise));
  }
  p.gate_fn = options.gate_fn;
  p.gate_op = options.gate_op;
  if (p.gate_fn == GateFn::none) p.inputs.gate = {};
}

void check_bias_and_mask(Call& call, const AttentionInputs& in, Problem& p) {
  const Shape full{p.B, p.Hq, p.T, p.S};
  const Argument bias{"bias", in.bias};
  if (call.given(bias)) {
    call.input(bias, {in.q.dtype, DType::f32});
    call.broadcastable(bias, full);
    p.inputs.bias = broadcast_to(in.bias, full);
  }
  const Argument mask{"mask", in.mask};
  if (call.given(mask)) {
    call.input(mask, {DType::boolean});
    call.broadcastable(mask, full);
    p.inputs.mask = broadcast_to(in.mask, full);
  }
}

void check_key_lengths(Call& call, const AttentionInputs& in, const Problem& p) {
  const Argument lengths{"key_lengths", in.key_lengths};
  if (!call.given(lengths)) return;
  call.input(lengths, {DType::i32, DType::i64});
  call.shape(lengths, "(1,1,1,B)", {1, 1, 1, p.B});
  for (std::int64_t b = 0; b < p.B; ++b) {
    const std::int64_t n = load_index(in.key_lengths, b);
    if (n < 0 || n > p.S) call.fail("key_lengths[{}] is {} but must be 0 to S = {}", b, n, p.S);
  }
}

void check_query_offsets(Call& call, const AttentionInputs& in, const Problem& p) {
  const Argument offsets{"query_offsets", in.query_offsets};
  if (!call.given(offsets)) return;
  call.input(offsets, {DType::i32, DType::i64});
  call.shape(offsets, "(1,1,1,B)", {1, 1, 1, p.B});
  for (std::int64_t b = 0; b < p.B; ++b) {
    const std::int64_t at = load_index(in.query_offsets, b);
    if (at < -kMaxQueryOffset || at > kMaxQueryOffset) {
      call.fail("query_offsets[{}] is {} but must be {} to {}", b, at, -kMaxQueryOffset, kMaxQueryOffset);
    }
  }
}

/// One value per query head; −∞ passes where `may_hide`.
void check_per_head(Call& call, const Argument& arg, const ScoreRange& range, bool may_hide, const Problem& p) {
  if (!call.given(arg)) return;
  call.input(arg, {DType::f32, DType::f64});
  call.shape(arg, "(1,1,1,Hq)", {1, 1, 1, p.Hq});
  for (std::int64_t h = 0; h < p.Hq; ++h) {
    const double value = load(arg.view, 0, 0, 0, h);
    const bool hides = may_hide && value == -std::numeric_limits<double>::infinity();
    if (!hides && !(std::abs(value) <= range.huge)) {
      call.fail("{}[{}] is {} but must be finite in {}{}", arg.name, h, value, range.name, may_hide ? ", or -inf" : "");
    }
  }
}

Problem check_common(Call& call, const AttentionInputs& in, const AttentionOptions& options) {
  Problem p;
  p.inputs = in;
  check_qkv(call, in, p);
  const ScoreRange range = score_range(in.q.dtype);
  check_options(call, options, range, p);
  check_gate(call, in, options, p);
  check_bias_and_mask(call, in, p);
  check_key_lengths(call, in, p);
  check_query_offsets(call, in, p);
  check_per_head(call, {"alibi_slopes", in.alibi_slopes}, range, false, p);
  check_per_head(call, {"sinks", in.sinks}, range, true, p);
  return p;
}

/// Saved tensors are read: y and lse always, attn where it cannot be had from y.
void check_saved(Call& call, const AttentionInputs& in, const AttentionSaved& saved, bool needs_attn,
                 const Problem& p) {
  const Argument y{"y", saved.y};
  const Argument lse{"lse", saved.lse};
  const Argument attn{"attn", saved.attn};
  call.require_given(y);
  call.input(y, {in.q.dtype});
  call.shape(y, "(B,Hq,T,Dv)", {p.B, p.Hq, p.T, p.Dv});
  call.require_given(lse);
  call.input(lse, {DType::f32, DType::f64});
  call.shape(lse, "(B,Hq,T,1)", {p.B, p.Hq, p.T, 1});
  if (needs_attn && !call.given(attn)) {
    call.fail("attn is required by dgate under a {} gate that multiplies but absent", word_of(p.gate_fn));
  }
  if (call.given(attn)) {
    call.input(attn, {in.q.dtype});
    call.shape(attn, "(B,Hq,T,Dv)", {p.B, p.Hq, p.T, p.Dv});
  }
}

void check_incoming(Call& call, const AttentionInputs& in, const AttentionIncoming& incoming, const Problem& p) {
  const Argument dy{"dy", incoming.dy};
  call.require_given(dy);
  call.input(dy, {in.q.dtype});
  call.shape(dy, "(B,Hq,T,Dv)", {p.B, p.Hq, p.T, p.Dv});
  const Argument dlse{"dlse", incoming.dlse};
  if (call.given(dlse)) {
    call.input(dlse, {DType::f32, DType::f64});
    call.shape(dlse, "(B,Hq,T,1)", {p.B, p.Hq, p.T, 1});
  }
}

/// A gradient has the shape and dtype of what it is the gradient of, which must be there.
void check_gradient(Call& call, const Argument& gradient, const Argument& of) {
  if (!call.given(gradient)) return;
  if (!of.view.present()) call.fail("{} is asked for but {} is absent", gradient.name, of.name);
  call.output(gradient, {of.view.dtype});
  if (gradient.view.shape != of.view.shape) {
    call.fail("{} has shape {} but {} has shape {}", gradient.name, shape_text(gradient.view.shape), of.name,
              shape_text(of.view.shape));
  }
}

/// Indices in [0, size), any number of them.
void check_indices(Call& call, const Argument& arg, const char* letter, std::int64_t size) {
  if (!call.given(arg)) return;
  call.input(arg, {DType::i32, DType::i64});
  call.shape(arg, "(1,1,1,N)", {1, 1, 1, arg.view.shape[3]});
  for (std::int64_t n = 0; n < arg.view.shape[3]; ++n) {
    const std::int64_t index = load_index(arg.view, n);
    if (index < 0 || index >= size) {
      call.fail("{}[{}] is {} but must be at least 0 and less than {} = {}", arg.name, n, index, letter, size);
    }
  }
}

/// What of the inputs statistics read. Nothing of v: k stands in for its sizes, with the gate's Dv.
AttentionInputs read_by_statistics(const Call& call, const AttentionStatistics& outputs, const AttentionInputs& given,
                                   const AttentionOptions& options) {
  AttentionInputs in = given;
  if (!wants_figure(outputs, kFirstGated)) {
    in.gate = {};
  } else if (!in.gate.present()) {
    call.fail("first_gated is asked for but gate is absent");
  } else if (options.gate_fn == GateFn::none) {
    call.fail("first_gated is asked for but gate_fn is none");
  } else if (options.gate_op == GateOp::add) {
    call.fail("first_gated is asked for but gate_op is add, and nothing passes a gate that is added");
  }
  in.v = in.k;
  in.v.shape[3] = in.gate.present() ? std::clamp<std::int64_t>(in.gate.shape[3], 1, kMaxHeadDim) : 1;
  in.v.strides[3] = 0;
  return in;
}

void check_selection(Call& call, const AttentionStatistics& outputs, const StatisticsSelection& selection,
                     const Problem& p) {
  check_indices(call, {"keys", selection.keys}, "S", p.S);
  check_indices(call, {"queries", selection.queries}, "T", p.T);
  for (const TensorView AttentionStatistics::*member :
       {&AttentionStatistics::key_weights, &AttentionStatistics::mean_key_weights}) {
    if ((outputs.*member).present() && !selection.keys.present()) {
      call.fail("{} is asked for but keys is absent",
                member == &AttentionStatistics::key_weights ? "key_weights" : "mean_key_weights");
    }
  }
  if (outputs.rows.present() && !selection.queries.present()) call.fail("rows is asked for but queries is absent");
  if (wants_figure(outputs, kWindowShare) && selection.window < 0) {
    call.fail("window is {} but must be at least 0", selection.window);
  }
}

/// Empty sequences need no work, however many there are.
void leave_out_empty(Problem& p) {
  if (p.T == 0 && p.S == 0) p.B = 0;
}

}  // namespace

ForwardProblem check_forward(const AttentionOutputs& outputs, const AttentionInputs& inputs,
                             const AttentionOptions& options) {
  Call call("attention_forward");
  ForwardProblem p{check_common(call, inputs, options), outputs};
  const Argument y{"y", outputs.y};
  call.require_given(y);
  call.output(y, {inputs.q.dtype});
  call.shape(y, "(B,Hq,T,Dv)", {p.B, p.Hq, p.T, p.Dv});
  const Argument lse{"lse", outputs.lse};
  if (call.given(lse)) {
    call.output(lse, {DType::f32, DType::f64});
    call.shape(lse, "(B,Hq,T,1)", {p.B, p.Hq, p.T, 1});
  }
  const Argument attn{"attn", outputs.attn};
  if (call.given(attn)) {
    call.output(attn, {inputs.q.dtype});
    call.shape(attn, "(B,Hq,T,Dv)", {p.B, p.Hq, p.T, p.Dv});
  }
  const Argument weights{"weights", outputs.weights};
  if (call.given(weights)) {
    call.output(weights, {inputs.q.dtype});
    call.shape(weights, "(B,Hq,T,S)", {p.B, p.Hq, p.T, p.S});
  }
  call.no_overlap();
  leave_out_empty(p);
  return p;
}

BackwardProblem check_backward(const AttentionGradients& gradients, const AttentionInputs& inputs,
                               const AttentionSaved& saved, const AttentionIncoming& incoming,
                               const AttentionOptions& options) {
  Call call("attention_backward");
  BackwardProblem p{check_common(call, inputs, options), saved, incoming, gradients};
  if (gradients.dgate.present() && inputs.gate.present() && p.gate_fn == GateFn::none) {
    call.fail("dgate is asked for but gate_fn is none");
  }
  check_saved(call, inputs, saved, loses_output(p.gate_fn, p.gate_op) && gradients.dgate.present(), p);
  check_incoming(call, inputs, incoming, p);
  check_gradient(call, {"dq", gradients.dq}, {"q", inputs.q});
  check_gradient(call, {"dk", gradients.dk}, {"k", inputs.k});
  check_gradient(call, {"dv", gradients.dv}, {"v", inputs.v});
  check_gradient(call, {"dgate", gradients.dgate}, {"gate", inputs.gate});
  check_gradient(call, {"dbias", gradients.dbias}, {"bias", inputs.bias});
  check_gradient(call, {"dsinks", gradients.dsinks}, {"sinks", inputs.sinks});
  call.no_overlap();
  leave_out_empty(p);
  return p;
}

StatisticsProblem check_statistics(const AttentionStatistics& outputs, const AttentionInputs& inputs,
                                   const ConstTensorView& lse, const StatisticsSelection& selection,
                                   const AttentionOptions& options) {
  Call call("attention_statistics");
  StatisticsProblem p{check_common(call, read_by_statistics(call, outputs, inputs, options), options), lse, selection,
                      outputs};
  p.inputs.v = {};
  const Argument log_sum{"lse", lse};
  call.require_given(log_sum);
  call.input(log_sum, {DType::f32, DType::f64});
  call.shape(log_sum, "(B,Hq,T,1)", {p.B, p.Hq, p.T, 1});
  check_selection(call, outputs, selection, p);

  const ConstTensorView top = outputs.topk_index.present() ? outputs.topk_index : outputs.topk_weight;
  const StatisticsSizes sizes{p.B, p.Hq, p.T, p.S, selection.keys.shape[3], selection.queries.shape[3], top.shape[3]};
  if (top.present() && (sizes.top_keys < 1 || sizes.top_keys > kMaxTopKeys)) {
    call.fail("{} has shape {}: K is {} but must be 1 to {}",
              outputs.topk_index.present() ? "topk_index" : "topk_weight", shape_text(top.shape), sizes.top_keys,
              kMaxTopKeys);
  }
  if (top.present() && p.S > std::numeric_limits<std::int32_t>::max()) {
    call.fail("k has shape {} but top keys are counted in 32 bits", shape_text(inputs.k.shape));
  }
  bool sums = false;
  for (const StatisticsOutput& output : kStatisticsOutputs) {
    const Argument arg{output.name, outputs.*output.member};
    if (!call.given(arg)) continue;
    if (output.is_index()) {
      call.output(arg, {DType::i32, DType::i64});
    } else {
      call.output(arg, {DType::f32, DType::f64});
    }
    call.shape(arg, letters_of(output).data(), sizes.shape(output));
    sums = sums || output.third == StatisticsDim::one;
  }
  call.no_overlap();
  if (!sums) leave_out_empty(p);
  return p;
}

}  // namespace headgate
