// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "headgate/error.hpp"
#include "library/core/check.hpp"
#include "library/core/dtype_words.hpp"
#include "python/headgate/jax_calls.hpp"
#include "python/headgate/jax_operations.hpp"

// The module _jax. It contains the handlers of XLA's FFI, and the functions that check calls while JAX traces them.

namespace headgate::python::jax {
namespace {

namespace nb = nanobind;

/// Reads the options of a call from a dict.
class OptionsDict {
 public:
  explicit OptionsDict(const nb::dict& options) : options_(options) {}

  template <typename T>
  std::optional<T> get(const char* name) const {
    if (!options_.contains(name)) return std::nullopt;
    return nb::cast<T>(options_[name]);
  }

 private:
  const nb::dict& options_;
};

/// Provides tensors for checking a call without running it. Inputs point to zeros, which are valid lengths, offsets and
/// slopes. Lists of keys point to -1, an empty entry. Outputs point to reserved addresses without memory.
class CheckMemory {
 public:
  CheckMemory() = default;
  CheckMemory(const CheckMemory&) = delete;
  CheckMemory& operator=(const CheckMemory&) = delete;
  ~CheckMemory() {
    for (const Span& span : spans_) munmap(span.data, span.bytes);
  }

  /// Returns a view with the shape of `view`. All its elements are -1 if `is_list` is true, otherwise 0.
  ConstTensorView constant(const ConstTensorView& view, bool is_list) const {
    return {is_list ? kEmpty.data() : kZeros.data(), view.dtype, view.shape, {0, 0, 0, 0}};
  }

  /// Returns a view of cu_seqlens in which only the last sequence has rows: `total` of them.
  ConstTensorView bounds(const ConstTensorView& view, std::int64_t total) {
    const std::int64_t entries = view.shape[3];
    if (entries < 2) return constant(view, false);
    ConstTensorView filled{nullptr, view.dtype, view.shape, {0, 0, 0, 1}};
    if (view.dtype == DType::i64) {
      wide_.emplace_back(static_cast<std::size_t>(entries), 0).back() = total;
      filled.data = wide_.back().data();
    } else {
      narrow_.emplace_back(static_cast<std::size_t>(entries), 0).back() = static_cast<std::int32_t>(total);
      filled.data = narrow_.back().data();
    }
    return filled;
  }

  /// Reserves addresses for a tensor, without memory, and returns its view. Throws Error, "WHAT of shape …", if the
  /// addresses do not suffice.
  TensorView space(const std::string& what, const Shape& shape, DType dtype) {
    const auto refuse = [&] { throw Error(formatted("{} of shape {} exceeds the memory", what, shape_text(shape))); };
    TensorView view{nullptr, dtype, shape, contiguous_strides(shape)};
    std::size_t bytes = dtype_bytes(dtype);
    for (const std::int64_t size : shape) {
      if (size <= 0) return view;
      if (__builtin_mul_overflow(bytes, static_cast<std::size_t>(size), &bytes)) refuse();
    }
    void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) refuse();
    spans_.push_back({data, bytes});
    view.data = data;
    return view;
  }

 private:
  struct Span {
    void* data;
    std::size_t bytes;
  };

  alignas(64) static constexpr std::array<std::int64_t, 8> kZeros{};
  alignas(64) static constexpr std::array<std::int64_t, 1> kEmpty{-1};
  std::vector<Span> spans_;
  std::vector<std::vector<std::int64_t>> wide_;
  std::vector<std::vector<std::int32_t>> narrow_;
};

DType dtype_named(const char* function, const char* name, const std::string& word) {
  for (const DTypeName& row : kDTypeNames) {
    if (word == row.name) return row.dtype;
  }
  throw Error(formatted("{}: {} has dtype {} but must be one of {}", function, name, word,
                        comma_separated(kDTypeNames, &DTypeName::name)));
}

const char* name_of(DType dtype) {
  for (const DTypeName& row : kDTypeNames) {
    if (dtype == row.dtype) return row.name;
  }
  return "none";
}

/// Returns a view without data for an input that is given as a tuple (shape, dtype).
ConstTensorView described(const char* function, const char* name, const nb::tuple& given, ArrayKind kind,
                          Layout layout) {
  const auto sizes = nb::cast<std::vector<std::int64_t>>(given[0]);
  StridedArray array;
  array.dtype = dtype_named(function, name, nb::cast<std::string>(given[1]));
  array.rank = sizes.size();
  if (array.rank > StridedArray::kMaxRank) refuse_rank(function, name, sizes, kind, layout);
  std::copy(sizes.begin(), sizes.end(), array.shape.begin());
  return view_of_array<ConstTensorView>(function, name, array, kind, layout);
}

/// Returns the number of rows (queries, keys or tokens) that the input `member`, such as cu_seqlens, splits into
/// sequences.
template <class Inputs, typename Member>
std::int64_t rows_within(const Inputs& inputs, Member member) {
  if constexpr (std::is_same_v<Inputs, AttentionInputs>) {
    return member == &Inputs::cu_seqlens_k ? inputs.k.shape[2] : inputs.q.shape[2];
  } else if constexpr (std::is_same_v<Inputs, LinearAttentionInputs>) {
    return inputs.q.shape[2];
  } else {
    return inputs.x.shape[2];
  }
}

/// Returns whether the input `name` holds the bounds of packed sequences.
bool holds_bounds(std::string_view name) { return name.starts_with("cu_seqlens"); }

/// Lets every present input point to `memory`, so that the checks of a call can read its elements.
template <const auto& kInputs, class Inputs>
void fill(Inputs& inputs, CheckMemory& memory) {
  for (const auto& row : kInputs) {
    ConstTensorView& view = inputs.*row.member;
    if (!view.present()) continue;
    view = holds_bounds(row.name) ? memory.bounds(view, rows_within(inputs, row.member))
                                  : memory.constant(view, std::string_view(row.name) == "key_indices");
  }
}

/// Returns a dict with the shape and dtype of each output in the bit mask `outputs`. With `check`, first checks the
/// shapes, dtypes and options of the call, but no elements. Throws Error if the check fails.
template <class Operation>
nb::dict describe(const nb::dict& given, std::int64_t wanted, const nb::dict& settings, bool check) {
  using Inputs = ViewsOf<Operation::kInputs>;
  const char* const function = Operation::kName;
  const OptionsDict source(settings);
  const Layout layout = read_layout<Operation>(source);
  auto options = read_options<Operation>(source);
  const bool pages = given.contains("block_table");
  Inputs inputs;
  bool has_batch = false;
  for (const auto& row : Operation::kInputs) {
    if (!given.contains(row.name)) continue;
    const ArrayKind kind = kind_of<Inputs>(row, pages);
    const auto description = nb::cast<nb::tuple>(given[row.name]);
    inputs.*row.member = described(function, row.name, description, kind, layout);
    const nb::object sizes = description[0];
    const std::size_t rank = nb::len(sizes);
    if (&row == &Operation::kInputs.front()) has_batch = rank == rank_with_batch(kind);
  }
  CheckMemory memory;
  ViewsOf<Operation::kOutputs> outputs;
  nb::dict found;
  for (std::size_t i = 0; i < Operation::kOutputs.size(); ++i) {
    if (!has_bit(wanted, i)) continue;
    const auto& row = Operation::kOutputs[i];
    const Shape shape = shape_of(row, inputs);
    const DType dtype = dtype_of(row, inputs);
    bool of_sequences = has_batch;
    if constexpr (requires { inputs.cu_seqlens_q; }) {  // max_logit of a packed batch is (N,Hq), even if q is (Hq,T,D)
      of_sequences = has_batch || (row.kind == TensorKind::rows_or_heads && inputs.cu_seqlens_q.present());
    }
    const std::vector<std::int64_t> sizes = sizes_of(shape, array_kind(row.kind), layout, of_sequences);
    if (check) outputs.*row.member = memory.space(formatted("{}: {}", function, row.name), shape, dtype);
    found[row.name] = nb::make_tuple(nb::tuple(nb::cast(sizes)), name_of(dtype));
  }
  if (!check) return found;
  fill<Operation::kInputs>(inputs, memory);
  const std::function<bool()> at_once = [] { return true; };
  options.context.cancelled = &at_once;
  if (options.context.threads == 0) options.context.threads = 1;
  try {
    Operation::forward(outputs, inputs, options);
  } catch (const Cancelled&) {
    return found;
  } catch (const Error& error) {
    throw Error(renamed<Operation>(error.what()));
  }
  return found;
}

template <class Operation>
void bind(nb::module_& module) {
  const std::string name = Operation::kName;
  XLA_FFI_DEFINE_HANDLER(handle_forward, forward<Operation>, ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());
  XLA_FFI_DEFINE_HANDLER(handle_backward, backward<Operation>,
                         ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());
  nb::dict handlers = nb::cast<nb::dict>(module.attr("handlers"));
  const nb::capsule of_forward(reinterpret_cast<void*>(handle_forward));
  const nb::capsule of_backward(reinterpret_cast<void*>(handle_backward));
  handlers[(name + "_forward").c_str()] = of_forward;
  handlers[(name + "_backward").c_str()] = of_backward;
  module.def(("describe_" + name).c_str(), describe<Operation>);

  nb::dict rows;
  const auto names_of = [](const auto& table) {
    nb::list names;
    for (const auto& row : table) names.append(row.name);
    return names;
  };
  rows["inputs"] = names_of(Operation::kInputs);
  rows["outputs"] = names_of(Operation::kOutputs);
  rows["incoming"] = names_of(Operation::kIncoming);
  rows["gradients"] = names_of(Operation::kGradients);
  if constexpr (requires { Operation::kSaved; }) rows["saved"] = names_of(Operation::kSaved);
  nb::cast<nb::dict>(module.attr("tables"))[name.c_str()] = rows;
}

}  // namespace
}  // namespace headgate::python::jax

NB_MODULE(_jax, module) {
  using namespace headgate::python::jax;
  module.doc() = "Handlers of XLA's FFI; `headgate.jax` registers them.";
  module.attr("handlers") = nanobind::dict();
  module.attr("tables") = nanobind::dict();
  bind<Attention>(module);
  bind<LinearAttention>(module);
  bind<ShortConvolution>(module);
  bind<GatedNorm>(module);
}
