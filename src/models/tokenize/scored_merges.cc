// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/scored_merges.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "models/tokenize/error.hpp"
#include "models/tokenize/utf8.hpp"

namespace headgate::tokenize {
namespace {

/// Maximum number of bytes to hash. A token is split after each of its characters, and both halves are hashed. This
/// takes O(n²) bytes for a token of n characters. Known vocabularies take less than 2^25 bytes in total.
constexpr std::size_t kMostHashedBytes = std::size_t{1} << 30;

/// Returns the ids of all tokens whose score is not NaN, sorted by descending score.
std::vector<std::int32_t> by_score(const Vocabulary& vocabulary, const std::vector<double>& scores) {
  std::vector<std::int32_t> ids;
  for (std::int32_t id = 0; id < vocabulary.size(); ++id) {
    if (!std::isnan(scores[static_cast<std::size_t>(id)])) ids.push_back(id);
  }
  std::stable_sort(ids.begin(), ids.end(), [&scores](std::int32_t a, std::int32_t b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  return ids;
}

}  // namespace

std::vector<RankedMerge> merges_by_score(const Vocabulary& vocabulary, const std::vector<double>& scores) {
  const auto score = [&scores](std::int32_t id) { return scores[static_cast<std::size_t>(id)]; };
  const auto operand = [&](std::string_view spelling) {
    const std::int32_t id = vocabulary.find(spelling);
    return id == kNoToken || std::isnan(score(id)) ? kNoToken : id;
  };
  std::vector<RankedMerge> out;
  std::size_t hashed_bytes = 0;
  std::uint32_t rank = 0;
  std::int32_t last = kNoToken;
  for (const std::int32_t id : by_score(vocabulary, scores)) {
    if (last != kNoToken && score(id) != score(last)) ++rank;
    last = id;
    const std::string_view whole = vocabulary.spelling(id);
    for (std::size_t at = whole.size(); at > 0;) {
      at -= last_code_point(whole.substr(0, at)).bytes;
      if (at == 0) break;
      hashed_bytes += whole.size();
      if (hashed_bytes > kMostHashedBytes) refuse("the tokens are too long to find the merges of all of them");
      const std::int32_t left = operand(whole.substr(0, at)), right = operand(whole.substr(at));
      if (left != kNoToken && right != kNoToken) out.push_back({left, right, id, rank});
    }
  }
  return out;
}

}  // namespace headgate::tokenize
