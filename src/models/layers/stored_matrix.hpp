// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "library/core/view.hpp"
#include "models/io/gguf_formats.hpp"

namespace headgate::layers {

/// Views rows of a tensor in a mapped file. Rows are stored in blocks of the tensor's format; each row consists of
/// whole blocks, without gaps.
struct StoredRows {
  const io::GgufFormat* format = nullptr;  ///< the tensor's format; is_multiplied() must support it
  const std::uint8_t* data = nullptr;      ///< first row of the tensor, at any alignment
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  const std::int64_t* order = nullptr;  ///< tensor row of each row of the view; null: row r is tensor row r · step
  std::int64_t step = 1;
  const std::uint8_t* scales = nullptr;  ///< scales of row 0, one byte per block; null if the blocks contain the scales

  std::size_t row_bytes() const { return blocks() * format->bytes; }
  const std::uint8_t* row(std::int64_t r) const { return data + place(r) * row_bytes(); }
  const std::uint8_t* scales_of(std::int64_t r) const {
    return scales == nullptr ? nullptr : scales + place(r) * blocks();
  }
  /// Returns the number of bytes to read for a row, including its scales.
  std::size_t row_bytes_read() const { return row_bytes() + (scales == nullptr ? 0 : blocks()); }
  /// Returns a view of `count` rows from row `first` on.
  StoredRows range(std::int64_t first, std::int64_t count) const {
    StoredRows out = *this;
    out.rows = count;
    if (order != nullptr) {
      out.order += first;
    } else {
      out.data = row(first);
      out.scales = scales_of(first);
    }
    return out;
  }

 private:
  std::size_t blocks() const { return static_cast<std::size_t>(columns / format->numbers); }
  std::size_t place(std::int64_t r) const { return static_cast<std::size_t>(order == nullptr ? r * step : order[r]); }
};

/// Views a matrix (O,C) that is stored in several tensors, its parts. Its rows are the rows of the first part, then
/// those of the second, and so on. Parts may have different formats.
struct StoredMatrix {
  std::vector<StoredRows> parts;
  const std::int64_t* column_order = nullptr;  ///< column of the parts for each matrix column; null: the same column

  std::int64_t rows() const {
    std::int64_t count = 0;
    for (const StoredRows& part : parts) count += part.rows;
    return count;
  }
  std::int64_t columns() const { return parts.empty() ? 0 : parts.front().columns; }
  std::size_t bytes() const {
    std::size_t count = 0;
    for (const StoredRows& part : parts) count += static_cast<std::size_t>(part.rows) * part.row_bytes_read();
    return count;
  }
  /// Calls visit(part, first, begin, end) for each part that overlaps rows [from, to) of the matrix. Rows [begin, end)
  /// of the part are the matrix rows that begin at row `first`.
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

/// Element type that stands for blocks of a file: MatrixOf<StoredBlocks> is StoredMatrix.
struct StoredBlocks {};

template <typename M>
std::int64_t row_count(const View<M, 2>& matrix) {
  return matrix.shape[0];
}
inline std::int64_t row_count(const StoredMatrix& matrix) { return matrix.rows(); }

/// Returns a view of `count` rows of a matrix from row `first` on.
template <typename M>
View<M, 2> rows_of(const View<M, 2>& matrix, std::int64_t first, std::int64_t count) {
  return matrix.range(0, first, count);
}
inline StoredMatrix rows_of(const StoredMatrix& matrix, std::int64_t first, std::int64_t count) {
  StoredMatrix out{{}, matrix.column_order};
  matrix.each_part(first, first + count,
                   [&](const StoredRows& part, std::int64_t /*first*/, std::int64_t begin, std::int64_t end) {
                     out.parts.push_back(part.range(begin, end - begin));
                   });
  return out;
}

/// Type of a matrix with elements M: StoredMatrix if M is StoredBlocks, otherwise View.
template <typename M>
using MatrixOf = std::conditional_t<std::is_same_v<std::remove_const_t<M>, StoredBlocks>, StoredMatrix, View<M, 2>>;

}  // namespace headgate::layers
