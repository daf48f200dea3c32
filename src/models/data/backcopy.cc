// SPDX-License-Identifier: Apache-2.0
#include "models/data/backcopy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "library/core/check.hpp"

namespace headgate::train {

namespace {

constexpr std::int64_t kBytes = 256;
constexpr std::int64_t kHeldOutSequences = 4096;

enum Stream : std::uint64_t { kTrainingStream = 3, kHeldOutStream = 4 };

bool trigger(std::int32_t token) { return std::find(kTriggers.begin(), kTriggers.end(), token) != kTriggers.end(); }

/// Draws a byte with probability proportional to its count. row[b] is the sum of the counts of bytes 0 … b.
std::int32_t draw_byte(const std::int64_t* row, RandomStream& random) {
  const std::int64_t place = random.below(row[kBytes - 1]);
  return static_cast<std::int32_t>(std::upper_bound(row, row + kBytes, place) - row);
}

}  // namespace

BigramTable::BigramTable(const Corpus& corpus) : cumulative_((kBytes + 1) * kBytes) {
  constexpr std::int64_t kMaxBytes = std::int64_t{64} << 20;
  const std::int64_t bytes = std::min(corpus.size(), kMaxBytes);
  require(bytes >= 2, "the text has {} bytes, too few for a bigram table", bytes);
  std::int64_t last = kBytes;  // previous byte; kBytes at the start of the text
  corpus.for_pieces(0, bytes, [&](const std::uint8_t* data, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t byte = data[i];
      if (last < kBytes) ++cumulative_[last * kBytes + byte];
      if (!trigger(data[i])) ++cumulative_[kBytes * kBytes + byte];
      last = byte;
    }
  });
  for (std::int64_t row = 0; row <= kBytes; ++row) {
    for (std::int64_t byte = 1; byte < kBytes; ++byte)
      cumulative_[row * kBytes + byte] += cumulative_[row * kBytes + byte - 1];
  }
  require(cumulative_.back() > 0, "the text has only the triggers t, e and space");
}

std::int32_t BigramTable::first(RandomStream& random) const { return draw_byte(&cumulative_[kBytes * kBytes], random); }

std::int32_t BigramTable::after(std::int32_t byte, RandomStream& random) const {
  const std::int64_t* row = &cumulative_[byte * kBytes];
  // No byte follows a byte that occurs only at the end of the text. Draws its follower as first() does.
  return row[kBytes - 1] > 0 ? draw_byte(row, random) : first(random);
}

BackcopySource::BackcopySource(const Corpus& corpus, const DataOptions& options)
    : table_(corpus),
      T_(options.seq_len),
      seed_(options.seed),
      fingerprint_(corpus.fingerprint()),
      bytes_(corpus.size()),
      left_out_(corpus.left_out()) {}

void BackcopySource::draw(std::int32_t* tokens, std::int32_t* targets, RandomStream random) const {
  std::int32_t before = kBos;
  std::int32_t token = kBos;
  for (std::int64_t i = 0; i < T_; ++i) {
    const std::int32_t next = i == 0 ? table_.first(random) : trigger(token) ? before : table_.after(token, random);
    tokens[i] = token;
    targets[i] = next;
    before = token;
    token = next;
  }
}

void BackcopySource::training_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const {
  draw(tokens, targets, RandomStream(seed_, kTrainingStream, index));
}

std::int64_t BackcopySource::held_out_count() const { return kHeldOutSequences; }

void BackcopySource::held_out_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const {
  draw(tokens, targets, RandomStream(seed_, kHeldOutStream, index));
}

bool BackcopySource::is_trigger(std::int32_t token) const { return trigger(token); }

std::string BackcopySource::description() const {
  return fmt::format("sequences drawn from the bigrams of {} bytes", bytes_);
}

}  // namespace headgate::train
