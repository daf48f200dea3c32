// SPDX-License-Identifier: Apache-2.0
#include "python/headgate/array_views.hpp"

#include <algorithm>
#include <utility>

#include "headgate/error.hpp"
#include "library/core/format.hpp"

namespace headgate::python {
namespace {

/// Minimum and maximum number of dimensions of an array.
struct Ranks {
  std::size_t low, high;
};

Ranks ranks_of(ArrayKind kind) {
  switch (kind) {
    case ArrayKind::heads: return {3, 4};
    case ArrayKind::rows: return {2, 3};
    case ArrayKind::rows_or_heads: return {1, 3};
    case ArrayKind::scores: return {2, 4};
    case ArrayKind::query_numbers: return {1, 3};
    case ArrayKind::vector: return {1, 1};
    case ArrayKind::table: return {2, 2};
    case ArrayKind::any: return {0, 4};
    case ArrayKind::channels: return {2, 3};
    case ArrayKind::channel_states: return {3, 3};
    case ArrayKind::head_numbers:
    case ArrayKind::head_features: return {1, 2};
    case ArrayKind::pages:
    case ArrayKind::states: break;
  }
  return {4, 4};
}

/// Returns a 4-D view of `array`. Missing leading dimensions get size 1 and stride 0.
template <typename View>
View aligned(const StridedArray& array) {
  View view;
  view.data = array.data;
  view.dtype = array.dtype;
  view.shape = {1, 1, 1, 1};
  view.strides = {0, 0, 0, 0};
  const std::size_t lead = 4 - array.rank;
  for (std::size_t d = 0; d < array.rank; ++d) {
    view.shape[lead + d] = array.shape[d];
    view.strides[lead + d] = array.strides[d];
  }
  return view;
}

template <typename View>
void swap_dimensions(View& view, std::size_t one, std::size_t other) {
  std::swap(view.shape[one], view.shape[other]);
  std::swap(view.strides[one], view.strides[other]);
}

/// Moves the leading dimension of the view, which has size 1, to the end. The other dimensions move forward by one.
template <typename View>
void shift_left(View& view) {
  std::rotate(view.shape.begin(), view.shape.begin() + 1, view.shape.end());
  std::rotate(view.strides.begin(), view.strides.begin() + 1, view.strides.end());
}

}  // namespace

bool has_layout(ArrayKind kind) { return kind == ArrayKind::heads || kind == ArrayKind::pages; }

bool has_no_heads(ArrayKind kind) { return kind == ArrayKind::channels || kind == ArrayKind::channel_states; }

void refuse_rank(const char* function, const char* name, std::span<const std::int64_t> sizes, ArrayKind kind,
                 Layout layout) {
  throw Error(
      formatted("{}: {} has shape {} but must be {}", function, name, sizes_text(sizes), letters_of(kind, layout)));
}

template <typename View>
View view_of_array(const char* function, const char* name, const StridedArray& array, ArrayKind kind, Layout layout) {
  const auto [low, high] = ranks_of(kind);
  if (array.rank < low || array.rank > high) {
    refuse_rank(function, name, {array.shape.data(), array.rank}, kind, layout);
  }
  View view = aligned<View>(array);
  const bool is_query_number = kind == ArrayKind::query_numbers && array.rank > 1;
  if (kind == ArrayKind::rows || kind == ArrayKind::rows_or_heads || is_query_number) shift_left(view);
  if (kind == ArrayKind::rows_or_heads && array.rank < 3) shift_left(view);
  const bool rows_first = has_layout(kind) && layout == Layout::bthd;
  if (rows_first || kind == ArrayKind::head_features) swap_dimensions(view, 1, 2);
  if (has_no_heads(kind)) swap_dimensions(view, 0, 1);
  return view;
}

template ConstTensorView view_of_array(const char*, const char*, const StridedArray&, ArrayKind, Layout);
template TensorView view_of_array(const char*, const char*, const StridedArray&, ArrayKind, Layout);

std::string sizes_text(std::span<const std::int64_t> sizes) {
  std::string text;
  for (const std::int64_t size : sizes) text += formatted("{}{}", text.empty() ? "" : ",", size);
  return formatted("({})", text);
}

std::vector<std::int64_t> sizes_of(const Shape& shape, ArrayKind kind, Layout layout, bool has_batch) {
  std::vector<std::int64_t> sizes(shape.begin(), shape.end());
  if (has_layout(kind) && layout == Layout::bthd) std::swap(sizes[1], sizes[2]);
  if (kind == ArrayKind::rows) sizes.pop_back();
  if (kind == ArrayKind::rows_or_heads) sizes.resize(2);
  if (has_no_heads(kind)) sizes.erase(sizes.begin() + 1);
  const bool of_sequences = kind == ArrayKind::states || kind == ArrayKind::channel_states;
  if (!has_batch && !of_sequences) sizes.erase(sizes.begin());
  return sizes;
}

std::size_t rank_with_batch(ArrayKind kind) { return ranks_of(kind).high; }

const char* letters_of(ArrayKind kind, Layout layout) {
  const bool heads_first = layout == Layout::bhtd;
  switch (kind) {
    case ArrayKind::heads: return heads_first ? "(B,H,T,D) or (H,T,D)" : "(B,T,H,D) or (T,H,D)";
    case ArrayKind::rows: return "(B,H,T) or (H,T)";
    case ArrayKind::rows_or_heads: return "(B,H,T), (N,H) or (H)";
    case ArrayKind::scores: return "(B,H,T,X), (H,T,X) or (T,X), X = S, or K of key_indices";
    case ArrayKind::query_numbers: return "(H), (B,H,T) or (H,T)";
    case ArrayKind::vector: return "of one dimension";
    case ArrayKind::table: return "of two dimensions";
    case ArrayKind::any: return "of at most four dimensions";
    case ArrayKind::states: return "(N,H,D,Dv)";
    case ArrayKind::channels: return "(B,T,C) or (T,C)";
    case ArrayKind::channel_states: return "(N,K-1,C)";
    case ArrayKind::head_numbers: return "(H) or (N,H)";
    case ArrayKind::head_features: return "(D) or (H,D)";
    case ArrayKind::pages: break;
  }
  return heads_first ? "(P,H,page,D)" : "(P,page,H,D)";
}

}  // namespace headgate::python
