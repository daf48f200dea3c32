// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "library/core/view.hpp"
#include "models/io/gguf_formats.hpp"

namespace headgate::layers {

/// Views rows of a tensor in a mapped file, in blocks of the tensor's format. Rows are whole blocks, without gaps.
struct StoredRows {
  const io::GgufFormat* format = nullptr;  ///< one that is_multiplied()
  const std::uint8_t* data = nullptr;      ///< the tensor's first row, at any alignment
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  const std::int64_t* order = nullptr;  ///< row r is row order[r] of the tensor; null: row r

  std::size_t row_bytes() const { return static_cast<std::size_t>(columns / format->numbers) * format->bytes; }
  const std::uint8_t* row(std::int64_t r) const {
    return data + static_cast<std::size_t>(order == nullptr ? r : order[r]) * row_bytes();
  }
};

/// Views a matrix (O,C) whose rows are those of its parts, one part after the other. One product reads all parts, whose
/// formats may differ.
struct StoredMatrix {
  std::vector<StoredRows> parts;
  const std::int64_t* column_order = nullptr;  ///< column column_order[c] of the parts is column c; null: column c

  std::int64_t rows() const {
    std::int64_t count = 0;
    for (const StoredRows& part : parts) count += part.rows;
    return count;
  }
  std::int64_t columns() const { return parts.empty() ? 0 : parts.front().columns; }
  std::size_t bytes() const {
    std::size_t count = 0;
    for (const StoredRows& part : parts) count += static_cast<std::size_t>(part.rows) * part.row_bytes();
    return count;
  }
  /// Calls visit(part, first, begin, end) for the rows [begin, end) of each part among the rows [from, to) of the
  /// matrix; row `begin` of the part is row `first` of the matrix.
  template <class Visit>
  void each_part(std::int64_t from, std::int64_t to, const Visit& visit) const {
    std::int64_t first = 0;
    for (const StoredRows& part : parts) {
      const std::int64_t begin = from > first ? from - first : 0, end = to - first < part.rows ? to - first : part.rows;
      if (begin < end) visit(part, first + begin, begin, end);
      first += part.rows;
    }
  }
};

/// Stands for the element type of matrices in the blocks of a file.
struct StoredBlocks {};

template <typename M>
std::int64_t row_count(const View<M, 2>& matrix) {
  return matrix.shape[0];
}
inline std::int64_t row_count(const StoredMatrix& matrix) { return matrix.rows(); }

/// Views `count` rows of a matrix, from row `first` on.
template <typename M>
View<M, 2> rows_of(const View<M, 2>& matrix, std::int64_t first, std::int64_t count) {
  return matrix.range(0, first, count);
}
inline StoredMatrix rows_of(const StoredMatrix& matrix, std::int64_t first, std::int64_t count) {
  StoredMatrix out{{}, matrix.column_order};
  matrix.each_part(first, first + count,
                   [&](StoredRows part, std::int64_t /*first*/, std::int64_t begin, std::int64_t end) {
                     if (part.order == nullptr) {
                       part.data = part.row(begin);
                     } else {
                       part.order += begin;
                     }
                     part.rows = end - begin;
                     out.parts.push_back(part);
                   });
  return out;
}

/// The type of a matrix whose elements are of type M.
template <typename M>
using MatrixOf = std::conditional_t<std::is_same_v<std::remove_const_t<M>, StoredBlocks>, StoredMatrix, View<M, 2>>;

}  // namespace headgate::layers
