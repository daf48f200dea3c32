// SPDX-License-Identifier: Apache-2.0
#include "verify/oracle/gated_norm.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "library/core/element.hpp"
#include "verify/oracle/oracle.hpp"
#include "verify/oracle/sums.hpp"

namespace headgate::reference {
namespace {

/// One element of a row. n is the normalised x, g the value of the gate function, and slope its derivative g′. g_abs
/// and slope_abs are the magnitudes (error bounds, see Forward in oracle.hpp) of g and slope.
struct Element {
  double n, weight, g, g_abs, slope, slope_abs;
};

struct Row {
  long double r = 0.0L;
  std::vector<Element> elements;
};

/// Returns 1/rms, or 0 if both the row and eps are 0. Uses long double, because the squares of f64 numbers can overflow
/// f64.
long double inverse_rms(const GatedNormInputs& in, double eps, std::int64_t b, std::int64_t h, std::int64_t i) {
  const std::int64_t D = in.x.shape[3];
  long double sum = 0.0L;
  for (std::int64_t d = 0; d < D; ++d) {
    const long double x = load(in.x, b, h, i, d);
    sum += x * x;
  }
  const long double mean = sum / static_cast<long double>(D) + static_cast<long double>(eps);
  return mean == 0.0L ? 0.0L : 1.0L / std::sqrt(mean);
}

Row row_of(const GatedNormInputs& in, const GatedNormOptions& options, std::int64_t b, std::int64_t h, std::int64_t i) {
  Row row;
  row.r = inverse_rms(in, options.eps, b, h, i);
  const GateFn fn = in.gate.present() ? options.gate_fn : GateFn::none;
  for (std::int64_t d = 0; d < in.x.shape[3]; ++d) {
    const double n = static_cast<double>(load(in.x, b, h, i, d) * row.r);
    const double weight = in.weight.present() ? load(in.weight, 0, in.weight.shape[1] == 1 ? 0 : h, 0, d) : 1.0;
    if (fn == GateFn::none) {
      row.elements.push_back({n, weight, 1.0, 1.0, 0.0, 0.0});
      continue;
    }
    const double z = load(in.gate, b, h, i, d);
    const GateValue g = gate_value(fn, z);
    row.elements.push_back(
        {n, weight, g.value, gate_magnitude(fn, z, in.x.dtype), g.slope, gate_slope_magnitude(fn, z, in.x.dtype)});
  }
  return row;
}

template <class Visit>
void each_row(const Shape& shape, const Visit& visit) {
  for (std::int64_t b = 0; b < shape[0]; ++b) {
    for (std::int64_t h = 0; h < shape[1]; ++h) {
      for (std::int64_t i = 0; i < shape[2]; ++i) visit(b, h, i);
    }
  }
}

}  // namespace

GatedNormForward gated_norm(const GatedNormInputs& in, const GatedNormOptions& options) {
  GatedNormForward out;
  each_row(in.x.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    for (const Element& e : row_of(in, options, b, h, i).elements) {
      out.y.push_back(e.n * e.weight * e.g);
      out.magnitude.push_back(std::abs(e.n * e.weight) * e.g_abs);
    }
  });
  return out;
}

GatedNormBackward gated_norm_backward(const GatedNormInputs& in, const ConstTensorView& dy,
                                      const GatedNormOptions& options) {
  GatedNormBackward out;
  const std::int64_t D = in.x.shape[3];
  const std::size_t weights = in.weight.present() ? static_cast<std::size_t>(in.weight.numel()) : 0;
  std::vector<CompensatedSum> dweight(weights);
  out.magnitude.dweight.assign(weights, 0.0);
  const bool gated = in.gate.present() && options.gate_fn != GateFn::none;
  each_row(in.x.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    const Row row = row_of(in, options, b, h, i);
    CompensatedSum products;
    double products_abs = 0.0;
    for (std::int64_t d = 0; d < D; ++d) {
      const Element& e = row.elements[static_cast<std::size_t>(d)];
      const double gradient = load(dy, b, h, i, d);
      products.add(gradient * e.weight * e.g * e.n);
      products_abs += std::abs(gradient * e.weight * e.n) * e.g_abs;
      if (gated) {
        out.dgate.push_back(gradient * e.n * e.weight * e.slope);
        out.magnitude.dgate.push_back(std::abs(gradient * e.n * e.weight) * e.slope_abs);
      }
      if (weights == 0) continue;
      const auto at = static_cast<std::size_t>((in.weight.shape[1] == 1 ? 0 : h * D) + d);
      dweight[at].add(gradient * e.n * e.g);
      out.magnitude.dweight[at] += std::abs(gradient * e.n) * e.g_abs;
    }
    for (std::int64_t d = 0; d < D; ++d) {
      const Element& e = row.elements[static_cast<std::size_t>(d)];
      const double gradient = load(dy, b, h, i, d) * e.weight;
      const double mean = products.value() / static_cast<double>(D), mean_abs = products_abs / static_cast<double>(D);
      out.dx.push_back(static_cast<double>(row.r * (gradient * e.g - e.n * mean)));
      out.magnitude.dx.push_back(
          static_cast<double>(row.r * (std::abs(gradient) * e.g_abs + std::abs(e.n) * mean_abs)));
    }
  });
  for (const CompensatedSum& sum : dweight) out.dweight.push_back(sum.value());
  return out;
}

}  // namespace headgate::reference
