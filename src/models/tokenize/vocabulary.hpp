// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/tokenize/string_table.hpp"

namespace headgate::tokenize {

inline constexpr std::int32_t kNoToken = -1;
inline constexpr std::int32_t kMostTokens = 1 << 20;  ///< bound of ids: several times the largest vocabulary in use

/// Maps tokens by id and by spelling.
class Vocabulary {
 public:
  /// Throws TokenizerError for an id or a spelling that exists already, an id out of range and an empty spelling.
  void add(std::int64_t id, std::string_view spelling);

  /// Returns the largest id + 1.
  std::int32_t size() const { return static_cast<std::int32_t>(by_id_.size()); }
  /// Returns the number of tokens, which is less than size() if some ids have none.
  std::int32_t count() const { return static_cast<std::int32_t>(ids_.size()); }
  /// Returns kNoToken if there is none.
  std::int32_t find(std::string_view spelling) const;
  /// Returns an empty spelling for an id without a token.
  std::string_view spelling(std::int32_t id) const;

 private:
  StringTable spellings_;
  std::vector<std::int32_t> ids_;    ///< of each spelling
  std::vector<std::int32_t> by_id_;  ///< number of its spelling; StringTable::kAbsent without one
};

}  // namespace headgate::tokenize
