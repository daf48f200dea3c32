// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "library/core/check.hpp"
#include "library/core/format.hpp"

namespace headgate::capi {

/// Largest struct_size that any version accepts. A larger value indicates uninitialised memory.
constexpr std::size_t kMaxStructSize = 8192;

/// Copies the caller's struct, which may come from another version of the library. Fields that an older struct lacks
/// become zero. A newer struct is accepted if its additional bytes are zero.
///
/// `older_sizes` are the sizes of the struct in older versions. Throws Error for other sizes below sizeof(Struct),
/// because such a struct could end in the middle of a field.
template <typename Struct>
Struct read_sized(const Struct* given, const char* name, const std::vector<std::size_t>& older_sizes = {}) {
  static_assert(std::is_trivially_copyable_v<Struct> && offsetof(Struct, struct_size) == 0);
  require(given != nullptr, "{} is null", name);
  const std::size_t size = given->struct_size;
  std::string older;
  for (const std::size_t older_size : older_sizes) older += formatted("{}, or ", older_size);
  const bool is_older = std::find(older_sizes.begin(), older_sizes.end(), size) != older_sizes.end();
  require(is_older || (size >= sizeof(Struct) && size <= kMaxStructSize), "{}.struct_size is {} but must be {}{} to {}",
          name, size, older, sizeof(Struct), kMaxStructSize);
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t at = sizeof(Struct); at < size; ++at) {
    require(bytes[at] == 0, "{} is of a newer version: its byte {} is {}, and this library knows {} bytes", name, at,
            bytes[at], sizeof(Struct));
  }
  Struct known{};
  std::memcpy(&known, bytes, std::min(size, sizeof(Struct)));
  return known;
}

/// Copies the first to->struct_size bytes of `from` to the caller's struct `to`, which may come from another version of
/// the library. If `from` has a nonzero byte after these, throws Error and writes nothing.
template <typename Struct>
void write_sized(Struct* to, const char* name, const Struct& from) {
  const std::size_t size = std::min(to->struct_size, sizeof from);
  const auto* bytes = reinterpret_cast<const unsigned char*>(&from);
  require(std::all_of(bytes + size, bytes + sizeof from, [](unsigned char byte) { return byte == 0; }),
          "{}.struct_size is {} but this call sets members beyond it", name, size);
  std::memcpy(to, &from, size);
}

}  // namespace headgate::capi
