// SPDX-License-Identifier: Apache-2.0
#include "headgate/convert.hpp"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/check.hpp"
#include "python/headgate/arrays.hpp"
#include "python/headgate/bindings.hpp"

// headgate/convert.hpp: rounding to 16 and 8 bits.

namespace headgate::python {
namespace {

nb::object convert_array(const nb::object& array, const std::string& dtype, const nb::object& out) {
  constexpr const char* kFunction = "convert";
  const Input from = input_of(kFunction, "array", array, ArrayKind::any, Layout::bhtd);
  require(from.view.present(), "{}: array is required but None", kFunction);
  nb::object to = out;
  if (to.is_none()) {
    to = Maker(array).empty({from.array.shape_ptr(), from.array.ndim()}, dtype_of_word(kFunction, "dtype", dtype));
  }
  const Output output = output_of(kFunction, "out", to, ArrayKind::any, Layout::bhtd);
  {
    const nb::gil_scoped_release released;
    convert(output.view, from.view);
  }
  return to;
}

nb::tuple quantize_array(const nb::object& array) {
  constexpr const char* kFunction = "quantize";
  const Input from = input_of(kFunction, "array", array, ArrayKind::any, Layout::bhtd);
  require(from.view.present() && from.array.ndim() > 0, "{}: array is None or has no dimension", kFunction);
  std::vector<std::int64_t> sizes(from.array.shape_ptr(), from.array.shape_ptr() + from.array.ndim());
  const Maker maker(array);
  const nb::object to = maker.empty(sizes, DType::i8);
  sizes.back() = 1;
  const nb::object scale = maker.empty(sizes, DType::f32);
  const Output output = output_of(kFunction, "out", to, ArrayKind::any, Layout::bhtd);
  const Output scales = output_of(kFunction, "scale", scale, ArrayKind::any, Layout::bhtd);
  {
    const nb::gil_scoped_release released;
    quantize(output.view, scales.view, from.view);
  }
  return nb::make_tuple(to, scale);
}

}  // namespace

void bind_convert(nb::module_& module) {
  module.def(
      "convert", convert_array, nb::arg("array").none(), nb::arg("dtype") = "f32", nb::kw_only(),
      nb::arg("out") = nb::none(),
      nb::sig("def convert(array: Array, dtype: str = 'f32', *, out: Array | None = None) -> Array"),
      "The elements of an array of f32, f64, bf16 or f16, of at most four dimensions, rounded to nearest, ties to\n"
      "even, to another of these dtypes; f64 goes to 16 bits by way of f32. With `out` its dtype counts. Raises\n"
      "ValueError on arrays that do not fit.");
  module.def(
      "quantize", quantize_array, nb::arg("array").none(), nb::sig("def quantize(array: Array) -> tuple[Array, Array]"),
      "Rows to int8: round(x / scale), scale = max|x| / 127 for each row of the last dimension. Returns the int8\n"
      "array and its scales, float32 with a last dimension of 1: what attention takes as k and k_scale.");
}

}  // namespace headgate::python
