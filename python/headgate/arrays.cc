// SPDX-License-Identifier: Apache-2.0
#include "python/headgate/arrays.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "headgate/error.hpp"
#include "library/core/check.hpp"
#include "library/core/format.hpp"
#include "python/headgate/tensors.hpp"

namespace headgate::python {
namespace {

using Code = nb::dlpack::dtype_code;

/// Maps a dtype to its DLPack code and bits.
struct DTypeRow {
  DType dtype;
  Code code;
  std::uint8_t bits;
};

constexpr std::array<DTypeRow, 8> kDTypes{{
    {DType::f32, Code::Float, 32},
    {DType::f64, Code::Float, 64},
    {DType::bf16, Code::Bfloat, 16},
    {DType::f16, Code::Float, 16},
    {DType::boolean, Code::Bool, 8},
    {DType::i32, Code::Int, 32},
    {DType::i64, Code::Int, 64},
    {DType::i8, Code::Int, 8},
}};

std::string text_of(nb::handle object) { return nb::cast<std::string>(nb::str(object)); }

std::string class_name_of(nb::handle object) { return nb::cast<std::string>(object.type().attr("__name__")); }

/// Returns the dtype's name as the array's own library spells it, or "unknown" if the array has no dtype.
std::string own_dtype(nb::handle object) {
  if (!nb::hasattr(object, "dtype")) return "unknown";
  const nb::object dtype = object.attr("dtype");
  return nb::hasattr(dtype, "name") ? text_of(dtype.attr("name")) : text_of(dtype);
}

/// Returns whether `object` is a NumPy array of ml_dtypes' bfloat16 in native byte order. DLPack cannot export that
/// dtype from NumPy, so the array is read as uint16.
bool is_numpy_bfloat16(nb::handle object) {
  return nb::hasattr(object, "__array_interface__") && own_dtype(object) == "bfloat16" &&
         nb::cast<bool>(object.attr("dtype").attr("isnative"));
}

/// Returns the reason why `object` cannot be read as an array. The reason includes the error that `__dlpack__` raised.
std::string refusal_of(nb::handle object) {
  if (!nb::hasattr(object, "__dlpack__")) {
    return formatted("is a {} but must be an array (NumPy's, PyTorch's or another with DLPack)", class_name_of(object));
  }
  try {
    object.attr("__dlpack__")();
  } catch (nb::python_error& error) {
    std::string reason = text_of(error.value());
    std::replace(reason.begin(), reason.end(), '\n', ' ');
    return formatted("of dtype {} cannot be read as an array of the CPU: {}", own_dtype(object), reason);
  }
  return "cannot be read as an array of the CPU";
}

/// Returns the dtype of an imported array. `as_bfloat16` marks bfloat16 elements that DLPack describes as uint16.
template <typename Array>
DType dtype_of_array(const char* function, const char* name, nb::handle object, const Array& array, bool as_bfloat16) {
  if (as_bfloat16) return DType::bf16;
  const nb::dlpack::dtype dtype = array.dtype();
  for (const DTypeRow& row : kDTypes) {
    const bool same = dtype.code == static_cast<std::uint8_t>(row.code) && dtype.bits == row.bits && dtype.lanes == 1;
    if (same) return row.dtype;
  }
  throw Error(formatted("{}: {} has dtype {} but must be one of {}", function, name, own_dtype(object),
                        comma_separated(kDTypeNames, &DTypeName::name)));
}

/// Describes the memory of an imported array. `as_bfloat16` marks bfloat16 elements that DLPack describes as uint16.
template <typename Array>
ArrayMemory memory_of(const char* function, const char* name, nb::handle object, const Array& array, bool as_bfloat16,
                      ArrayKind kind, Layout layout) {
  if (array.device_type() != nb::device::cpu::value) {
    const std::string number = formatted("of DLPack's number {}", array.device_type());
    const std::string device = nb::hasattr(object, "device") ? text_of(object.attr("device")) : number;
    throw Error(formatted("{}: {} lies on a device, {}, but must be in the CPU's memory", function, name, device));
  }
  ArrayMemory memory;
  memory.dtype = dtype_of_array(function, name, object, array, as_bfloat16);
  if (array.ndim() > ArrayMemory::kMaxRank) {
    refuse_rank(function, name, {array.shape_ptr(), array.ndim()}, kind, layout);
  }
  memory.data = const_cast<void*>(static_cast<const void*>(array.data()));
  memory.rank = array.ndim();
  std::copy_n(array.shape_ptr(), memory.rank, memory.shape.begin());
  std::copy_n(array.stride_ptr(), memory.rank, memory.strides.begin());
  memory.described = nb::ndarray<nb::ro>(array.handle());
  return memory;
}

}  // namespace

DType dtype_of_word(const char* function, const char* name, const std::string& word) {
  for (const DTypeName& row : kDTypeNames) {
    if (word == row.name || word == dtype_name(row.dtype)) return row.dtype;
  }
  throw Error(formatted("{}: {}: '{}' is none of {}", function, name, word,
                        comma_separated(kDTypeNames, [](const DTypeName& row) { return dtype_name(row.dtype); })));
}

namespace {

/// Throws Error if `object` is a masked array of NumPy, since its mask would be ignored silently.
void refuse_masked(const char* function, const char* name, nb::handle object) {
  require(!is_instance(object, "numpy.ma", "MaskedArray"),
          "{}: {} is a masked array, whose mask is not read: give an array without one, such as {}.filled()", function,
          name, name);
}

/// Returns `object`, or its memoryview if it supports the buffer protocol but not DLPack. nanobind reads the strides of
/// a buffer. Buffers of ctypes have no strides, but a memoryview adds them.
nb::object with_strides(nb::handle object) {
  if (nb::hasattr(object, "__dlpack__") || PyObject_CheckBuffer(object.ptr()) == 0) return nb::borrow(object);
  PyObject* const view = PyMemoryView_FromObject(object.ptr());
  if (view == nullptr) throw nb::python_error();
  return nb::steal(view);
}

/// Reads an array by nanobind, which uses `__dlpack__` or the buffer protocol.
ArrayMemory read_generally(const char* function, const char* name, nb::handle given, ArrayKind kind, Layout layout) {
  refuse_masked(function, name, given);
  const nb::object object = with_strides(resolved(given));
  nb::ndarray<nb::ro> array;
  bool as_bfloat16 = false;
  if (!nb::try_cast(object, array, false)) {
    as_bfloat16 = is_numpy_bfloat16(object) && nb::try_cast(object.attr("view")("uint16"), array, false);
    if (!as_bfloat16) throw Error(formatted("{}: {} {}", function, name, refusal_of(given)));
  }
  return memory_of(function, name, object, array, as_bfloat16, kind, layout);
}

/// Returns the memory of an array that a call will write. Throws Error if the array is read-only or masked, or has a
/// lazy negation or conjugation.
ArrayMemory find_writable(const char* function, const char* name, nb::handle given, ArrayKind kind, Layout layout) {
  require(!is_lazy(given),
          "{}: {} has a lazy negation or conjugation, which its memory does not have: give a tensor of its own, "
          "{}.resolve_neg()",
          function, name, name);
  // Arrays of JAX are immutable, although they do not say so by DLPack.
  require(!is_instance(given, "jax", "Array"), "{}: {} is an array of JAX, which is read-only: give an array of NumPy",
          function, name);
  refuse_masked(function, name, given);
  const nb::object object = with_strides(given);
  nb::ndarray<> array;
  bool as_bfloat16 = false;
  if (!nb::try_cast(object, array, false)) {
    as_bfloat16 = is_numpy_bfloat16(object);
    const nb::object memory = as_bfloat16 ? nb::object(object.attr("view")("uint16")) : object;
    if (!as_bfloat16 || !nb::try_cast(memory, array, false)) {
      nb::ndarray<nb::ro> readable;
      const bool can_be_read = nb::try_cast(memory, readable, false);
      throw Error(formatted("{}: {} {}", function, name, can_be_read ? "is read-only" : refusal_of(given)));
    }
  }
  return memory_of(function, name, object, array, as_bfloat16, kind, layout);
}

/// Creates new arrays in CPU memory with one library, NumPy or PyTorch. Caches the library's `empty` function and
/// dtypes, and never releases them.
class ArrayLibrary {
 public:
  explicit ArrayLibrary(const char* name) : name_(name) {}

  nb::object empty(std::span<const std::int64_t> sizes, DType dtype) {
    if (!empty_.is_valid()) load();
    const nb::object shape = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(sizes.size())));
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      PyTuple_SetItem(shape.ptr(), static_cast<Py_ssize_t>(d), nb::int_(sizes[d]).release().ptr());
    }
    const std::array<PyObject*, 3> arguments{shape.ptr(), dtype_object(dtype).ptr(), device_.ptr()};
    PyObject* const made = PyObject_Vectorcall(empty_.ptr(), arguments.data(), 1, keywords_.ptr());
    if (made == nullptr) throw nb::python_error();
    return nb::steal(made);
  }

 private:
  /// Sets the function `empty` and its keyword arguments. PyTorch tensors are given a device, because
  /// set_default_device() may have changed the default one.
  void load() {
    const nb::module_ module = nb::module_::import_(name_);
    const bool has_devices = nb::hasattr(module, "set_default_device");
    keywords_ = (has_devices ? nb::make_tuple("dtype", "device") : nb::make_tuple("dtype")).release();
    if (has_devices) device_ = nb::object(module.attr("device")("cpu")).release();
    empty_ = nb::object(module.attr("empty")).release();
  }

  nb::handle dtype_object(DType dtype) {
    const auto row =
        std::find_if(kDTypeNames.begin(), kDTypeNames.end(), [dtype](const DTypeName& r) { return r.dtype == dtype; });
    nb::handle& found = dtypes_[static_cast<std::size_t>(row - kDTypeNames.begin())];
    if (found.is_valid()) return found;
    nb::object module = nb::module_::import_(name_);
    if (dtype == DType::bf16 && !nb::hasattr(module, row->name)) module = nb::module_::import_("ml_dtypes");
    found = nb::object(module.attr(row->name)).release();
    return found;
  }

  const char* name_;
  nb::handle empty_, keywords_, device_;
  std::array<nb::handle, kDTypeNames.size()> dtypes_{};
};

}  // namespace

Input input_of(const char* function, const char* name, nb::handle given, ArrayKind kind, Layout layout) {
  Input input;
  if (!given.is_valid() || given.is_none()) return input;
  refuse_recorded(function, name, given);
  std::optional<ArrayMemory> memory = read_directly(given);
  input.array = memory ? std::move(*memory) : read_generally(function, name, given, kind, layout);
  input.view = view_of_array<ConstTensorView>(function, name, input.array, kind, layout);
  return input;
}

Output passed_output_of(const Keywords& keywords, const char* name, nb::handle object, ArrayKind kind, Layout layout) {
  Output output = new_output_of(keywords.function(), name, object, kind, layout);
  if (output.object.is_valid()) keywords.note_written(output.object);
  return output;
}

Output new_output_of(const char* function, const char* name, nb::handle object, ArrayKind kind, Layout layout) {
  Output output;
  if (!object.is_valid() || object.is_none()) return output;
  refuse_recorded(function, name, object);
  output.object = nb::borrow(object);
  std::optional<ArrayMemory> memory = read_directly(object);
  const bool direct = memory && !memory->read_only;
  output.array = direct ? std::move(*memory) : find_writable(function, name, object, kind, layout);
  output.view = view_of_array<TensorView>(function, name, output.array, kind, layout);
  return output;
}

nb::object ArrayFactory::empty(std::span<const std::int64_t> sizes, DType dtype) const {
  static ArrayLibrary numpy("numpy"), torch("torch");
  return (makes_tensors_ ? torch : numpy).empty(sizes, dtype);
}

nb::object ArrayFactory::empty_like(const Input& of) const {
  if (makes_tensors_ && of.array.owner.is_valid() && is_tensor(of.array.owner)) {
    static const nb::handle function = nb::object(nb::module_::import_("torch").attr("empty_like")).release();
    const std::array<PyObject*, 1> arguments{of.array.owner.ptr()};
    PyObject* const made = PyObject_Vectorcall(function.ptr(), arguments.data(), 1, nullptr);
    if (made == nullptr) throw nb::python_error();
    return nb::steal(made);
  }
  return empty({of.array.shape_ptr(), of.array.ndim()}, of.view.dtype);
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
  return as_bfloat16 ? object.attr("view")(nb::module_::import_("ml_dtypes").attr("bfloat16")) : object;
}

}  // namespace headgate::python
