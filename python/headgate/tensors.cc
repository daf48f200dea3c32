// SPDX-License-Identifier: Apache-2.0
#include "python/headgate/tensors.hpp"

#include "library/core/check.hpp"

namespace headgate::python {
namespace {

/// PyTorch, or None where the program has not imported it.
nb::object loaded_torch() { return nb::module_::import_("sys").attr("modules").attr("get")("torch"); }

}  // namespace

bool is_tensor(nb::handle object) {
  const nb::object torch = loaded_torch();
  return !torch.is_none() && nb::isinstance(object, torch.attr("Tensor"));
}

void refuse_recorded(const char* function, const char* name, nb::handle object) {
  if (!is_tensor(object) || !nb::cast<bool>(object.attr("requires_grad"))) return;
  require(!nb::cast<bool>(loaded_torch().attr("is_grad_enabled")()),
          "{}: {} requires a gradient, which autograd would not get of this call: detach it, or call under no_grad",
          function, name);
}

bool is_lazy(nb::handle object) {
  return is_tensor(object) && (nb::cast<bool>(object.attr("is_neg")()) || nb::cast<bool>(object.attr("is_conj")()));
}

nb::object resolved(nb::handle object) {
  return is_lazy(object) ? object.attr("resolve_conj")().attr("resolve_neg")() : nb::borrow(object);
}

}  // namespace headgate::python
