// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "models/decoder/parameters.hpp"
#include "models/families/family.hpp"

// Locates parameters in files, which may use other names and other orders of rows, and may store several parameters in
// one tensor.

namespace headgate::models {

/// Selects rows of a tensor in a file. The tensor is read as a matrix with as many columns as the parameter. A
/// parameter of rank 1 has one column.
struct TensorPiece {
  std::string tensor;
  std::vector<std::int64_t> shape;  ///< shape that the tensor must have
  std::vector<std::int64_t>
      rows;                ///< selected rows, in the parameter's order; if empty, begin, count and step select rows
  std::int64_t begin = 0;  ///< index of the first selected row
  std::int64_t count = 0;  ///< number of selected rows; 0: all rows
  std::int64_t step = 1;   ///< distance between selected rows
};

/// Selects how a file stores a parameter x: as x (plain), or as −exp(x) (negative_exponential).
enum class StoredForm { plain, negative_exponential };

/// Locates a parameter in a file: the concatenated rows of `pieces` are the parameter's rows.
struct TensorLocation {
  std::vector<TensorPiece> pieces;
  /// Order of columns: column c of the parameter is column columns[c] of the tensor. If empty, the order is the same.
  std::vector<std::int64_t> columns;
  StoredForm form = StoredForm::plain;
  bool transposed = false;  ///< true if the tensor swaps the parameter's last two dimensions

  /// Returns whether the file has the parameter as a tensor of its own, with unchanged rows, columns and values.
  bool is_whole_tensor() const {
    return pieces.size() == 1 && pieces.front().rows.empty() && pieces.front().count == 0 && columns.empty() &&
           form == StoredForm::plain && !transposed;
  }
};

/// Function that returns the shape of the file's tensor with a given name, or null if there is none.
using ShapeOf = std::function<const std::vector<std::int64_t>*(const std::string&)>;

/// Returns the location of a parameter that the file stores unchanged as the tensor `name`.
TensorLocation whole_tensor(const Parameter& parameter, const std::string& name);

/// Locates a parameter in a model's directory, by the names of the family file.family.
TensorLocation stored_in_directory(const Parameter& parameter, const FileConfig& file, const ShapeOf& shape_of);

/// Splits the name "model.layers.N.REST" into `layer` N and `rest` REST. Returns false for tensors outside the layers.
bool split_layer_name(std::string_view name, std::string_view& layer, std::string_view& rest);

/// Returns whether a tensor belongs to a multi-token-prediction (MTP) layer. If the model has 45 layers, "PREFIX45.…"
/// is such a tensor.
bool is_of_further_layer(std::string_view name, std::string_view prefix, const FileConfig& file);

/// Returns the row indices begin, …, begin + count − 1.
std::vector<std::int64_t> row_range(std::int64_t begin, std::int64_t count);

/// Locates the gate and up matrices of `count` experts, with `rows` rows each, in the file's tensor `tensor`.
/// - Rows of an expert in the file: gate 0, up 0, gate 1, up 1, …
/// - Rows of an expert in the parameter: all rows of gate, then all rows of up.
TensorLocation alternating_experts(std::int64_t count, std::int64_t rows, const std::string& tensor,
                                   const std::vector<std::int64_t>& shape);

/// Locates the gate and up matrices of all experts, which files store as two tensors (E,I,C). The parameter stores, for
/// each expert, all rows of gate, then all rows of up.
TensorLocation interleaved_experts(const DecoderConfig& config, const std::string& gate, const std::string& up);

}  // namespace headgate::models
