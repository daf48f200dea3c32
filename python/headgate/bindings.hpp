// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

// Declares the functions that add the bindings to the module. Each public header has one binding file.

namespace headgate::python {

void bind_attention(nanobind::module_& module);
void bind_cache(nanobind::module_& module);
void bind_convert(nanobind::module_& module);
void bind_gated_norm(nanobind::module_& module);
void bind_linear_attention(nanobind::module_& module);
void bind_linear_statistics(nanobind::module_& module);
void bind_merge(nanobind::module_& module);
void bind_runtime(nanobind::module_& module);
void bind_short_convolution(nanobind::module_& module);
void bind_statistics(nanobind::module_& module);

}  // namespace headgate::python
