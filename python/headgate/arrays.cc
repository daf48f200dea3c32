// SPDX-License-Identifier: Apache-2.0
#include "python/headgate/arrays.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "headgate/error.hpp"
#include "library/core/check.hpp"
#include "python/headgate/tensors.hpp"

namespace headgate::python {
namespace {

using Code = nb::dlpack::dtype_code;

/// A dtype as DLPack has it and by its name in NumPy and PyTorch.
struct DTypeRow {
  DType dtype;
  Code code;
  std::uint8_t bits;
  const char* name;
};

constexpr std::array<DTypeRow, 8> kDTypes{{
    {DType::f32, Code::Float, 32, "float32"},
    {DType::f64, Code::Float, 64, "float64"},
    {DType::bf16, Code::Bfloat, 16, "bfloat16"},
    {DType::f16, Code::Float, 16, "float16"},
    {DType::boolean, Code::Bool, 8, "bool"},
    {DType::i32, Code::Int, 32, "int32"},
    {DType::i64, Code::Int, 64, "int64"},
    {DType::i8, Code::Int, 8, "int8"},
}};

/// How many dimensions an array of a kind may have.
struct Ranks {
  std::size_t low, high;
};

Ranks ranks_of(ArrayKind kind) {
  switch (kind) {
    case ArrayKind::heads: return {3, 4};
    case ArrayKind::rows: return {2, 3};
    case ArrayKind::scores: return {2, 4};
    case ArrayKind::vector: return {1, 1};
    case ArrayKind::table: return {2, 2};
    case ArrayKind::any: return {0, 4};
    case ArrayKind::channels: return {2, 3};
    case ArrayKind::channel_states: return {3, 3};
    case ArrayKind::head_features: return {1, 2};
    case ArrayKind::pages:
    case ArrayKind::states: break;
  }
  return {4, 4};
}

std::string text_of(nb::handle object) { return nb::cast<std::string>(nb::str(object)); }

std::string class_name_of(nb::handle object) { return nb::cast<std::string>(object.type().attr("__name__")); }

/// The dtype by the name that the array itself has for it; empty where it has none.
std::string own_dtype(nb::handle object) {
  if (!nb::hasattr(object, "dtype")) return {};
  const nb::object dtype = object.attr("dtype");
  return nb::hasattr(dtype, "name") ? text_of(dtype.attr("name")) : text_of(dtype);
}

/// NumPy's bfloat16, of ml_dtypes, is not in DLPack's way out of NumPy: the same memory as integers is.
bool is_numpy_bfloat16(nb::handle object) {
  return nb::hasattr(object, "__array_interface__") && own_dtype(object) == "bfloat16";
}

/// Why `object` gives no array, in its own words where it has some.
std::string refusal_of(nb::handle object) {
  if (!nb::hasattr(object, "__dlpack__")) {
    return fmt::format("is a {} but must be an array (NumPy's, PyTorch's or another with DLPack)",
                       class_name_of(object));
  }
  try {
    object.attr("__dlpack__")();
  } catch (nb::python_error& error) {
    std::string reason = text_of(error.value());
    std::replace(reason.begin(), reason.end(), '\n', ' ');
    return fmt::format("of dtype {} cannot be read as an array of the CPU: {}", own_dtype(object), reason);
  }
  return "cannot be read as an array of the CPU";
}

template <typename Array>
std::string array_shape(const Array& array) {
  return sizes_text({array.shape_ptr(), array.ndim()});
}

/// Right-aligned in four dimensions of size 1.
template <typename View, typename Array>
View aligned(const Array& array, DType dtype) {
  View view;
  view.data = array.data();
  view.dtype = dtype;
  view.shape = {1, 1, 1, 1};
  view.strides = {0, 0, 0, 0};
  const std::size_t lead = 4 - array.ndim();
  for (std::size_t d = 0; d < array.ndim(); ++d) {
    view.shape[lead + d] = array.shape_ptr()[d];
    view.strides[lead + d] = array.stride_ptr()[d];
  }
  return view;
}

template <typename View>
void swap_dimensions(View& view, std::size_t one, std::size_t other) {
  std::swap(view.shape[one], view.shape[other]);
  std::swap(view.strides[one], view.strides[other]);
}

bool has_layout(ArrayKind kind) { return kind == ArrayKind::heads || kind == ArrayKind::pages; }

/// Whether arrays have no dimension for heads where their views have one of size 1.
bool has_no_heads(ArrayKind kind) { return kind == ArrayKind::channels || kind == ArrayKind::channel_states; }

/// A dimension of size 1 behind the others.
template <typename View>
void shift_left(View& view) {
  std::rotate(view.shape.begin(), view.shape.begin() + 1, view.shape.end());
  std::rotate(view.strides.begin(), view.strides.begin() + 1, view.strides.end());
}

/// The dtype of an imported array. `as_bfloat16`: what are integers to DLPack.
template <typename Array>
DType dtype_of_array(const char* function, const char* name, nb::handle object, const Array& array, bool as_bfloat16) {
  if (as_bfloat16) return DType::bf16;
  const nb::dlpack::dtype dtype = array.dtype();
  for (const DTypeRow& row : kDTypes) {
    const bool same = dtype.code == static_cast<std::uint8_t>(row.code) && dtype.bits == row.bits && dtype.lanes == 1;
    if (same) return row.dtype;
  }
  std::string known;
  for (const DTypeRow& row : kDTypes) known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
  throw Error(fmt::format("{}: {} has dtype {} but must be one of {}", function, name, own_dtype(object), known));
}

template <typename View, typename Array>
View view_of_array(const char* function, const char* name, nb::handle object, const Array& array, bool as_bfloat16,
                   ArrayKind kind, Layout layout) {
  if (array.device_type() != nb::device::cpu::value) {
    const std::string number = fmt::format("of DLPack's number {}", array.device_type());
    const std::string device = nb::hasattr(object, "device") ? text_of(object.attr("device")) : number;
    throw Error(fmt::format("{}: {} lies on a device, {}, but must be in the CPU's memory", function, name, device));
  }
  const DType dtype = dtype_of_array(function, name, object, array, as_bfloat16);
  const auto [low, high] = ranks_of(kind);
  if (array.ndim() < low || array.ndim() > high) {
    throw Error(fmt::format("{}: {} has shape {} but must be {}", function, name, array_shape(array),
                            letters_of(kind, layout)));
  }
  View view = aligned<View>(array, dtype);
  if (kind == ArrayKind::rows) shift_left(view);
  const bool rows_first = has_layout(kind) && layout == Layout::bthd;
  if (rows_first || kind == ArrayKind::head_features) swap_dimensions(view, 1, 2);
  if (has_no_heads(kind)) swap_dimensions(view, 0, 1);
  return view;
}

}  // namespace

DType dtype_of_word(const char* function, const char* name, const std::string& word) {
  std::string known;
  for (const DTypeRow& row : kDTypes) {
    if (word == row.name || word == dtype_name(row.dtype)) return row.dtype;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", dtype_name(row.dtype));
  }
  throw Error(fmt::format("{}: {}: '{}' is none of {}", function, name, word, known));
}

std::string sizes_text(std::span<const std::int64_t> sizes) { return fmt::format("({})", fmt::join(sizes, ",")); }

std::size_t rank_with_batch(ArrayKind kind) { return ranks_of(kind).high; }

const char* letters_of(ArrayKind kind, Layout layout) {
  const bool heads_first = layout == Layout::bhtd;
  switch (kind) {
    case ArrayKind::heads: return heads_first ? "(B,H,T,D) or (H,T,D)" : "(B,T,H,D) or (T,H,D)";
    case ArrayKind::rows: return "(B,H,T) or (H,T)";
    case ArrayKind::scores: return "(B,H,T,S), (H,T,S) or (T,S), each but S full or 1";
    case ArrayKind::vector: return "of one dimension";
    case ArrayKind::table: return "of two dimensions";
    case ArrayKind::any: return "of at most four dimensions";
    case ArrayKind::states: return "(N,H,D,Dv)";
    case ArrayKind::channels: return "(B,T,C) or (T,C)";
    case ArrayKind::channel_states: return "(N,K-1,C)";
    case ArrayKind::head_features: return "(D) or (H,D)";
    case ArrayKind::pages: break;
  }
  return heads_first ? "(P,H,page,D)" : "(P,page,H,D)";
}

Input input_of(const char* function, const char* name, nb::handle given, ArrayKind kind, Layout layout) {
  Input input;
  if (!given.is_valid() || given.is_none()) return input;
  refuse_recorded(function, name, given);
  const nb::object object = resolved(given);
  bool as_bfloat16 = false;
  if (!nb::try_cast(object, input.array, false)) {
    as_bfloat16 = is_numpy_bfloat16(object) && nb::try_cast(object.attr("view")("uint16"), input.array, false);
    if (!as_bfloat16) throw Error(fmt::format("{}: {} {}", function, name, refusal_of(object)));
  }
  input.view = view_of_array<ConstTensorView>(function, name, object, input.array, as_bfloat16, kind, layout);
  return input;
}

Output output_of(const char* function, const char* name, nb::handle object, ArrayKind kind, Layout layout) {
  Output output;
  if (!object.is_valid() || object.is_none()) return output;
  refuse_recorded(function, name, object);
  require(!is_lazy(object),
          "{}: {} has a lazy negation or conjugation, which its memory does not have: give a tensor of its own, "
          "{}.resolve_neg()",
          function, name, name);
  output.object = nb::borrow(object);
  bool as_bfloat16 = false;
  if (!nb::try_cast(object, output.array, false)) {
    as_bfloat16 = is_numpy_bfloat16(object);
    const nb::object memory = as_bfloat16 ? object.attr("view")("uint16") : output.object;
    if (!as_bfloat16 || !nb::try_cast(memory, output.array, false)) {
      nb::ndarray<nb::ro> readable;
      const bool can_be_read = nb::try_cast(memory, readable, false);
      throw Error(fmt::format("{}: {} {}", function, name, can_be_read ? "is read-only" : refusal_of(object)));
    }
  }
  output.view = view_of_array<TensorView>(function, name, object, output.array, as_bfloat16, kind, layout);
  return output;
}

std::vector<std::int64_t> sizes_of(const Shape& shape, ArrayKind kind, Layout layout, bool has_batch) {
  std::vector<std::int64_t> sizes(shape.begin(), shape.end());
  if (has_layout(kind) && layout == Layout::bthd) std::swap(sizes[1], sizes[2]);
  if (kind == ArrayKind::rows) sizes.pop_back();
  if (has_no_heads(kind)) sizes.erase(sizes.begin() + 1);
  const bool of_sequences = kind == ArrayKind::states || kind == ArrayKind::channel_states;
  if (!has_batch && !of_sequences) sizes.erase(sizes.begin());
  return sizes;
}

Maker::Maker(nb::handle like) { module_ = nb::module_::import_(is_tensor(like) ? "torch" : "numpy"); }

nb::object Maker::empty(std::span<const std::int64_t> sizes, DType dtype) const {
  const auto* row =
      std::find_if(kDTypes.begin(), kDTypes.end(), [dtype](const DTypeRow& r) { return r.dtype == dtype; });
  nb::list shape;
  for (const std::int64_t size : sizes) shape.append(size);
  nb::object of = module_;
  if (dtype == DType::bf16 && !nb::hasattr(of, row->name)) of = nb::module_::import_("ml_dtypes");
  return module_.attr("empty")(nb::tuple(shape), nb::arg("dtype") = of.attr(row->name));
}

nb::object array_over(const TensorView& view, ArrayKind kind, Layout layout, nb::handle owner) {
  const auto* row =
      std::find_if(kDTypes.begin(), kDTypes.end(), [&view](const DTypeRow& r) { return r.dtype == view.dtype; });
  const bool as_bfloat16 = view.dtype == DType::bf16;
  const Code code = as_bfloat16 ? Code::UInt : row->code;
  Shape strides = view.strides;
  if (has_layout(kind) && layout == Layout::bthd) std::swap(strides[1], strides[2]);
  const std::vector<std::int64_t> sizes = sizes_of(view.shape, kind, layout, true);
  const std::vector<std::size_t> shape(sizes.begin(), sizes.end());
  const nb::ndarray<nb::numpy> array(view.data, shape.size(), shape.data(), owner, strides.data(),
                                     {static_cast<std::uint8_t>(code), row->bits, 1}, nb::device::cpu::value);
  const nb::object object = nb::cast(array, nb::rv_policy::reference);
  return as_bfloat16 ? object.attr("view")(nb::module_::import_("ml_dtypes").attr(row->name)) : object;
}

}  // namespace headgate::python
