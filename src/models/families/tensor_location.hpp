// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "models/decoder/parameters.hpp"
#include "models/families/family.hpp"

// Locates parameters in files, whose tensors may have other names, other orders of rows, and several tensors in one.

namespace headgate::models {

/// Some rows of a tensor of a file. A row is what the last dimension counts; a parameter of rank 1 has rows of one
/// number.
struct TensorPiece {
  std::string tensor;
  std::vector<std::int64_t> shape;  ///< shape that the tensor must have
  std::vector<std::int64_t> rows;   ///< of the tensor, in the parameter's order; empty: as `begin` and `count` say
  std::int64_t begin = 0;           ///< first of `count` rows of the tensor
  std::int64_t count = 0;           ///< 0: all rows
  std::int64_t step = 1;            ///< from one of the `count` rows to the next
};

/// How a file stores a parameter's numbers: as they are, or as −exp(x).
enum class StoredForm { plain, negative_exponential };

/// Locates a parameter, whose rows are those of the pieces, one piece after the other.
struct TensorLocation {
  std::vector<TensorPiece> pieces;
  std::vector<std::int64_t> columns;  ///< column c of the parameter is column columns[c] of the tensor; empty: c
  StoredForm form = StoredForm::plain;
  bool transposed = false;  ///< the last two dimensions of the tensor are those of the parameter in the other order

  /// Returns whether the parameter is one tensor as the file has it.
  bool is_whole_tensor() const {
    return pieces.size() == 1 && pieces.front().rows.empty() && pieces.front().count == 0 && columns.empty() &&
           form == StoredForm::plain && !transposed;
  }
};

/// Returns the shape of a file's tensor, null if it has none of the name.
using ShapeOf = std::function<const std::vector<std::int64_t>*(const std::string&)>;

/// Returns a location of one tensor that is the parameter, of its shape.
TensorLocation whole_tensor(const Parameter& parameter, const std::string& name);

/// Locates a parameter in a directory of the config's family.
TensorLocation stored_in_directory(const Parameter& parameter, const FileConfig& file, const ShapeOf& shape_of);

/// Splits "model.layers.N.REST"; false for the name of a tensor outside the layers.
bool split_layer_name(std::string_view name, std::string_view& layer, std::string_view& rest);

/// Returns whether a tensor belongs to one of the file's further layers: "PREFIX45.…" behind 45 of the model's own.
bool is_of_further_layer(std::string_view name, std::string_view prefix, const FileConfig& file);

/// Returns begin, …, begin + count − 1.
std::vector<std::int64_t> row_range(std::int64_t begin, std::int64_t count);

/// Locates `rows` of each of `count` experts that hold gate and up as rows in turn: gate's first, then up's.
TensorLocation alternating_experts(std::int64_t count, std::int64_t rows, const std::string& tensor,
                                   const std::vector<std::int64_t>& shape);

/// Locates the fused experts: rows of gate and up of each expert in turn, from one tensor each (E,I,C).
TensorLocation interleaved_experts(const DecoderConfig& config, const std::string& gate, const std::string& up);

}  // namespace headgate::models
