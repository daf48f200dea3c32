// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

// Reads and updates properties of arrays that DLPack does not describe. Most of them belong to PyTorch tensors.

namespace headgate::python {

namespace nb = nanobind;

/// Holds classes of NumPy and PyTorch. A pointer is null until the program imports the library of the class. Each call
/// of loaded_types() looks up the missing classes again.
struct LoadedTypes {
  PyTypeObject* numpy_array = nullptr;  ///< numpy.ndarray
  PyTypeObject* tensor = nullptr;       ///< torch.Tensor
  PyTypeObject* parameter = nullptr;    ///< torch.nn.Parameter
};
const LoadedTypes& loaded_types();

/// Returns whether `object` is a PyTorch tensor.
bool is_tensor(nb::handle object);

/// Throws Error, "FUNCTION: NAME …", if autograd would record `object`, or if `object` has a tangent of forward-mode
/// autograd. Autograd does not see the calls of bindings, so the gradient or tangent would be lost silently.
void refuse_recorded(const char* function, const char* name, nb::handle object);

/// Increments autograd's version counters of the PyTorch tensors that a call has written. A backward pass that needs
/// the overwritten values then raises an error, as it does after any in-place operation.
void count_versions(const std::vector<nb::object>& tensors);

/// Returns whether `object` is an instance of the class `name` in `module`. Returns false if the program has not
/// imported the module.
bool is_instance(nb::handle object, const char* module, const char* name);

/// Returns whether a tensor has a lazy negation, which is not applied to its memory.
bool has_lazy_negation(nb::handle tensor);

/// Returns whether `object` is a tensor with a lazy negation or conjugation, which is not applied to its memory.
bool is_lazy(nb::handle object);

/// Returns `object` without lazy operations: a copy with its negation or conjugation applied, or `object` itself.
/// Detaches tensors that require a gradient.
nb::object resolved(nb::handle object);

}  // namespace headgate::python
