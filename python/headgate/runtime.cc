// SPDX-License-Identifier: Apache-2.0
#include "headgate/runtime.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/headgate/bindings.hpp"

// headgate/runtime.hpp: vector targets, backends and threads.

namespace headgate::python {

namespace nb = nanobind;

void bind_runtime(nb::module_& module) {
  module.attr("__version__") = version();
  module.def("compiled_targets", &compiled_targets, "Vector targets in this build, best first.");
  module.def("supported_targets", &supported_targets, "Those of them that this CPU can run, best first.");
  module.def("active_target", &active_target, "The vector target that kernels run on now.");
  module.def("set_target", &set_target, nb::arg("name"),
             "Makes `name` the target of every later call in this process; '' returns to the default choice. Raises\n"
             "ValueError if it is not in supported_targets(). Not to be called while a kernel runs.");
  module.def("supported_native16_products", &supported_native16_products,
             "What this CPU and build have for precision='native16', best first.");
  module.def("native16_products", &native16_products, "The one that it uses now; '' where it computes as exact does.");
  module.def("set_native16_products", &set_native16_products, nb::arg("name"),
             "Makes precision='native16' use `name` in every later call of this process; '' returns to the default\n"
             "choice. Raises ValueError if it is not in supported_native16_products().");
  module.def("supported_backends", &supported_backends, "Implementations of the operation in this build, best first.");
  module.def("set_backend", &set_backend, nb::arg("name"),
             "Makes `name` the only backend of every later call in this process; '' returns to the choice by call.");
  module.def("max_threads", &max_threads, "The most threads that a call uses.");
  module.def("default_threads", &default_threads, "Threads of a call whose `threads` is 0.");
  module.def("release_workspace", &release_workspace,
             "Frees the scratch memory, at most 32 MiB, that the calling thread keeps from its last call.");
}

}  // namespace headgate::python
