// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace headgate {

/// Returns the strides, in elements, of a dense row-major array of `shape`.
template <std::size_t kRank>
constexpr std::array<std::int64_t, kRank> dense_strides(const std::array<std::int64_t, kRank>& shape) {
  std::array<std::int64_t, kRank> strides{};
  std::int64_t step = 1;
  for (std::size_t i = kRank; i-- > 0;) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

/// A non-owning array of rank kRank. Element (i0, i1, …) is data[i0·strides[0] + i1·strides[1] + …]. A view with null
/// data stands for an absent array. Debug builds check every index.
template <typename T, std::size_t kRank>
struct View {
  static_assert(kRank >= 1);
  using Sizes = std::array<std::int64_t, kRank>;

  T* data = nullptr;
  Sizes shape{};
  Sizes strides{};

  constexpr View() = default;
  constexpr View(T* data_in, const Sizes& shape_in) : View(data_in, shape_in, dense_strides(shape_in)) {}
  constexpr View(T* data_in, const Sizes& shape_in, const Sizes& strides_in)
      : data(data_in), shape(shape_in), strides(strides_in) {}

  /// Converts a mutable view to a read-only view.
  constexpr operator View<const T, kRank>() const  // NOLINT(google-explicit-constructor)
      requires(!std::is_const_v<T>) {
    return {data, shape, strides};
  }

  constexpr bool present() const { return data != nullptr; }

  /// Returns the number of elements.
  constexpr std::int64_t count() const {
    std::int64_t product = 1;
    for (const std::int64_t size : shape) product *= size;
    return product;
  }

  /// Returns whether the elements are contiguous in row-major order.
  constexpr bool dense() const {
    const Sizes expected = dense_strides(shape);
    for (std::size_t i = 0; i < kRank; ++i) {
      if (shape[i] != 1 && strides[i] != expected[i]) return false;
    }
    return true;
  }

  template <typename... Index>
  constexpr T& operator()(Index... index) const {
    static_assert(sizeof...(Index) == kRank, "one index for each dimension");
    return *at(index...);
  }

  /// Returns a pointer to the element with these indices. Omitted trailing indices are 0.
  template <typename... Index>
  constexpr T* at(Index... index) const {
    static_assert(sizeof...(Index) <= kRank);
    T* element = data;
    std::size_t dimension = 0;
    ((element += step(dimension++, static_cast<std::int64_t>(index))), ...);
    return element;
  }

  /// Returns the subarray at index i of the first dimension. Its rank is kRank − 1.
  constexpr View<T, kRank - 1> operator[](std::int64_t i) const requires(kRank > 1) { return sub(i); }

  /// Returns the subarray at the given indices of the first dimensions. The subarray has the remaining dimensions.
  template <typename... Index>
  constexpr View<T, kRank - sizeof...(Index)> sub(Index... index) const {
    constexpr std::size_t kGone = sizeof...(Index);
    View<T, kRank - kGone> inner;
    inner.data = at(index...);
    for (std::size_t n = kGone; n < kRank; ++n) {
      inner.shape[n - kGone] = shape[n];
      inner.strides[n - kGone] = strides[n];
    }
    return inner;
  }

  /// Returns the part of the array that has the elements [first, first + size) of one dimension.
  constexpr View range(std::size_t dimension, std::int64_t first, std::int64_t size) const {
    assert(dimension < kRank && first >= 0 && size >= 0 && first + size <= shape[dimension]);
    View part = *this;
    if (data != nullptr) part.data = data + first * strides[dimension];
    part.shape[dimension] = size;
    return part;
  }

  /// Splits a dimension in two: shape (…, outer·inner, …) becomes (…, outer, inner, …).
  constexpr View<T, kRank + 1> split(std::size_t dimension, std::int64_t outer, std::int64_t inner) const {
    assert(dimension < kRank && shape[dimension] == outer * inner);
    View<T, kRank + 1> result;
    result.data = data;
    for (std::size_t n = 0; n < kRank; ++n) {
      const std::size_t to = n > dimension ? n + 1 : n;
      result.shape[to] = shape[n];
      result.strides[to] = strides[n];
    }
    result.shape[dimension] = outer;
    result.strides[dimension] = inner * strides[dimension];
    result.shape[dimension + 1] = inner;
    result.strides[dimension + 1] = strides[dimension];
    return result;
  }

  /// Splits the last dimension in two: shape (…, outer·inner) becomes (…, outer, inner).
  constexpr View<T, kRank + 1> split_last(std::int64_t outer, std::int64_t inner) const {
    return split(kRank - 1, outer, inner);
  }

  /// Returns all elements of a dense array as a vector.
  constexpr View<T, 1> flat() const {
    assert(dense());
    return {data, {count()}};
  }

 private:
  constexpr std::int64_t step(std::size_t dimension, std::int64_t index) const {
    assert(index >= 0 && index < shape[dimension]);
    return index * strides[dimension];
  }
};

/// Parameter type for read-only views. T is not deduced from the argument, so that callers may pass a mutable view.
template <typename T, std::size_t kRank>
using ConstView = std::type_identity_t<View<const T, kRank>>;

/// Returns a dense array of shape `sizes` over the elements of a std::vector.
template <typename T, typename... Sizes>
View<T, sizeof...(Sizes)> view_of(std::vector<T>& elements, Sizes... sizes) {
  const View<T, sizeof...(Sizes)> view(elements.data(), {static_cast<std::int64_t>(sizes)...});
  assert(view.count() == static_cast<std::int64_t>(elements.size()));
  return view;
}
template <typename T, typename... Sizes>
View<const T, sizeof...(Sizes)> view_of(const std::vector<T>& elements, Sizes... sizes) {
  const View<const T, sizeof...(Sizes)> view(elements.data(), {static_cast<std::int64_t>(sizes)...});
  assert(view.count() == static_cast<std::int64_t>(elements.size()));
  return view;
}

}  // namespace headgate
