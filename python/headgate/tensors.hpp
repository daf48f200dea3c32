// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

// Properties of PyTorch's tensors that DLPack does not carry.

namespace headgate::python {

namespace nb = nanobind;

/// Classes of the modules that the program has imported; null where it has not. They are looked up until they are
/// there.
struct LoadedTypes {
  PyTypeObject* numpy_array = nullptr;  ///< numpy.ndarray
  PyTypeObject* tensor = nullptr;       ///< torch.Tensor
  PyTypeObject* parameter = nullptr;    ///< torch.nn.Parameter
};
const LoadedTypes& loaded_types();

/// Whether `object` is a tensor of PyTorch's.
bool is_tensor(nb::handle object);

/// Throws Error, "FUNCTION: NAME …", if autograd would record `object`: it does not see this call, and the gradient
/// would be lost without a word.
void refuse_recorded(const char* function, const char* name, nb::handle object);

/// Tells autograd that a call has written to `tensors`, of PyTorch: a backward pass that has saved one of them, or a
/// view of its memory, then raises, as after an operation in place.
void count_versions(const std::vector<nb::object>& tensors);

/// Whether a tensor has a lazy negation, which its memory does not reflect.
bool has_lazy_negation(nb::handle tensor);

/// Whether `object` is a tensor with a lazy negation or conjugation, which its memory does not reflect.
bool is_lazy(nb::handle object);

/// `object`, or a copy with the negation or conjugation carried out.
nb::object resolved(nb::handle object);

}  // namespace headgate::python
