// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "library/core/tensor_rows.hpp"
#include "models/io/npy.hpp"

namespace headgate::attend {

/// Returns the array in another dtype. Elements are converted in memory order; the strides stay the same.
io::Array converted(const io::Array& from, DType dtype);

/// Reads input files in the dtypes that the computation requires.
class Reader {
 public:
  /// Reads q. Arrays with the dtype of q are converted to `dtype`; if it is empty, they are not converted.
  Reader(const std::string& q_path, std::optional<DType> dtype);

  io::Array q();

  /// Reads the array of a table row; returns an absent array if the path is empty.
  template <class Row>
  io::Array read(const Row& row, const std::string& path) const {
    return read(row.elements, row.file.or_f32, path);
  }

 private:
  io::Array read(Elements elements, bool or_f32, const std::string& path) const;
  io::Array like_q(const std::string& path, io::Array array) const;
  io::Array like_q_or_f32(const std::string& path) const;

  const std::string& q_path_;
  bool converts_;
  io::Array q_;
  DType q_dtype_, compute_;
};

}  // namespace headgate::attend
