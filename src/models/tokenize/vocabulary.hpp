// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/tokenize/string_table.hpp"

namespace headgate::tokenize {

inline constexpr std::int32_t kNoToken = -1;
/// Upper bound of ids, several times the largest known vocabulary.
inline constexpr std::int32_t kMostTokens = 1 << 20;

/// Finds tokens by id and by spelling.
class Vocabulary {
 public:
  /// Adds a token. Throws TokenizerError if its id or spelling already exists, its id is out of range, or its spelling
  /// is empty.
  void add(std::int64_t id, std::string_view spelling);

  /// Returns the largest id plus 1.
  std::int32_t size() const { return static_cast<std::int32_t>(by_id_.size()); }
  /// Returns the number of tokens. It is less than size() if some ids have no token.
  std::int32_t count() const { return static_cast<std::int32_t>(ids_.size()); }
  /// Returns the id of a spelling, or kNoToken if no token has this spelling.
  std::int32_t find(std::string_view spelling) const;
  /// Returns the spelling of an id, or an empty string if the id has no token.
  std::string_view spelling(std::int32_t id) const;

 private:
  StringTable spellings_;
  std::vector<std::int32_t> ids_;  ///< for each entry of spellings_, its id
  /// For each id, its index in spellings_, or StringTable::kAbsent if the id has no token.
  std::vector<std::int32_t> by_id_;
};

}  // namespace headgate::tokenize
