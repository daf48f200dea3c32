// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/xray/ranks.hpp"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "headgate/runtime.hpp"
#include "models/layers/gemm.hpp"

namespace headgate::xray {

namespace {

using layers::Form;

/// Computes out = a b with matrices (n,n), on one thread.
void multiply(std::vector<double>& out, std::int64_t n, View<const double, 2> a, Form a_form, View<const double, 2> b,
              Form b_form) {
  layers::multiply(layers::Product<double>{{out.data(), {n, n}}, a, a_form, b, b_form, layers::Update::overwrite},
                   resolved({.threads = 1}));
}

/// Computes x xᵀ, or xᵀ x if `transposed`.
Gram product_with_itself(View<const float, 2> x, bool transposed) {
  const std::int64_t rows = x.shape[0], columns = x.shape[1];
  std::vector<double> wide(static_cast<std::size_t>(rows * columns));
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) wide[static_cast<std::size_t>(i * columns + j)] = x(i, j);
  }
  const std::int64_t n = transposed ? columns : rows;
  Gram out{n, std::vector<double>(static_cast<std::size_t>(n * n))};
  const View<const double, 2> view(wide.data(), {rows, columns});
  multiply(out.values, n, view, transposed ? Form::transposed : Form::stored, view,
           transposed ? Form::stored : Form::transposed);
  return out;
}

struct Spectrum {
  std::vector<double> values;   // ascending
  std::vector<double> vectors;  // (n,n); row i is the eigenvector of values[i]
};

Spectrum spectrum_of(const Gram& gram, bool with_vectors) {
  using Matrix = Eigen::Map<const Eigen::MatrixXd>;
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(
      Matrix(gram.values.data(), gram.n, gram.n), with_vectors ? Eigen::ComputeEigenvectors : Eigen::EigenvaluesOnly);
  const auto size = static_cast<std::size_t>(gram.n);
  if (solver.info() != Eigen::Success) {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    return {std::vector<double>(size, kNan), std::vector<double>(size * size, kNan)};
  }
  Spectrum out{std::vector<double>(solver.eigenvalues().begin(), solver.eigenvalues().end()), {}};
  if (with_vectors) out.vectors.assign(solver.eigenvectors().data(), solver.eigenvectors().data() + size * size);
  return out;
}

/// Returns the square root of an eigenvalue of a Gram matrix. Returns NaN for NaN.
/// Returns 0 for a negative eigenvalue, which only rounding can cause.
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
  // Computes the matrix s = Λ^½ U (n,n) from the eigendecomposition aᵀa = Uᵀ Λ U.
  // a bᵀ and s bᵀ have the same singular values, because sᵀs = aᵀa.
  // The squares of these singular values are the eigenvalues of (s bᵀ)(s bᵀ)ᵀ = s (bᵀb) sᵀ.
  Spectrum of_a = spectrum_of(a, true);
  for (std::int64_t i = 0; i < n; ++i) {
    const double root = root_of(of_a.values[static_cast<std::size_t>(i)]);
    for (std::int64_t j = 0; j < n; ++j) of_a.vectors[static_cast<std::size_t>(i * n + j)] *= root;
  }
  std::vector<double> half(static_cast<std::size_t>(n * n));
  Gram whole{n, std::vector<double>(static_cast<std::size_t>(n * n))};
  const auto square = [n](const std::vector<double>& values) { return View<const double, 2>(values.data(), {n, n}); };
  multiply(half, n, square(of_a.vectors), Form::stored, square(b.values), Form::transposed);  // bᵀ = b
  multiply(whole.values, n, square(half), Form::stored, square(of_a.vectors), Form::transposed);
  std::vector<double> out = spectrum_of(whole, false).values;
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
