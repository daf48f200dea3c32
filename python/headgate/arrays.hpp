// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "headgate/tensor.hpp"
#include "library/core/words.hpp"
#include "python/headgate/array_memory.hpp"
#include "python/headgate/keywords.hpp"
#include "python/headgate/tensors.hpp"

// Python's arrays as views: NumPy's, PyTorch's and those of all others that DLPack or the buffer protocol gives.
// Nothing is copied except tensors with a lazy negation or conjugation.

namespace headgate::python {

namespace nb = nanobind;

/// The order of the dimensions of q, k, v, gate and what has their shapes.
enum class Layout { bhtd, bthd };

/// What the dimensions of a Python array are of a view's four.
enum class ArrayKind {
  heads,           ///< (B,H,T,X) or, by the layout, (B,T,H,X); of a batch of one (H,T,X) or (T,H,X)
  rows,            ///< (B,H,T) in every layout: a number for each row; of a batch of one (H,T)
  scores,          ///< (B,H,T,S) in every layout, (H,T,S) or (T,S)
  vector,          ///< (N)
  head_numbers,    ///< (H) or (N,H), a view (1,1,1|N,H)
  table,           ///< (B,M)
  pages,           ///< as heads, of rank 4
  states,          ///< (N,H,D,Dv) in every layout, with or without a batch
  channels,        ///< (B,T,X), a view (B,1,T,X); of a batch of one (T,X)
  channel_states,  ///< (N,M,X), a view (N,1,M,X), with or without a batch
  head_features,   ///< (X) or (H,X), a view (1,1|H,1,X)
  any,             ///< up to four dimensions, as they are, behind dimensions of size 1
};

/// The dimensions of an array with a batch.
std::size_t rank_with_batch(ArrayKind kind);

/// How messages and signatures name the dimensions: "(B,H,T,X)".
const char* letters_of(ArrayKind kind, Layout layout);

/// An array that a call reads. It keeps the array's memory alive.
struct Input {
  ArrayMemory array;
  ConstTensorView view;  ///< absent where None was given
};

/// An array that a call writes.
struct Output {
  nb::object object;
  ArrayMemory array;
  TensorView view;
};

/// `object` as a view of its memory. Throws Error, "FUNCTION: NAME …", on what is no array of the CPU of a dtype that
/// the library knows and of a rank of `kind`. None is absent.
Input input_of(const char* function, const char* name, nb::handle object, ArrayKind kind, Layout layout);

/// The same of an array that the call of `keywords` has been given to write to, which it notes for autograd. Refuses
/// read-only arrays, and tensors with a lazy negation or conjugation.
Output output_of(const Keywords& keywords, const char* name, nb::handle object, ArrayKind kind, Layout layout);

/// The same of an array that `function` has made itself.
Output made_output_of(const char* function, const char* name, nb::handle object, ArrayKind kind, Layout layout);

/// The same of `array`, which make() makes where it is None.
template <class Make>
Output place_output(const Keywords& keywords, const char* name, nb::object& array, ArrayKind kind, Layout layout,
                    const Make& make) {
  if (!array.is_none()) return output_of(keywords, name, array, kind, layout);
  array = make();
  return made_output_of(keywords.function(), name, array, kind, layout);
}

/// The sizes of a view's dimensions as a Python array of `kind` has them, with or without the batch.
std::vector<std::int64_t> sizes_of(const Shape& shape, ArrayKind kind, Layout layout, bool has_batch);

/// The dtype of a word, "f32" as messages have it or "float32" as NumPy has. Throws Error, "FUNCTION: NAME: …".
DType dtype_of_word(const char* function, const char* name, const std::string& word);

/// "(2,8,5)".
std::string sizes_text(std::span<const std::int64_t> sizes);

/// Makes outputs as arrays of the program that `like` comes from: PyTorch's for a tensor of it, else NumPy's.
class Maker {
 public:
  explicit Maker(nb::handle like) : makes_tensors_(is_tensor(like)) {}
  nb::object empty(std::span<const std::int64_t> sizes, DType dtype) const;

  /// One of the sizes and the dtype of `of`.
  nb::object empty_like(const Input& of) const;

 private:
  bool makes_tensors_;
};

/// An array of NumPy over memory that `owner` holds.
nb::object array_over(const TensorView& view, ArrayKind kind, Layout layout, nb::handle owner);

/// An array of NumPy with these elements.
template <typename T>
nb::object array_of(const std::vector<T>& values, const std::vector<std::int64_t>& sizes) {
  nb::object array = Maker(nb::none()).empty(sizes, dtype_of<T>());
  const Output output = made_output_of("headgate", "values", array, ArrayKind::any, Layout::bhtd);
  std::copy(values.begin(), values.end(), static_cast<T*>(output.view.data));
  return array;
}

}  // namespace headgate::python

template <>
struct headgate::Words<headgate::python::Layout> {
  static constexpr std::array<Word<python::Layout>, 2> kAll{
      {{python::Layout::bhtd, "bhtd"}, {python::Layout::bthd, "bthd"}}};
};
