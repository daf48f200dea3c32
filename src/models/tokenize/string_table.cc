// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/string_table.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <new>
#include <random>

namespace headgate::tokenize {
namespace {

constexpr std::size_t kFirstSlots = 64;

}  // namespace

std::uint64_t random_factor() {
  static const std::uint64_t factor = [] {
    std::random_device device;
    return (std::uint64_t{device()} << 32 | device()) | 1;
  }();
  return factor;
}

std::uint64_t StringTable::hash(std::string_view key) const {
  std::uint64_t h = key.size() * factor_;
  std::size_t at = 0;
  while (at < key.size()) {
    std::uint64_t eight = 0;
    const std::size_t bytes = std::min(sizeof(eight), key.size() - at);
    std::memcpy(&eight, key.data() + at, bytes);
    h = (std::rotl(h, 29) ^ eight) * factor_;
    h ^= h >> 32;
    at += bytes;
  }
  return h * factor_;
}

std::size_t StringTable::slot(std::uint64_t hash, std::string_view wanted) const {
  std::size_t at = hash >> shift_;
  while (slots_[at] != kAbsent) {
    const Entry& entry = entries_[static_cast<std::size_t>(slots_[at])];
    if (entry.hash == hash && key(slots_[at]) == wanted) break;
    at = (at + 1) & (slots_.size() - 1);
  }
  return at;
}

std::int32_t StringTable::find(std::string_view key) const {
  return slots_.empty() ? kAbsent : slots_[slot(hash(key), key)];
}

std::int32_t StringTable::insert(std::string_view key) {
  if (2 * (entries_.size() + 1) > slots_.size()) grow();
  const std::uint64_t h = hash(key);
  std::int32_t& number = slots_[slot(h, key)];
  if (number != kAbsent) return number;
  if (key.size() > std::numeric_limits<std::uint32_t>::max() - bytes_.size()) throw std::bad_alloc();
  number = size();
  entries_.push_back({h, static_cast<std::uint32_t>(bytes_.size()), static_cast<std::uint32_t>(key.size())});
  bytes_ += key;
  return number;
}

void StringTable::grow() {
  const std::size_t count = std::max(kFirstSlots, 2 * slots_.size());
  slots_.assign(count, kAbsent);
  shift_ = 64 - std::countr_zero(count);
  for (std::size_t n = 0; n < entries_.size(); ++n) {
    std::size_t at = entries_[n].hash >> shift_;
    while (slots_[at] != kAbsent) at = (at + 1) & (count - 1);
    slots_[at] = static_cast<std::int32_t>(n);
  }
}

}  // namespace headgate::tokenize
