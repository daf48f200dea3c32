// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "library/core/tensor_rows.hpp"
#include "models/io/npy.hpp"

namespace headgate::attend {

/// Returns a copy of the array in another dtype, with the same strides.
io::Array converted(const io::Array& from, DType dtype);

/// Reads input files and converts the arrays to the dtypes of the computation.
class Reader {
 public:
  /// Reads q. The reader converts q, and arrays that must have q's dtype, to `dtype`.
  /// If `dtype` is empty, these arrays must share one dtype.
  Reader(const std::string& q_path, std::optional<DType> dtype);

  io::Array q();

  /// Reads the file `path` as the tensor that `row` of a tensor table describes. Returns an absent array if `path` is
  /// empty.
  template <class Row>
  io::Array read(const Row& row, const std::string& path) const {
    return read(row.elements, row.file.or_f32, path);
  }

 private:
  io::Array read(Elements elements, bool or_f32, const std::string& path) const;
  io::Array like_q(const std::string& path, io::Array array) const;

  const std::string& q_path_;
  bool converts_;
  io::Array q_;
  DType q_dtype_, compute_;
};

}  // namespace headgate::attend
