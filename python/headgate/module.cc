// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>

#include "python/headgate/bindings.hpp"
#include "python/headgate/keywords.hpp"

NB_MODULE(_headgate, module) {
  module.doc() = "The bindings of libheadgate; `headgate` has them all.";
  headgate::python::raise_errors_in_one_line();
  headgate::python::bind_runtime(module);
  headgate::python::bind_attention(module);
  headgate::python::bind_statistics(module);
  headgate::python::bind_cache(module);
  headgate::python::bind_merge(module);
  headgate::python::bind_linear_attention(module);
  headgate::python::bind_linear_statistics(module);
  headgate::python::bind_short_convolution(module);
  headgate::python::bind_gated_norm(module);
  headgate::python::bind_convert(module);
}
