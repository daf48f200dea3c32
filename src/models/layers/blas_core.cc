// SPDX-License-Identifier: Apache-2.0
#include "models/layers/blas_core.hpp"

#include <algorithm>
#include <array>

#include "models/layers/blas.hpp"

namespace headgate::layers {

std::string_view better_blas_core(std::string_view chosen, std::span<const std::string> targets) {
  // Lists OpenBLAS's names for x86 without AVX2. Other names may be those of newer CPUs, so they are kept.
  constexpr std::array<std::string_view, 15> kWithoutAvx2{
      "Prescott",     "Core2",   "Penryn", "Dunnington", "Nehalem", "Sandybridge", "Atom",      "Nano",
      "Opteron_SSE3", "Opteron", "Athlon", "Barcelona",  "Bobcat",  "Bulldozer",   "Piledriver"};
  if (std::find(kWithoutAvx2.begin(), kWithoutAvx2.end(), chosen) == kWithoutAvx2.end()) return {};
  const auto runs = [targets](std::string_view target) {
    return std::find(targets.begin(), targets.end(), target) != targets.end();
  };
  if (runs("avx3")) return "SkylakeX";
  if (runs("avx2")) return "Haswell";
  return {};
}

std::string blas_core() { return Blas()->get_corename(); }

}  // namespace headgate::layers
