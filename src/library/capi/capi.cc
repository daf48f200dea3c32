// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "headgate/attention.hpp"
#include "headgate/convert.hpp"
#include "headgate/headgate.h"
#include "headgate/merge.hpp"
#include "headgate/runtime.hpp"
#include "headgate/statistics.hpp"
#include "library/capi/sized.hpp"
#include "library/capi/status.hpp"
#include "library/capi/tensors.hpp"
#include "library/core/check.hpp"

namespace headgate::capi {
namespace {

template <typename Enum>
constexpr bool same(std::int32_t c, Enum cpp) {
  return c == static_cast<std::int32_t>(cpp);
}
static_assert(same(HEADGATE_DTYPE_NONE, DType::none) && same(HEADGATE_DTYPE_F32, DType::f32) &&
              same(HEADGATE_DTYPE_F64, DType::f64) && same(HEADGATE_DTYPE_BF16, DType::bf16) &&
              same(HEADGATE_DTYPE_F16, DType::f16) && same(HEADGATE_DTYPE_BOOL, DType::boolean) &&
              same(HEADGATE_DTYPE_I32, DType::i32) && same(HEADGATE_DTYPE_I64, DType::i64) &&
              same(HEADGATE_DTYPE_I8, DType::i8));
static_assert(same(HEADGATE_GATE_OP_MUL, GateOp::mul) && same(HEADGATE_GATE_OP_ADD, GateOp::add));
static_assert(same(HEADGATE_PRECISION_EXACT, Precision::exact) &&
              same(HEADGATE_PRECISION_NATIVE16, Precision::native16));
static_assert(same(HEADGATE_CAUSALITY_NONE, Causality::none) && same(HEADGATE_CAUSALITY_CAUSAL, Causality::causal));

// Callers of version 0.2 hold structs of these sizes until the next minor version. (64-bit pointers.)
static_assert(sizeof(void*) != 8 || (sizeof(headgate_tensor) == 80 && sizeof(headgate_const_tensor) == 80));
static_assert(sizeof(void*) != 8 || sizeof(headgate_attention_options) == 96);
static_assert(sizeof(void*) != 8 || sizeof(headgate_attention_inputs) == 8 + 15 * 80);
static_assert(sizeof(void*) != 8 || sizeof(headgate_attention_outputs) == 8 + 4 * 80);
static_assert(sizeof(void*) != 8 || sizeof(headgate_attention_saved) == 8 + 3 * 80);
static_assert(sizeof(void*) != 8 || sizeof(headgate_attention_incoming) == 8 + 2 * 80);
static_assert(sizeof(void*) != 8 || sizeof(headgate_attention_gradients) == 8 + 6 * 80);
static_assert(sizeof(void*) != 8 || sizeof(headgate_statistics_selection) == 8 + 2 * 80 + 8);
static_assert(sizeof(void*) != 8 || sizeof(headgate_attention_statistics_outputs) == 8 + 16 * 80);

/// Zero is the default in C and no gate in C++; other numbers are the same (library/core/gate_functions.hpp), and the
/// call refuses those of no function.
GateFn to_gate_fn(headgate_gate_fn gate_fn) {
  if (gate_fn == HEADGATE_GATE_FN_DEFAULT) return AttentionOptions{}.gate_fn;
  return gate_fn == HEADGATE_GATE_FN_NONE ? GateFn::none : static_cast<GateFn>(gate_fn);
}

/// Options before they had target and backend, before they had gate_threshold, and before they had precision.
constexpr auto kOlderOptions_bytes = {offsetof(headgate_attention_options, target),
                                      offsetof(headgate_attention_options, gate_threshold),
                                      offsetof(headgate_attention_options, precision)};

AttentionOptions to_options(const headgate_attention_options* given) {
  AttentionOptions options;
  if (given == nullptr) return options;
  const auto c = read_sized(given, "options", kOlderOptions_bytes);
  require(c.has_scale == 0 || c.has_scale == 1, "options.has_scale is {} but must be 0 or 1", c.has_scale);
  require(c.has_scale == 1 || c.scale == 0.0, "options.scale is {} but has_scale is 0", c.scale);
  require(c.has_window == 0 || c.has_window == 1, "options.has_window is {} but must be 0 or 1", c.has_window);
  require(c.has_window == 1 || (c.window_left == 0 && c.window_right == 0),
          "options.window_left and window_right are {} and {} but has_window is 0", c.window_left, c.window_right);
  if (c.has_scale == 1) options.scale = c.scale;
  options.softcap = c.softcap;
  options.causality = static_cast<Causality>(c.causality);
  if (c.has_window == 1) {
    options.window_left = c.window_left;
    options.window_right = c.window_right;
  }
  options.gate_fn = to_gate_fn(c.gate_fn);
  options.gate_op = static_cast<GateOp>(c.gate_op);
  options.context.threads = c.threads;
  if (c.target != nullptr && *c.target != '\0') options.context.target = find_target(c.target);
  if (c.backend != nullptr && *c.backend != '\0') options.context.backend = &find_backend(c.backend);
  options.gate_threshold = c.gate_threshold;
  options.precision = static_cast<Precision>(c.precision);
  require(c.reserved == 0, "options.reserved is {} but must be 0", c.reserved);
  return options;
}

/// Inputs before they had query_offsets.
constexpr auto kOlderInputs_bytes = {offsetof(headgate_attention_inputs, query_offsets)};

AttentionInputs to_inputs(const headgate_attention_inputs* given) {
  const auto c = read_sized(given, "inputs", kOlderInputs_bytes);
  AttentionInputs inputs;
  inputs.q = to_view(c.q, "q");
  inputs.k = to_view(c.k, "k");
  inputs.v = to_view(c.v, "v");
  inputs.gate = to_view(c.gate, "gate");
  inputs.bias = to_view(c.bias, "bias");
  inputs.mask = to_view(c.mask, "mask");
  inputs.key_lengths = to_view(c.key_lengths, "key_lengths");
  inputs.alibi_slopes = to_view(c.alibi_slopes, "alibi_slopes");
  inputs.sinks = to_view(c.sinks, "sinks");
  inputs.query_offsets = to_view(c.query_offsets, "query_offsets");
  inputs.cu_seqlens_q = to_view(c.cu_seqlens_q, "cu_seqlens_q");
  inputs.cu_seqlens_k = to_view(c.cu_seqlens_k, "cu_seqlens_k");
  inputs.block_table = to_view(c.block_table, "block_table");
  inputs.k_scale = to_view(c.k_scale, "k_scale");
  inputs.v_scale = to_view(c.v_scale, "v_scale");
  return inputs;
}

AttentionOutputs to_outputs(const headgate_attention_outputs* given) {
  const auto c = read_sized(given, "outputs");
  return {to_view(c.y, "y"), to_view(c.lse, "lse"), to_view(c.attn, "attn"), to_view(c.weights, "weights")};
}

AttentionSaved to_saved(const headgate_attention_saved* given) {
  const auto c = read_sized(given, "saved");
  return {to_view(c.y, "y"), to_view(c.lse, "lse"), to_view(c.attn, "attn")};
}

AttentionIncoming to_incoming(const headgate_attention_incoming* given) {
  const auto c = read_sized(given, "incoming");
  return {to_view(c.dy, "dy"), to_view(c.dlse, "dlse")};
}

AttentionGradients to_gradients(const headgate_attention_gradients* given) {
  const auto c = read_sized(given, "gradients");
  return {to_view(c.dq, "dq"),       to_view(c.dk, "dk"),       to_view(c.dv, "dv"),
          to_view(c.dgate, "dgate"), to_view(c.dbias, "dbias"), to_view(c.dsinks, "dsinks")};
}

void narrow(headgate_attention_inputs* range, const headgate_attention_inputs* given, std::int64_t begin,
            std::int64_t end, std::int64_t* query_offsets, std::int64_t* key_lengths) {
  require(range != nullptr, "range is null");
  const AttentionInputs inputs = to_inputs(given);
  KeyRangeVectors vectors;
  const AttentionInputs narrowed = narrow_keys(inputs, begin, end, vectors);
  const auto hand_out = [](const std::vector<std::int64_t>& from, std::int64_t* to, const char* name) {
    require(from.empty() || to != nullptr, "{} is null but receives {} numbers", name, from.size());
    std::copy(from.begin(), from.end(), to);
    return to_c(make_vector_view(static_cast<const std::int64_t*>(to), static_cast<std::int64_t>(from.size())));
  };
  headgate_attention_inputs c = read_sized(given, "inputs", kOlderInputs_bytes);
  c.struct_size = sizeof c;
  c.k = to_c(narrowed.k);
  c.v = to_c(narrowed.v);
  c.bias = to_c(narrowed.bias);
  c.mask = to_c(narrowed.mask);
  c.query_offsets = hand_out(vectors.query_offsets, query_offsets, "query_offsets");
  if (inputs.key_lengths.present()) c.key_lengths = hand_out(vectors.key_lengths, key_lengths, "key_lengths");
  *range = c;
}

/// Parts, or their gradients.
template <typename Cpp, typename C>
std::vector<Cpp> to_parts(const C* given, std::size_t count, const char* name) {
  require(given != nullptr || count == 0, "{} is null but count is {}", name, count);
  std::vector<Cpp> parts;
  for (std::size_t n = 0; n < count; ++n) {
    parts.push_back({to_view(given[n].attn, fmt::format("{}[{}].attn", name, n).c_str()),
                     to_view(given[n].lse, fmt::format("{}[{}].lse", name, n).c_str())});
  }
  return parts;
}

StatisticsSelection to_selection(const headgate_statistics_selection* given) {
  if (given == nullptr) return {};
  const auto c = read_sized(given, "selection");
  return {to_view(c.keys, "keys"), to_view(c.queries, "queries"), c.window};
}

AttentionStatistics to_statistics(const headgate_attention_statistics_outputs* given) {
  const auto c = read_sized(given, "outputs");
  return {to_view(c.row_max, "row_max"),
          to_view(c.entropy, "entropy"),
          to_view(c.first, "first"),
          to_view(c.first_gated, "first_gated"),
          to_view(c.window_share, "window_share"),
          to_view(c.key_weights, "key_weights"),
          to_view(c.mean_row_max, "mean_row_max"),
          to_view(c.mean_entropy, "mean_entropy"),
          to_view(c.mean_first, "mean_first"),
          to_view(c.mean_first_gated, "mean_first_gated"),
          to_view(c.mean_window_share, "mean_window_share"),
          to_view(c.mean_key_weights, "mean_key_weights"),
          to_view(c.key_mass, "key_mass"),
          to_view(c.topk_index, "topk_index"),
          to_view(c.topk_weight, "topk_weight"),
          to_view(c.rows, "rows")};
}

/// Contiguous strides; sizes whose product overflows are refused by the call that gets the tensor.
template <typename Tensor, typename Data>
Tensor contiguous(Data* data, headgate_dtype dtype, const Shape& shape) {
  Tensor tensor{};
  tensor.data = data;
  tensor.dtype = dtype;
  std::uint64_t step = 1;
  for (int i = 3; i >= 0; --i) {
    tensor.shape[i] = shape[static_cast<std::size_t>(i)];
    tensor.strides[i] = static_cast<std::int64_t>(step);
    step *= static_cast<std::uint64_t>(tensor.shape[i]);
  }
  return tensor;
}

/// (B,H,T,D) over contiguous (B,T,H,D).
template <typename Tensor, typename Data>
Tensor bthd(Data* data, headgate_dtype dtype, std::int64_t B, std::int64_t T, std::int64_t H, std::int64_t D) {
  Tensor tensor = contiguous<Tensor>(data, dtype, {B, T, H, D});
  std::swap(tensor.shape[1], tensor.shape[2]);
  std::swap(tensor.strides[1], tensor.strides[2]);
  return tensor;
}

/// The lists never change, so that their strings can be handed out.
const std::vector<std::string>& compiled() {
  static const std::vector<std::string> names = compiled_targets();
  return names;
}

const std::vector<std::string>& supported() {
  static const std::vector<std::string> names = supported_targets();
  return names;
}

const std::vector<std::string>& native16_products() {
  static const std::vector<std::string> names = supported_native16_products();
  return names;
}

const std::vector<std::string>& backends() {
  static const std::vector<std::string> names = supported_backends();
  return names;
}

void list(const std::vector<std::string>& all, const char** names, std::size_t capacity, std::size_t* count) {
  require(count != nullptr, "count is null");
  require(names != nullptr || capacity == 0, "names is null but capacity is {}", capacity);
  for (std::size_t i = 0; i < std::min(capacity, all.size()); ++i) names[i] = all[i].c_str();
  *count = all.size();
}

}  // namespace
}  // namespace headgate::capi

namespace capi = headgate::capi;

const char* headgate_last_error(void) { return capi::last_error(); }

headgate_tensor headgate_make_tensor(void* data, headgate_dtype dtype, int64_t dim0, int64_t dim1, int64_t dim2,
                                     int64_t dim3) {
  return capi::contiguous<headgate_tensor>(data, dtype, {dim0, dim1, dim2, dim3});
}

headgate_const_tensor headgate_make_const_tensor(const void* data, headgate_dtype dtype, int64_t dim0, int64_t dim1,
                                                 int64_t dim2, int64_t dim3) {
  return capi::contiguous<headgate_const_tensor>(data, dtype, {dim0, dim1, dim2, dim3});
}

headgate_tensor headgate_make_bthd_tensor(void* data, headgate_dtype dtype, int64_t B, int64_t T, int64_t H,
                                          int64_t D) {
  return capi::bthd<headgate_tensor>(data, dtype, B, T, H, D);
}

headgate_const_tensor headgate_make_const_bthd_tensor(const void* data, headgate_dtype dtype, int64_t B, int64_t T,
                                                      int64_t H, int64_t D) {
  return capi::bthd<headgate_const_tensor>(data, dtype, B, T, H, D);
}

headgate_status headgate_convert(const headgate_tensor* to, const headgate_const_tensor* from) {
  return capi::guarded(__func__,
                       [&] { headgate::convert(capi::to_view_of(to, "to"), capi::to_view_of(from, "from")); });
}

headgate_status headgate_quantize(const headgate_tensor* to, const headgate_tensor* scale,
                                  const headgate_const_tensor* from) {
  return capi::guarded(__func__, [&] {
    headgate::quantize(capi::to_view_of(to, "to"), capi::to_view_of(scale, "scale"), capi::to_view_of(from, "from"));
  });
}

headgate_status headgate_attention_forward(const headgate_attention_outputs* outputs,
                                           const headgate_attention_inputs* inputs,
                                           const headgate_attention_options* options) {
  return capi::guarded(__func__, [&] {
    headgate::attention_forward(capi::to_outputs(outputs), capi::to_inputs(inputs), capi::to_options(options));
  });
}

headgate_status headgate_attention_backward(const headgate_attention_gradients* gradients,
                                            const headgate_attention_inputs* inputs,
                                            const headgate_attention_saved* saved,
                                            const headgate_attention_incoming* incoming,
                                            const headgate_attention_options* options) {
  return capi::guarded(__func__, [&] {
    headgate::attention_backward(capi::to_gradients(gradients), capi::to_inputs(inputs), capi::to_saved(saved),
                                 capi::to_incoming(incoming), capi::to_options(options));
  });
}

headgate_status headgate_narrow_keys(headgate_attention_inputs* range, const headgate_attention_inputs* inputs,
                                     int64_t begin, int64_t end, int64_t* query_offsets, int64_t* key_lengths) {
  return capi::guarded(__func__, [&] { capi::narrow(range, inputs, begin, end, query_offsets, key_lengths); });
}

headgate_status headgate_attention_merge(const headgate_attention_outputs* outputs, const headgate_merge_part* parts,
                                         size_t count, const headgate_const_tensor* gate,
                                         const headgate_attention_options* options) {
  return capi::guarded(__func__, [&] {
    headgate::attention_merge(capi::to_outputs(outputs), capi::to_parts<headgate::MergePart>(parts, count, "parts"),
                              gate == nullptr ? headgate::ConstTensorView{} : capi::to_view(*gate, "gate"),
                              capi::to_options(options));
  });
}

headgate_status headgate_attention_merge_backward(const headgate_merge_part_gradients* gradients,
                                                  const headgate_tensor* dgate, const headgate_merge_part* parts,
                                                  size_t count, const headgate_const_tensor* gate,
                                                  const headgate_attention_incoming* incoming,
                                                  const headgate_attention_options* options) {
  return capi::guarded(__func__, [&] {
    headgate::attention_merge_backward(capi::to_parts<headgate::MergePartGradients>(gradients, count, "gradients"),
                                       dgate == nullptr ? headgate::TensorView{} : capi::to_view(*dgate, "dgate"),
                                       capi::to_parts<headgate::MergePart>(parts, count, "parts"),
                                       gate == nullptr ? headgate::ConstTensorView{} : capi::to_view(*gate, "gate"),
                                       capi::to_incoming(incoming), capi::to_options(options));
  });
}

headgate_status headgate_attention_statistics(const headgate_attention_statistics_outputs* outputs,
                                              const headgate_attention_inputs* inputs, const headgate_const_tensor* lse,
                                              const headgate_statistics_selection* selection,
                                              const headgate_attention_options* options) {
  return capi::guarded(__func__, [&] {
    headgate::require(lse != nullptr, "lse is null");
    headgate::attention_statistics(capi::to_statistics(outputs), capi::to_inputs(inputs), capi::to_view(*lse, "lse"),
                                   capi::to_selection(selection), capi::to_options(options));
  });
}

const char* headgate_version(void) { return headgate::version(); }

headgate_status headgate_compiled_targets(const char** names, size_t capacity, size_t* count) {
  return capi::guarded(__func__, [&] { capi::list(capi::compiled(), names, capacity, count); });
}

headgate_status headgate_supported_targets(const char** names, size_t capacity, size_t* count) {
  return capi::guarded(__func__, [&] { capi::list(capi::supported(), names, capacity, count); });
}

headgate_status headgate_active_target(const char** name) {
  return capi::guarded(__func__, [&] {
    headgate::require(name != nullptr, "name is null");
    const std::string active = headgate::active_target();
    *name = std::find(capi::compiled().begin(), capi::compiled().end(), active)->c_str();  // always one of them
  });
}

headgate_status headgate_supported_native16_products(const char** names, size_t capacity, size_t* count) {
  return capi::guarded(__func__, [&] { capi::list(capi::native16_products(), names, capacity, count); });
}

headgate_status headgate_native16_products(const char** name) {
  return capi::guarded(__func__, [&] {
    headgate::require(name != nullptr, "name is null");
    const std::string active = headgate::native16_products();
    const auto& all = capi::native16_products();
    const auto found = std::find(all.begin(), all.end(), active);
    *name = found == all.end() ? "" : found->c_str();
  });
}

headgate_status headgate_set_native16_products(const char* name) {
  return capi::guarded(__func__, [&] { headgate::set_native16_products(name == nullptr ? "" : name); });
}

headgate_status headgate_set_target(const char* name) {
  return capi::guarded(__func__, [&] { headgate::set_target(name == nullptr ? "" : name); });
}

headgate_status headgate_supported_backends(const char** names, size_t capacity, size_t* count) {
  return capi::guarded(__func__, [&] { capi::list(capi::backends(), names, capacity, count); });
}

headgate_status headgate_set_backend(const char* name) {
  return capi::guarded(__func__, [&] { headgate::set_backend(name == nullptr ? "" : name); });
}

void headgate_release_workspace(void) { headgate::release_workspace(); }

int32_t headgate_default_threads(void) { return headgate::default_threads(); }
