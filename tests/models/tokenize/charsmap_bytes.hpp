// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace headgate::testing {

/// Builds the bytes of a table of replacements, valid or not.
struct CharsmapBytes {
  std::vector<std::uint32_t> units;
  std::string replacements;

  static constexpr std::uint32_t kValue = std::uint32_t{1} << 31, kHasValue = 1U << 8;

  static CharsmapBytes of(const std::map<std::string, std::string>& table) {
    CharsmapBytes out;
    out.units.resize(256);
    out.place(table, "", 0);
    return out;
  }

  std::string bytes() const {
    const auto size = static_cast<std::uint32_t>(units.size() * sizeof(std::uint32_t));
    std::string out(sizeof size + size, '\0');
    std::memcpy(out.data(), &size, sizeof size);
    std::memcpy(out.data() + sizeof size, units.data(), size);
    return out + replacements;
  }

 private:
  /// Places the children of the node of a `prefix`, which is unit `at`. A block of 256 units, whose first is its own
  /// distance, holds those of each node.
  void place(const std::map<std::string, std::string>& table, const std::string& prefix, std::size_t at) {
    std::set<unsigned char> next;
    for (const auto& [key, by] : table) {
      if (key.size() > prefix.size() && key.starts_with(prefix)) {
        next.insert(static_cast<unsigned char>(key[prefix.size()]));
      }
    }
    const auto value = prefix.empty() ? table.end() : table.find(prefix);
    if (next.empty() && value == table.end()) return;
    const std::size_t base = units.size();
    units.resize(base + 256);
    units[at] |= static_cast<std::uint32_t>(at ^ base) << 10;
    if (value != table.end()) {
      units[at] |= kHasValue;
      units[base] = kValue | static_cast<std::uint32_t>(replacements.size());
      replacements += value->second + '\0';
    }
    for (const unsigned char c : next) {
      units[base + c] = c;
      place(table, prefix + static_cast<char>(c), base + c);
    }
  }
};

}  // namespace headgate::testing
