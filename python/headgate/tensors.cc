// SPDX-License-Identifier: Apache-2.0
#include "python/headgate/tensors.hpp"

#include <array>

#include "library/core/check.hpp"

namespace headgate::python {
namespace {

/// Returns the module `name`. Returns None if the program has not imported it.
nb::object loaded_module(const char* name) {
  PyObject* const module = PyDict_GetItemString(PyImport_GetModuleDict(), name);
  return module == nullptr ? nb::none() : nb::borrow(module);
}

/// Returns a class of a module, or null if the module lacks it. The reference to the class is never released.
PyTypeObject* find_type(const nb::object& module, const char* name) {
  if (module.is_none()) return nullptr;
  nb::object type = nb::getattr(module, name, nb::none());
  return PyType_Check(type.ptr()) != 0 ? reinterpret_cast<PyTypeObject*>(type.release().ptr()) : nullptr;
}

/// Returns an interned Python string for attribute look-ups.
nb::handle interned(const char* name) { return PyUnicode_InternFromString(name); }

/// Returns whether a tensor has a tangent of forward-mode autograd.
bool has_tangent(nb::handle tensor) {
  static const nb::handle level = interned("_current_level");
  static const nb::handle forward_ad = loaded_module("torch.autograd.forward_ad").release();
  if (forward_ad.is_none()) return false;
  // Outside of PyTorch's dual_level(), the level is negative and no tensor has a tangent. Reading the level is cheaper
  // than calling unpack_dual().
  if (nb::cast<int>(nb::getattr(forward_ad, level, nb::int_(0))) < 0) return false;
  return !forward_ad.attr("unpack_dual")(tensor).attr("tangent").is_none();
}

}  // namespace

const LoadedTypes& loaded_types() {
  static LoadedTypes types;
  if (types.numpy_array == nullptr) types.numpy_array = find_type(loaded_module("numpy"), "ndarray");
  if (types.parameter == nullptr) {
    const nb::object nn = loaded_module("torch.nn");
    types.tensor = find_type(loaded_module("torch"), "Tensor");
    if (types.tensor != nullptr) types.parameter = find_type(nn, "Parameter");
  }
  return types;
}

bool is_tensor(nb::handle object) {
  PyTypeObject* const tensor = loaded_types().tensor;
  return tensor != nullptr && PyType_IsSubtype(Py_TYPE(object.ptr()), tensor) != 0;
}

void refuse_recorded(const char* function, const char* name, nb::handle object) {
  static const nb::handle requires_grad = interned("requires_grad");
  static nb::handle is_grad_enabled;  // torch.is_grad_enabled, found for the first tensor that requires a gradient
  if (!is_tensor(object)) return;
  require(
      !has_tangent(object),
      "{}: {} has a tangent, which forward-mode autograd would not get of this call: give the primal of unpack_dual",
      function, name);
  if (!nb::cast<bool>(nb::getattr(object, requires_grad))) return;
  if (!is_grad_enabled.is_valid()) {
    is_grad_enabled = nb::object(loaded_module("torch").attr("is_grad_enabled")).release();
  }
  require(!nb::cast<bool>(is_grad_enabled()),
          "{}: {} requires a gradient, which autograd would not get of this call: detach it, or call under no_grad",
          function, name);
}

void count_versions(const std::vector<nb::object>& tensors) {
  if (tensors.empty()) return;
  static const nb::handle increment =
      nb::object(nb::module_::import_("torch.autograd.graph").attr("increment_version")).release();
  for (const nb::object& tensor : tensors) increment(tensor);
}

bool is_instance(nb::handle object, const char* module, const char* name) {
  const nb::object loaded = loaded_module(module);
  if (loaded.is_none()) return false;
  const nb::object type = nb::getattr(loaded, name, nb::none());  // None while the module is being imported
  if (type.is_none()) return false;
  const int is_one = PyObject_IsInstance(object.ptr(), type.ptr());
  if (is_one < 0) throw nb::python_error();
  return is_one == 1;
}

bool has_lazy_negation(nb::handle tensor) {
  static const nb::handle is_neg = interned("is_neg");
  const std::array<PyObject*, 1> arguments{tensor.ptr()};
  const nb::object negated = nb::steal(PyObject_VectorcallMethod(is_neg.ptr(), arguments.data(), 1, nullptr));
  if (!negated.is_valid()) throw nb::python_error();
  return negated.is(nb::handle(Py_True));
}

bool is_lazy(nb::handle object) {
  return is_tensor(object) && (has_lazy_negation(object) || nb::cast<bool>(object.attr("is_conj")()));
}

nb::object resolved(nb::handle object) {
  // DLPack cannot export a tensor that requires a gradient, so it is detached. No gradient is lost: refuse_recorded()
  // has rejected tensors that autograd would record.
  if (is_tensor(object) && nb::cast<bool>(object.attr("requires_grad"))) return resolved(object.attr("detach")());
  return is_lazy(object) ? object.attr("resolve_conj")().attr("resolve_neg")() : nb::borrow(object);
}

}  // namespace headgate::python
