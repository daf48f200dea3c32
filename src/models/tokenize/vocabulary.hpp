// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/tokenize/string_table.hpp"

namespace headgate::tokenize {

inline constexpr std::int32_t kNoToken = -1;
inline constexpr std::int32_t kMostTokens = 1 << 20;  ///< limit of ids, several times the largest vocabulary

/// Maps tokens by id and by spelling.
class Vocabulary {
 public:
  /// Adds a token. Throws TokenizerError for an id or a spelling that exists already, an id out of range and an empty
  /// spelling.
  void add(std::int64_t id, std::string_view spelling);

  /// Returns the largest id + 1.
  std::int32_t size() const { return static_cast<std::int32_t>(by_id_.size()); }
  /// Returns the number of tokens, which is less than size() if some ids have none.
  std::int32_t count() const { return static_cast<std::int32_t>(ids_.size()); }
  /// Returns the id of a spelling, or kNoToken if there is none.
  std::int32_t find(std::string_view spelling) const;
  /// Returns the spelling of an id, or an empty one if the id has no token.
  std::string_view spelling(std::int32_t id) const;

 private:
  StringTable spellings_;
  std::vector<std::int32_t> ids_;    ///< id of each entry of spellings_
  std::vector<std::int32_t> by_id_;  ///< index in spellings_ for each id; StringTable::kAbsent if the id has no token
};

}  // namespace headgate::tokenize
