// SPDX-License-Identifier: Apache-2.0
#include "models/train/spikes.hpp"

#include <algorithm>
#include <cmath>

namespace headgate::train {

bool SpikeCounter::add(double loss) {
  bool high = false;
  if (window_.size() >= kFewest) {
    const auto n = static_cast<double>(window_.size());
    double mean = 0.0;
    for (const double x : window_) mean += x / n;
    double variance = 0.0;
    for (const double x : window_) variance += (x - mean) * (x - mean) / n;
    high = loss > mean + std::max(kLeast, kDeviations * std::sqrt(variance));
  }
  const bool begins = high && !inside_;
  inside_ = high;
  count_ += begins ? 1 : 0;
  window_.push_back(loss);
  if (window_.size() > kWindow) window_.erase(window_.begin());
  return begins;
}

void SpikeCounter::restore(const std::vector<double>& window, std::int64_t count, bool inside) {
  const std::size_t kept = std::min(window.size(), kWindow);
  window_.assign(window.end() - static_cast<std::ptrdiff_t>(kept), window.end());
  count_ = count;
  inside_ = inside;
}

}  // namespace headgate::train
