// SPDX-License-Identifier: Apache-2.0
#include "headgate/convert.hpp"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "library/core/check.hpp"
#include "python/headgate/arrays.hpp"
#include "python/headgate/bindings.hpp"
#include "python/headgate/keywords.hpp"

// Binds headgate/convert.hpp: rounding to 16 and 8 bits.

namespace headgate::python {
namespace {

nb::object convert_array(const Keywords& keywords) {
  const char* const function = keywords.function();
  const nb::object array = keywords.take("array");
  const Input from = input_of(function, "array", array, ArrayKind::any, Layout::bhtd);
  require(from.view.present(), "{}: array is required but None", function);
  const DType dtype = dtype_of_word(function, "dtype", keywords.take("dtype", std::string("f32")));
  nb::object to = keywords.take("out");
  const Output output = place_output(keywords, "out", to, ArrayKind::any, Layout::bhtd, [&] {
    return ArrayFactory(array).empty({from.array.shape_ptr(), from.array.ndim()}, dtype);
  });
  {
    const nb::gil_scoped_release released;
    convert(output.view, from.view);
  }
  return to;
}

nb::tuple quantize_array(const Keywords& keywords) {
  const char* const function = keywords.function();
  const nb::object array = keywords.take("array");
  const Input from = input_of(function, "array", array, ArrayKind::any, Layout::bhtd);
  require(from.view.present() && from.array.ndim() > 0, "{}: array is None or has no dimension", function);
  std::vector<std::int64_t> sizes(from.array.shape_ptr(), from.array.shape_ptr() + from.array.ndim());
  const ArrayFactory factory(array);
  const nb::object to = factory.empty(sizes, DType::i8);
  sizes.back() = 1;
  const nb::object scale = factory.empty(sizes, DType::f32);
  const Output output = new_output_of(function, "out", to, ArrayKind::any, Layout::bhtd);
  const Output scales = new_output_of(function, "scale", scale, ArrayKind::any, Layout::bhtd);
  {
    const nb::gil_scoped_release released;
    quantize(output.view, scales.view, from.view);
  }
  return nb::make_tuple(to, scale);
}

}  // namespace

void bind_convert(nb::module_& module) {
  define(module, "convert", convert_array,
         {{"array", "Array", "", ""}, {"dtype", "str", "'f32'", ""}, {"out", "Array | None", "None", ""}}, 2, "Array",
         "The elements of an array of f32, f64, bf16 or f16, of at most four dimensions, rounded to nearest, ties to\n"
         "even, to another of these dtypes; f64 goes to 16 bits by way of f32. With `out` its dtype counts. Raises\n"
         "ValueError on arrays that do not fit.");
  define(module, "quantize", quantize_array, {{"array", "Array", "", ""}}, 1, "tuple[Array, Array]",
         "Rows to int8: round(x / scale), scale = max|x| / 127 for each row of the last dimension. Returns the int8\n"
         "array and its scales, float32 with a last dimension of 1: what attention takes as k and k_scale.");
}

}  // namespace headgate::python
