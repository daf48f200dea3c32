// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/xray/ranks.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "models/layers/blas.hpp"

namespace headgate::xray {

namespace {

/// Computes x xᵀ, or xᵀ x if `transposed`.
Gram product_with_itself(View<const float, 2> x, bool transposed) {
  const std::int64_t rows = x.shape[0], columns = x.shape[1];
  std::vector<double> wide(static_cast<std::size_t>(rows * columns));
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) wide[static_cast<std::size_t>(i * columns + j)] = x(i, j);
  }
  const std::int64_t n = transposed ? columns : rows, inner = transposed ? rows : columns;
  Gram out{n, std::vector<double>(static_cast<std::size_t>(n * n))};
  layers::Blas()->dgemm(CblasRowMajor, transposed ? CblasTrans : CblasNoTrans, transposed ? CblasNoTrans : CblasTrans,
                        static_cast<blasint>(n), static_cast<blasint>(n), static_cast<blasint>(inner), 1.0, wide.data(),
                        static_cast<blasint>(columns), wide.data(), static_cast<blasint>(columns), 0.0,
                        out.values.data(), static_cast<blasint>(n));
  return out;
}

struct Eigen {
  std::vector<double> values;   // ascending
  std::vector<double> vectors;  // (n,n): vector i is row i
};

Eigen eigen_of(const Gram& gram, bool with_vectors) {
  const auto n = static_cast<blasint>(gram.n);
  Eigen out{std::vector<double>(static_cast<std::size_t>(n)), gram.values};
  std::vector<double> work(static_cast<std::size_t>(std::max<blasint>(1, 34 * n)));  // blocks of 32 columns, and 2 more
  const auto work_size = static_cast<blasint>(work.size());
  blasint info = 0;
  layers::Blas()->dsyev(with_vectors ? "V" : "N", "U", &n, out.vectors.data(), &n, out.values.data(), work.data(),
                        &work_size, &info);
  if (info != 0) std::fill(out.values.begin(), out.values.end(), std::numeric_limits<double>::quiet_NaN());
  return out;
}

/// Returns the root of an eigenvalue, which rounding may have made negative; NaN stays NaN.
double root_of(double eigenvalue) { return eigenvalue < 0.0 ? 0.0 : std::sqrt(eigenvalue); }

bool is_finite(const Gram& gram) {
  return std::all_of(gram.values.begin(), gram.values.end(), [](double x) { return std::isfinite(x); });
}

}  // namespace

Gram gram_of_rows(View<const float, 2> x) { return product_with_itself(x, /*transposed=*/false); }
Gram gram_of_columns(View<const float, 2> x) { return product_with_itself(x, /*transposed=*/true); }

std::vector<double> singular_values(const Gram& a, const Gram& b) {
  assert(a.n == b.n);
  const std::int64_t n = a.n;
  if (!is_finite(a) || !is_finite(b)) {
    return std::vector<double>(static_cast<std::size_t>(n), std::numeric_limits<double>::quiet_NaN());
  }
  // Uses aᵀa = sᵀs for s = Λ^½ U. The singular values of a bᵀ are then those of s bᵀ: the roots of the eigenvalues of s
  // (bᵀb) sᵀ.
  Eigen of_a = eigen_of(a, true);
  for (std::int64_t i = 0; i < n; ++i) {
    const double root = root_of(of_a.values[static_cast<std::size_t>(i)]);
    for (std::int64_t j = 0; j < n; ++j) of_a.vectors[static_cast<std::size_t>(i * n + j)] *= root;
  }
  const auto size = static_cast<blasint>(n);
  std::vector<double> half(static_cast<std::size_t>(n * n));
  Gram whole{n, std::vector<double>(static_cast<std::size_t>(n * n))};
  const layers::Blas blas;
  blas->dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, size, size, size, 1.0, of_a.vectors.data(), size,
              b.values.data(), size, 0.0, half.data(), size);
  blas->dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, size, size, size, 1.0, half.data(), size, of_a.vectors.data(),
              size, 0.0, whole.values.data(), size);
  std::vector<double> out = eigen_of(whole, false).values;
  std::reverse(out.begin(), out.end());
  std::transform(out.begin(), out.end(), out.begin(), root_of);
  return out;
}

double effective_rank(const std::vector<double>& singular_values) {
  double sum = 0.0;
  for (const double value : singular_values) sum += value;
  if (std::isnan(sum)) return sum;
  double entropy = 0.0;
  for (const double value : singular_values) {
    const double share = value / sum;
    if (share > 0.0) entropy -= share * std::log(share);
  }
  return sum > 0.0 ? std::exp(entropy) : 0.0;
}

}  // namespace headgate::xray
