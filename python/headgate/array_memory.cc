// SPDX-License-Identifier: Apache-2.0
#include "python/headgate/array_memory.hpp"

#include <utility>

#include "python/headgate/tensors.hpp"

namespace headgate::python {
namespace {

/// The beginning of DLPackExchangeAPI, a table of C functions that export tensors (dlpack.h, DLPack 1.3 and later).
/// Only dltensor_from_py_object_no_sync is called, so only this function has its real type.
struct ExchangeApi {
  std::uint32_t major, minor;
  ExchangeApi* previous;  ///< table of the previous major version or null
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object_no_sync;
  void* managed_tensor_to_py_object_no_sync;
  int (*dltensor_from_py_object_no_sync)(void* object,
                                         nb::dlpack::dltensor* out);  ///< null if PyTorch does not provide it
};

/// Returns PyTorch's DLPack exchange API of major version 1. Returns null if PyTorch has none with
/// dltensor_from_py_object_no_sync.
const ExchangeApi* exchange_api_of(PyTypeObject* tensor_type) {
  constexpr std::uint32_t kMajor = 1;
  const nb::handle type(reinterpret_cast<PyObject*>(tensor_type));
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api") == 0) return nullptr;
  const auto* api = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (api != nullptr && api->major > kMajor) api = api->previous;
  const bool known = api != nullptr && api->major == kMajor && api->dltensor_from_py_object_no_sync != nullptr;
  return known ? api : nullptr;
}

DType dtype_of_dlpack(const nb::dlpack::dtype& dtype) {
  using Code = nb::dlpack::dtype_code;
  if (dtype.lanes != 1) return DType::none;
  switch (static_cast<Code>(dtype.code)) {
    case Code::Float:
      return dtype.bits == 32   ? DType::f32
             : dtype.bits == 64 ? DType::f64
             : dtype.bits == 16 ? DType::f16
                                : DType::none;
    case Code::Bfloat: return dtype.bits == 16 ? DType::bf16 : DType::none;
    case Code::Bool: return dtype.bits == 8 ? DType::boolean : DType::none;
    case Code::Int:
      return dtype.bits == 64 ? DType::i64 : dtype.bits == 32 ? DType::i32 : dtype.bits == 8 ? DType::i8 : DType::none;
    default: return DType::none;
  }
}

/// Converts a format of the buffer protocol and the item size in bytes to a dtype. Only formats of one letter, such as
/// "f", are known. Returns DType::none for other formats.
DType dtype_of_format(const char* format, Py_ssize_t bytes) {
  if (format == nullptr || format[0] == '\0' || format[1] != '\0') return DType::none;
  switch (format[0]) {
    case 'f': return DType::f32;
    case 'd': return DType::f64;
    case 'e': return DType::f16;
    case '?': return DType::boolean;
    case 'b': return DType::i8;
    case 'i':
    case 'l':
    case 'q': return bytes == 8 ? DType::i64 : DType::i32;
    default: return DType::none;
  }
}

std::optional<ArrayMemory> memory_of_tensor(nb::handle object) {
  static const ExchangeApi* const api = exchange_api_of(loaded_types().tensor);
  if (api == nullptr || has_lazy_negation(object)) return {};
  nb::dlpack::dltensor tensor;
  if (api->dltensor_from_py_object_no_sync(object.ptr(), &tensor) != 0) {
    PyErr_Clear();
    return {};
  }
  ArrayMemory memory;
  memory.dtype = dtype_of_dlpack(tensor.dtype);
  const bool known = tensor.device.device_type == nb::device::cpu::value && memory.dtype != DType::none;
  if (!known || tensor.ndim > static_cast<std::int32_t>(ArrayMemory::kMaxRank) || tensor.strides == nullptr) return {};
  memory.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  memory.rank = static_cast<std::size_t>(tensor.ndim);
  for (std::size_t d = 0; d < memory.rank; ++d) {
    memory.shape[d] = tensor.shape[d];
    memory.strides[d] = tensor.strides[d];
  }
  memory.owner = nb::borrow(object);
  return memory;
}

/// Owns a Py_buffer view of an object and releases it on destruction.
class Buffer {
 public:
  explicit Buffer(nb::handle object) : has_(PyObject_GetBuffer(object.ptr(), &view_, PyBUF_RECORDS_RO) == 0) {
    if (!has_) PyErr_Clear();
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (has_) PyBuffer_Release(&view_);
  }

  explicit operator bool() const { return has_; }
  const Py_buffer* operator->() const { return &view_; }

 private:
  Py_buffer view_{};
  bool has_;
};

std::optional<ArrayMemory> memory_of_numpy(nb::handle object) {
  const Buffer buffer(object);
  if (!buffer || buffer->ndim > static_cast<int>(ArrayMemory::kMaxRank)) return {};
  ArrayMemory memory;
  memory.dtype = dtype_of_format(buffer->format, buffer->itemsize);
  if (memory.dtype == DType::none || buffer->itemsize != static_cast<Py_ssize_t>(dtype_bytes(memory.dtype))) return {};
  memory.data = buffer->buf;
  memory.read_only = buffer->readonly != 0;
  memory.rank = static_cast<std::size_t>(buffer->ndim);
  for (std::size_t d = 0; d < memory.rank; ++d) {
    if (buffer->strides[d] % buffer->itemsize != 0) return {};
    memory.shape[d] = buffer->shape[d];
    memory.strides[d] = buffer->strides[d] / buffer->itemsize;
  }
  memory.owner = nb::borrow(object);
  return memory;
}

}  // namespace

std::optional<ArrayMemory> read_directly(nb::handle object) {
  const LoadedTypes& types = loaded_types();
  const PyTypeObject* const type = Py_TYPE(object.ptr());
  if (type == types.numpy_array && type != nullptr) return memory_of_numpy(object);
  if (types.tensor != nullptr && (type == types.tensor || type == types.parameter)) return memory_of_tensor(object);
  return {};
}

}  // namespace headgate::python
