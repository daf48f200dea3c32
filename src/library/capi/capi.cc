// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
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
#include "library/capi/operation.hpp"
#include "library/capi/sized.hpp"
#include "library/capi/status.hpp"
#include "library/capi/tensors.hpp"
#include "library/core/attention_options.hpp"
#include "library/core/attention_tensors.hpp"
#include "library/core/check.hpp"
#include "library/core/format.hpp"
#include "library/core/statistics_outputs.hpp"

namespace headgate::capi {

namespace {

static_assert(same(HEADGATE_DTYPE_NONE, DType::none) && same(HEADGATE_DTYPE_F32, DType::f32) &&
              same(HEADGATE_DTYPE_F64, DType::f64) && same(HEADGATE_DTYPE_BF16, DType::bf16) &&
              same(HEADGATE_DTYPE_F16, DType::f16) && same(HEADGATE_DTYPE_BOOL, DType::boolean) &&
              same(HEADGATE_DTYPE_I32, DType::i32) && same(HEADGATE_DTYPE_I64, DType::i64) &&
              same(HEADGATE_DTYPE_I8, DType::i8));
static_assert(same(HEADGATE_GATE_OP_MUL, GateOp::mul) && same(HEADGATE_GATE_OP_ADD, GateOp::add));
static_assert(same(HEADGATE_PRECISION_EXACT, Precision::exact) &&
              same(HEADGATE_PRECISION_NATIVE16, Precision::native16));
static_assert(same(HEADGATE_CAUSALITY_NONE, Causality::none) && same(HEADGATE_CAUSALITY_CAUSAL, Causality::causal));

// Checks the sizes of structs on systems with 64-bit pointers. The sizes must not change before the next minor version,
// because programs compiled with version 0.2 depend on them. capi_c99_test.c checks options and inputs, which may grow
// within a minor version.
static_assert(sizeof(void*) != 8 || (sizeof(headgate_tensor) == 80 && sizeof(headgate_const_tensor) == 80));
static_assert(sizeof(void*) != 8 || sizeof(headgate_attention_outputs) == 8 + 5 * 80);
static_assert(sizeof(void*) != 8 || sizeof(headgate_attention_saved) == 8 + 3 * 80);
static_assert(sizeof(void*) != 8 || sizeof(headgate_attention_incoming) == 8 + 2 * 80);
static_assert(sizeof(void*) != 8 || sizeof(headgate_attention_gradients) == 8 + 6 * 80);
static_assert(sizeof(void*) != 8 || sizeof(headgate_statistics_selection) == 8 + 2 * 80 + 8);
static_assert(sizeof(void*) != 8 || sizeof(headgate_attention_statistics_outputs) == 8 + 16 * 80);

AttentionOptions to_options(const headgate_attention_options* given) {
  return read_options<kAttentionOptions, AttentionOptions>(given);
}
AttentionInputs to_inputs(const headgate_attention_inputs* given) {
  return to_views<kAttentionInputs>(given, "inputs");
}
AttentionOutputs to_outputs(const headgate_attention_outputs* given) {
  return to_views<kAttentionOutputs>(given, "outputs");
}
AttentionSaved to_saved(const headgate_attention_saved* given) { return to_views<kSavedTensors>(given, "saved"); }
AttentionIncoming to_incoming(const headgate_attention_incoming* given) {
  return to_views<kIncomingTensors>(given, "incoming");
}
AttentionGradients to_gradients(const headgate_attention_gradients* given) {
  return to_views<kAttentionGradients>(given, "gradients");
}

/// Implements headgate_narrow_keys. `range` and `given` may be the same struct.
void narrow(headgate_attention_inputs* range, const headgate_attention_inputs* given, std::int64_t begin,
            std::int64_t end, std::int64_t* query_offsets, std::int64_t* key_lengths) {
  const auto& sizes = older_sizes<kAttentionInputs>();
  auto c = read_sized(static_cast<const headgate_attention_inputs*>(range), "range", sizes);
  KeyRangeVectors vectors;
  const AttentionInputs narrowed = narrow_keys(to_inputs(given), begin, end, vectors);
  for (const auto& row : kAttentionInputs) c.*row.c_member = to_c(narrowed.*row.member);
  const auto point_to = [](headgate_const_tensor& tensor, const std::vector<std::int64_t>& numbers,
                           const std::int64_t* memory, const char* name) {
    require(numbers.empty() || memory != nullptr, "{} is null but receives {} numbers", name, numbers.size());
    tensor.data = memory;
  };
  point_to(c.query_offsets, vectors.query_offsets, query_offsets, "query_offsets");
  if (narrowed.key_lengths.present()) point_to(c.key_lengths, vectors.key_lengths, key_lengths, "key_lengths");
  write_sized(range, "range", c);
  std::copy(vectors.query_offsets.begin(), vectors.query_offsets.end(), query_offsets);
  std::copy(vectors.key_lengths.begin(), vectors.key_lengths.end(), key_lengths);
}

/// Converts an array of C structs that hold partial results of attention (attn and lse), or the gradients of these.
template <typename Cpp, typename C>
std::vector<Cpp> to_parts(const C* given, std::size_t count, const char* name) {
  require(given != nullptr || count == 0, "{} is null but count is {}", name, count);
  std::vector<Cpp> parts;
  for (std::size_t n = 0; n < count; ++n) {
    parts.push_back({to_view(given[n].attn, formatted("{}[{}].attn", name, n).c_str()),
                     to_view(given[n].lse, formatted("{}[{}].lse", name, n).c_str())});
  }
  return parts;
}

StatisticsSelection to_selection(const headgate_statistics_selection* given) {
  if (given == nullptr) return {};
  const auto c = read_sized(given, "selection");
  return {to_view(c.keys, "keys"), to_view(c.queries, "queries"), c.window};
}

/// Returns a tensor with contiguous strides. Does not check for overflow: functions refuse tensors with too many
/// elements.
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

/// Returns a tensor (B,H,T,D) over contiguous (B,T,H,D) memory.
template <typename Tensor, typename Data>
Tensor bthd(Data* data, headgate_dtype dtype, std::int64_t B, std::int64_t T, std::int64_t H, std::int64_t D) {
  Tensor tensor = contiguous<Tensor>(data, dtype, {B, T, H, D});
  std::swap(tensor.shape[1], tensor.shape[2]);
  std::swap(tensor.strides[1], tensor.strides[2]);
  return tensor;
}

/// Returns the names of the compiled targets. The list never changes, so callers may keep pointers to its strings. The
/// lists that the next three functions return never change either.
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
    headgate::attention_statistics(capi::to_views<headgate::kStatisticsOutputs>(outputs, "outputs"),
                                   capi::to_inputs(inputs), capi::to_view(*lse, "lse"), capi::to_selection(selection),
                                   capi::to_options(options));
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
    *name = std::find(capi::compiled().begin(), capi::compiled().end(), active)
                ->c_str();  // always found, because the list contains the active target
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
