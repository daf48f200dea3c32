// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include "headgate/tensor.hpp"

// Row types for tables of an operation's tensors, one row per tensor: inputs, outputs, saved tensors, incoming
// gradients and gradients. The C API, the command line, the Python package and the PyTorch operator iterate over these
// tables.

namespace headgate {

/// The dimensions of a user's array. The library views each array with rank 4, (B,H,T,X).
enum class TensorKind {
  heads,          ///< (B,H,T,X), or these dimensions in the order that the call's layout option selects
  rows,           ///< a number per query and head: (B,H,T)
  rows_or_heads,  ///< a number per query and head: (B,H,T); or per sequence and head: (N,H), viewed as (N,H,1,1)
  scores,         ///< a number per query and key: (B,H,T,S); inputs may omit leading dimensions
  vector,         ///< (N)
  query_numbers,  ///< a number per head: (H), viewed as (1,1,1,H); or per query: (1|B,H,T), viewed as (1|B,H,T,1)
  head_numbers,   ///< a number per head: (H), viewed as (1,1,1,H); or per sequence and head: (N,H), viewed as (1,1,N,H)
  table,          ///< (B,M)
  state,          ///< (N,H,D,Dv): a matrix for each head of a sequence
  channels,       ///< (B,T,X), viewed as (B,1,T,X): rows without heads
  channel_state,  ///< (N,M,X), viewed as (N,1,M,X): rows before a sequence's first token
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
  f64_or_f32,  ///< f32 or f64; if the caller provides no tensor, the command line and the Python package allocate f64
  boolean,
  integers,
  i32
};

/// Returns the dtypes that an input may have, in the names of NumPy and PyTorch, for example "float32 or float64".
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

/// Returns the dtype that the command line and the Python package allocate for an output, in the names of NumPy and
/// PyTorch.
constexpr std::string_view output_types_of(Elements elements) {
  if (elements == Elements::f64_or_f32) return "float64";
  return elements == Elements::f32_or_f64 ? "float64 where q is, else float32" : types_of(elements);
}

/// The representation of a tensor on the command line.
struct TensorFile {
  std::string_view option = {};  ///< command-line option ("--q"); empty: none
  std::string_view name = {};    ///< name of the option's value in --help; for gradients, the name of the file
  bool or_f32 = false;           ///< true if a file may have another dtype than q; it is then read as f32
};

/// Properties that only some tensors have. `Inputs` is the operation's struct of inputs.
template <class Inputs>
struct TensorTraits {
  bool required = false;
  bool in_pages = false;      ///< true if calls with a block table pass this tensor as pages
  bool forward_only = false;  ///< true if the backward pass refuses the tensor
  /// Input that must be present if this tensor is present. Null if there is none.
  ConstTensorView Inputs::*needs = nullptr;
  /// True if an older version of the C struct ended just before this member.
  bool older_c_ends_here = false;
};

/// A tensor of an operation: a member of a struct of views and the corresponding member of a C struct.
template <class Inputs, class StructOf, typename View, class CStruct, typename CTensor>
struct OperationTensor {
  using Struct = StructOf;
  using Member = View Struct::*;
  using CMember = CTensor CStruct::*;

  const char* name;  ///< name of the members in the C++ and C structs, and of the Python argument
  Member member;
  CMember c_member;
  TensorKind kind;
  Elements elements;
  std::string_view shape;  ///< shape of a user's array, in the letters of the operation's header
  std::string_view help;   ///< description that begins with a lower-case letter
  TensorFile file;
  TensorTraits<Inputs> traits;
  ConstTensorView Inputs::*gradient_of = nullptr;

  // Rows are written as constructor calls, because clang-format puts the arguments of a call on few lines.
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

  /// Returns whether the rows cover all members of both structs, each exactly once.
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

/// Returns the row for the gradient of an input, `of`. Copies kind, elements and shape from the input's row.
template <class Gradient, class Rows, typename Of>
constexpr Gradient gradient_row(const Rows& inputs, const char* name, typename Gradient::Member member,
                                typename Gradient::CMember c_member, Of of, std::string_view file = {}) {
  const auto& input = inputs[row_number(inputs, of)];
  Gradient row(name, member, c_member, input.kind, input.elements, input.shape, {}, {.name = file});
  row.gradient_of = of;
  return row;
}

/// An array with one value per tensor in a table. The index is a row number or a member pointer.
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

/// Returns the dtype that the command line and the Python package allocate for an output if q has dtype `q`.
inline DType output_dtype(Elements elements, DType q) {
  if (elements == Elements::of_q || q == DType::f64) return q;
  if (elements == Elements::f64_or_f32) return DType::f64;
  return DType::f32;
}

/// Returns whether any output of the table `rows` has elements. If none has, the call skips the kernel. This avoids a
/// loop over the sequences, which may be numerous even if all of them are empty.
template <class Rows, class Outputs>
bool writes_elements(const Rows& rows, const Outputs& outputs) {
  return std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return (outputs.*row.member).numel() > 0; });
}

/// Returns whether the operation has arrays of TensorKind::heads. A layout option selects the order of their
/// dimensions.
template <class Rows>
constexpr bool has_layout(const Rows& rows) {
  return std::any_of(rows.begin(), rows.end(), [](const auto& row) { return row.kind == TensorKind::heads; });
}

}  // namespace headgate
