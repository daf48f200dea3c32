// SPDX-License-Identifier: Apache-2.0
#include "models/layers/activation_rounding.hpp"

#include <algorithm>
#include <vector>

#include "models/layers/parallel.hpp"

namespace headgate::layers {
namespace {

template <typename T>
double largest_of(const T* row, std::int64_t count) {
  double largest = 0.0;
  for (std::int64_t c = 0; c < count; ++c) largest = std::max(largest, std::abs(static_cast<double>(row[c])));
  return largest;
}

}  // namespace

template <typename T>
void round_activations(View<T, 2> x, ActivationRounding rounding, const ExecutionContext& context,
                       bool begins_sequence) {
  if (rounding == ActivationRounding::none) return;
  constexpr std::int64_t kOperations = 8;  // cost of a division and a rounding, counted in elementwise operations
  const std::int64_t N = x.shape[0], C = x.shape[1];
  const std::int64_t kept = rounding == ActivationRounding::tensor_keep_first && begins_sequence ? 1 : 0;
  const Parts parts = parts_of(context, N, kOperations * C);
  std::vector<double> largest(static_cast<std::size_t>(N));
  for_parts(parts, [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) largest[static_cast<std::size_t>(n)] = largest_of(x.at(n), C);
  });
  if (spans_tokens(rounding) && N > kept) {
    std::fill(largest.begin() + kept, largest.end(), *std::max_element(largest.begin() + kept, largest.end()));
  }
  for_parts(parts, [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = std::max(begin, kept); n < end; ++n) {
      const double scale = int8_scale(largest[static_cast<std::size_t>(n)]);
      T* const row = x.at(n);
      for (std::int64_t c = 0; c < C; ++c) {
        row[c] = static_cast<T>(rounded_to_int8(static_cast<double>(row[c]), scale));
      }
    }
  });
}

template void round_activations(View<float, 2>, ActivationRounding, const ExecutionContext&, bool);
template void round_activations(View<double, 2>, ActivationRounding, const ExecutionContext&, bool);

}  // namespace headgate::layers
