// SPDX-License-Identifier: Apache-2.0
#include "models/io/units.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>

namespace headgate::console {

std::string bytes_text(double bytes) {
  if (bytes >= 1e12) return fmt::format("{:.2f} TB", bytes * 1e-12);
  if (bytes >= 1e9) return fmt::format("{:.2f} GB", bytes * 1e-9);
  if (bytes >= 1e6) return fmt::format("{:.1f} MB", bytes * 1e-6);
  return fmt::format("{:.0f} kB", bytes * 1e-3);
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::ceil(seconds));
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string figure_text(std::optional<double> value) { return value ? fmt::format("{:.4g}", *value) : "-"; }

std::string percent_text(double share) {
  return share < 0.01 ? fmt::format("{:.1f}%", 100.0 * share) : fmt::format("{:.0f}%", 100.0 * share);
}

}  // namespace headgate::console
