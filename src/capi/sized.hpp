// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "core/check.hpp"

namespace headgate::capi {

/// No version has a larger struct: a struct_size above this is uninitialised memory, and the struct is not read.
constexpr std::size_t kMaxStructSize = 8192;

/// The caller's struct as this library knows it. `first_size` is its size in the version before this one, where that
/// had it: another struct_size below today's is a mistake, and might end in the middle of a field. Fields that an older
/// caller does not have are zero; bytes that a newer caller has beyond ours must be zero.
template <typename Struct>
Struct read_sized(const Struct* given, const char* name, std::size_t first_size = sizeof(Struct)) {
  static_assert(std::is_trivially_copyable_v<Struct> && offsetof(Struct, struct_size) == 0);
  require(given != nullptr, "{} is null", name);
  const std::size_t size = given->struct_size;
  require(size == first_size || (size >= sizeof(Struct) && size <= kMaxStructSize),
          "{}.struct_size is {} but must be {}{} to {}", name, size,
          first_size == sizeof(Struct) ? "" : fmt::format("{}, or ", first_size), sizeof(Struct), kMaxStructSize);
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t at = sizeof(Struct); at < size; ++at) {
    require(bytes[at] == 0, "{} is of a newer version: its byte {} is {}, and this library knows {} bytes", name, at,
            bytes[at], sizeof(Struct));
  }
  Struct known{};
  std::memcpy(&known, bytes, std::min(size, sizeof(Struct)));
  return known;
}

}  // namespace headgate::capi
