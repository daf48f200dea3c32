// SPDX-License-Identifier: Apache-2.0
#include "headgate/runtime.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/headgate/bindings.hpp"
#include "python/headgate/keywords.hpp"

// Binds headgate/runtime.hpp: vector targets, backends and threads.

namespace headgate::python {

namespace nb = nanobind;

void bind_runtime(nb::module_& module) {
  module.attr("__version__") = version();
  module.def("_meant_instead_of", [](const std::string& name, const std::vector<std::string>& known) {
    return meant_instead_of(name, {known.begin(), known.end()});
  });
  const auto add = [&module](const char* name, auto function, const char* result, const char* text) {
    define(module, name, as_keyword_function(function, {}), {}, 0, result, text);
  };
  const auto add_of_name = [&module](const char* name, auto function, const char* text) {
    define(module, name, as_keyword_function(function, {"name"}), {{"name", "str", "", ""}}, 1, "None", text);
  };
  add("compiled_targets", &compiled_targets, "list[str]", "Vector targets in this build, best first.");
  add("supported_targets", &supported_targets, "list[str]", "Those of them that this CPU can run, best first.");
  add("active_target", &active_target, "str", "The vector target that kernels run on now.");
  add_of_name("set_target", &set_target,
              "Makes `name` the target of every later call in this process; '' returns to the default choice. Raises\n"
              "ValueError if it is not in supported_targets(). Not to be called while a kernel runs.");
  add("supported_native16_products", &supported_native16_products, "list[str]",
      "What this CPU and build have for precision='native16', best first.");
  add("native16_products", &native16_products, "str", "The one that it uses now; '' where it computes as exact does.");
  add_of_name("set_native16_products", &set_native16_products,
              "Makes precision='native16' use `name` in every later call of this process; '' returns to the default\n"
              "choice. Raises ValueError if it is not in supported_native16_products().");
  add("supported_backends", &supported_backends, "list[str]",
      "Implementations of the operation in this build, best first.");
  add_of_name("set_backend", &set_backend,
              "Makes `name` the only backend of every later call in this process; '' returns to the choice by call.");
  add("max_threads", &max_threads, "int", "The most threads that a call uses: four for each processor, at least 16.");
  add("default_threads", &default_threads, "int", "The most threads of a call whose `threads` is None.");
  add("release_workspace", &release_workspace, "None",
      "Frees the scratch memory, at most 32 MiB, that the calling thread keeps from its last call.");
}

}  // namespace headgate::python
