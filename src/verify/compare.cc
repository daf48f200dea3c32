// SPDX-License-Identifier: Apache-2.0
#include "verify/compare.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>

#include "library/core/element.hpp"
#include "verify/slab.hpp"

namespace headgate::verify {
namespace {

std::optional<std::string> compare(const Comparison& c, const Description& description, WorstError* worst) {
  if (!c.actual.present()) return std::nullopt;
  const Shape& n = c.actual.shape;
  std::size_t at = 0;
  for (std::int64_t b = 0; b < n[0]; ++b) {
    for (std::int64_t h = 0; h < n[1]; ++h) {
      for (std::int64_t i = 0; i < n[2]; ++i) {
        for (std::int64_t d = 0; d < n[3]; ++d, ++at) {
          const double actual = load(c.actual, b, h, i, d);
          const double inherited = c.inherited != nullptr ? (*c.inherited)[at] : 0.0;
          const double like_terms = c.like_terms != nullptr ? (*c.like_terms)[at] : 0.0;
          const double tolerance = c.tolerance(c.expected[at], c.magnitude[at], inherited, like_terms);
          const double ratio = error_ratio(actual, c.expected[at], tolerance, c.actual.dtype);
          const bool poison = is_poison(c.actual, offset_of(c.actual, b, h, i, d));
          if (worst != nullptr && ratio > worst->ratio) *worst = {ratio, fmt::format("{}: {}", c.name, description())};
          if (ratio <= 1.0 && !poison) continue;
          return fmt::format("{}[{},{},{},{}] = {:.9g}{}, expected {:.9g} ± {:.3g}: {}", c.name, b, h, i, d, actual,
                             poison ? " (never written)" : "", c.expected[at], tolerance, description());
        }
      }
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> first_mismatch(const std::vector<Comparison>& comparisons, const Description& description,
                                          WorstError* worst) {
  for (const Comparison& c : comparisons) {
    if (auto mismatch = compare(c, description, worst)) return mismatch;
  }
  return std::nullopt;
}

std::string spill_text(const std::string& name, const Description& description) {
  return fmt::format("{}: bytes outside the tensor were written: {}", name, description());
}

}  // namespace headgate::verify
