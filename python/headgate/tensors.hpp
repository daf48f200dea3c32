// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

// What PyTorch knows of its tensors and DLPack does not say.

namespace headgate::python {

namespace nb = nanobind;

/// Whether `object` is a tensor of PyTorch's.
bool is_tensor(nb::handle object);

/// Refuses what autograd would record: it does not see this call, and the gradient would be lost without a word. Throws
/// Error, "FUNCTION: NAME …".
void refuse_recorded(const char* function, const char* name, nb::handle object);

/// Whether the memory of a tensor has the negatives or conjugates of its elements, which PyTorch puts off.
bool is_lazy(nb::handle object);

/// `object`, or a copy whose memory has its elements.
nb::object resolved(nb::handle object);

}  // namespace headgate::python
