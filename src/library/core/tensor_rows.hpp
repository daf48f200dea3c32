// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include "headgate/tensor.hpp"

// Tables of an operation's tensors: inputs, outputs, what backward reads beside the inputs, and gradients, a row each.
// The C API, the command line, the Python package and the operation of PyTorch walk them.

namespace headgate {

/// The dimensions of an array that is viewed as (B,H,T,X).
enum class TensorKind {
  heads,          ///< all of them, in the order that a layout says
  rows,           ///< (B,H,T): a number for each query of a head
  scores,         ///< (B,H,T,S), of which inputs may leave out leading ones
  vector,         ///< (N)
  head_numbers,   ///< (H) or (N,H), viewed as (1,1,1|N,H): a number for each head, or for each of a sequence
  table,          ///< (B,M)
  state,          ///< (N,H,D,Dv): a matrix for each head of a sequence
  channels,       ///< (B,T,X), viewed as (B,1,T,X): rows without heads
  channel_state,  ///< (N,M,X), viewed as (N,1,M,X): rows of a sequence before its first token
  head_features   ///< (X) or (H,X), viewed as (1,1|H,1,X): numbers for the features of a head
};

/// The element types that a tensor may have.
enum class Elements {
  floats,
  of_q,
  of_q_or_i8,
  of_q_or_f32,
  of_x,
  of_x_or_f32,
  f32,
  f32_or_f64,
  f64_or_f32,  ///< the same, made in f64
  boolean,
  integers,
  i32
};

/// The elements' types as NumPy and PyTorch name them, of a tensor that is read.
constexpr std::string_view types_of(Elements elements) {
  switch (elements) {
    case Elements::floats: return "float32, float64, bfloat16 or float16";
    case Elements::of_q: return "dtype of q";
    case Elements::of_q_or_i8: return "dtype of q, or int8";
    case Elements::of_q_or_f32: return "dtype of q, or float32";
    case Elements::of_x: return "dtype of x";
    case Elements::of_x_or_f32: return "dtype of x, or float32";
    case Elements::f32: return "float32";
    case Elements::f32_or_f64:
    case Elements::f64_or_f32: return "float32 or float64";
    case Elements::boolean: return "bool";
    case Elements::integers: return "int32 or int64";
    case Elements::i32: return "int32";
  }
  return "";
}

/// The same of an output, as it is made.
constexpr std::string_view output_types_of(Elements elements) {
  if (elements == Elements::f64_or_f32) return "float64";
  return elements == Elements::f32_or_f64 ? "float64 where q is, else float32" : types_of(elements);
}

/// How the command line takes or writes a tensor.
struct TensorFile {
  std::string_view option = {};  ///< "--q"; empty: it has none
  std::string_view name = {};    ///< what --help calls the option's value; of a gradient, its file's name
  bool or_f32 = false;           ///< whether a file of another dtype than that of q is read as f32
};

/// What few tensors have. `Inputs` is the operation's struct of inputs.
template <class Inputs>
struct TensorTraits {
  bool required = false;
  bool in_pages = false;      ///< with a block table, rows of pages
  bool forward_only = false;  ///< with it there are no gradients
  /// The input that must be given with it.
  ConstTensorView Inputs::*needs = nullptr;
  /// Whether the C structs of an older version end before it.
  bool older_c_ends_here = false;
};

/// A tensor of an operation: a member of a struct of views, and of the struct that the C API has for it.
template <class Inputs, class StructOf, typename View, class CStruct, typename CTensor>
struct OperationTensor {
  using Struct = StructOf;
  using Member = View Struct::*;
  using CMember = CTensor CStruct::*;

  const char* name;  ///< of both members, and of the argument in Python
  Member member;
  CMember c_member;
  TensorKind kind;
  Elements elements;
  std::string_view shape;  ///< of arrays, in the letters of the operation's header
  std::string_view help;   ///< begins with a small letter
  TensorFile file;
  TensorTraits<Inputs> traits;
  ConstTensorView Inputs::*gradient_of = nullptr;

  // A constructor: clang-format sets the arguments of a call in few lines.
  constexpr OperationTensor(const char* its_name, Member its_member, CMember its_c_member, TensorKind its_kind,
                            Elements its_elements, std::string_view its_shape, std::string_view its_help,
                            TensorFile its_file = {}, TensorTraits<Inputs> its_traits = {})
      : name(its_name),
        member(its_member),
        c_member(its_c_member),
        kind(its_kind),
        elements(its_elements),
        shape(its_shape),
        help(its_help),
        file(its_file),
        traits(its_traits) {}

  /// Whether the rows of a table are those of the members of both structs, each once.
  template <std::size_t kCount>
  static constexpr bool are_all_members(const std::array<OperationTensor, kCount>& rows) {
    for (std::size_t i = 0; i < kCount; ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (rows[i].member == rows[j].member || rows[i].c_member == rows[j].c_member) return false;
      }
    }
    return sizeof(Struct) == kCount * sizeof(View) && sizeof(CStruct) == sizeof(std::size_t) + kCount * sizeof(CTensor);
  }
};

/// Returns the index of the row that describes `member`. `member` must have a row.
template <class Rows, typename Member>
constexpr std::size_t row_number(const Rows& rows, Member member) {
  std::size_t n = 0;
  while (rows[n].member != member) ++n;
  return n;
}

/// The row of a gradient, which has the kind, the elements and the shape of the input `of`.
template <class Gradient, class Rows, typename Of>
constexpr Gradient gradient_row(const Rows& inputs, const char* name, typename Gradient::Member member,
                                typename Gradient::CMember c_member, Of of, std::string_view file = {}) {
  const auto& input = inputs[row_number(inputs, of)];
  Gradient row(name, member, c_member, input.kind, input.elements, input.shape, {}, {.name = file});
  row.gradient_of = of;
  return row;
}

/// A value for each row of a table of tensors, found by the row's number or by its member.
template <typename T, const auto& kRows>
class PerTensor {
 public:
  using Member = decltype(kRows.front().member);

  T& operator[](std::size_t row) { return values_[row]; }
  const T& operator[](std::size_t row) const { return values_[row]; }
  T& operator[](Member member) { return values_[row_number(kRows, member)]; }
  const T& operator[](Member member) const { return values_[row_number(kRows, member)]; }

 private:
  std::array<T, kRows.size()> values_{};
};

/// The element type that outputs of `elements` are made in.
inline DType output_dtype(Elements elements, DType q) {
  if (elements == Elements::of_q || q == DType::f64) return q;
  if (elements == Elements::f64_or_f32) return DType::f64;
  return DType::f32;
}

/// Whether the dimensions of an operation's arrays are in the order of a layout.
template <class Rows>
constexpr bool has_layout(const Rows& rows) {
  return std::any_of(rows.begin(), rows.end(), [](const auto& row) { return row.kind == TensorKind::heads; });
}

}  // namespace headgate
