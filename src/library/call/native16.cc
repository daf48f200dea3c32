// SPDX-License-Identifier: Apache-2.0
#include "library/call/native16.hpp"

#include <atomic>
#include <string>
#include <vector>

#include "headgate/runtime.hpp"
#include "library/core/check.hpp"
#include "library/core/targets.hpp"

#if (HWY_TARGETS & HWY_AVX3) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace headgate {
namespace {

#if (HWY_TARGETS & HWY_AVX3) && defined(__linux__)
/// Asks Linux for permission to use AMX tiles. Linux grants this permission per process
/// (Documentation/arch/x86/xstate.rst).
bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

Native16Unit find_unit() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool dots = __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 5U & 1U) != 0;
  if (!dots) return Native16Unit::none;
  const bool tiles = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 22U & 1U) != 0 && (d >> 24U & 1U) != 0;
  return tiles && may_use_tiles() ? Native16Unit::tiles : Native16Unit::dots;
}
/// Returns true if AVX-512 BF16 dot products are twice as fast as f32 products, as on AMD since Zen 4.
/// On Intel, these dot products are slower than f32 products (docs/design/bf16.md).
bool has_fast_dots() { return __builtin_cpu_is("amd") != 0; }
#else
Native16Unit find_unit() { return Native16Unit::none; }
bool has_fast_dots() { return false; }
#endif

Native16Unit unit_of_cpu() {
  static const Native16Unit unit = find_unit();
  return unit;
}

/// Returns the CPU's fastest unit for bf16 products, or none if f32 products are faster.
Native16Unit fast_unit_of_cpu() {
  static const Native16Unit unit =
      unit_of_cpu() == Native16Unit::dots && !has_fast_dots() ? Native16Unit::none : unit_of_cpu();
  return unit;
}

struct UnitName {
  Native16Unit unit;
  const char* name;
};
/// Lists the units' names, best first.
constexpr UnitName kUnitNames[] = {{Native16Unit::tiles, "amx_bf16"}, {Native16Unit::dots, "avx512_bf16"}};

/// Unit chosen by set_native16_products(). `none` means that fast_unit_of_cpu() decides.
std::atomic<Native16Unit> forced_unit{Native16Unit::none};

}  // namespace

Native16Unit native16_unit(std::int64_t target) {
  if (target != HWY_AVX3) return Native16Unit::none;
  const Native16Unit forced = forced_unit.load(std::memory_order_relaxed);
  return forced != Native16Unit::none ? forced : fast_unit_of_cpu();
}

bool native16_unit_is_selected() { return forced_unit.load(std::memory_order_relaxed) != Native16Unit::none; }

std::vector<std::string> supported_native16_products() {
  std::vector<std::string> names;
  for (const UnitName& each : kUnitNames) {
    if (each.unit <= unit_of_cpu()) names.emplace_back(each.name);
  }
  return names;
}

std::string native16_products() {
  const Native16Unit unit = native16_unit(active_target_bit());
  for (const UnitName& each : kUnitNames) {
    if (each.unit == unit) return each.name;
  }
  return "";
}

void set_native16_products(const std::string& name) {
  Native16Unit unit = Native16Unit::none;
  for (const UnitName& each : kUnitNames) {
    if (each.unit <= unit_of_cpu() && name == each.name) unit = each.unit;
  }
  require(name.empty() || unit != Native16Unit::none,
          "set_native16_products names '{}', but this CPU and build have: {}", name,
          comma_separated(supported_native16_products()));
  forced_unit.store(unit, std::memory_order_relaxed);
}

}  // namespace headgate
