// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "train/corpus.hpp"
#include "train/data.hpp"
#include "train/random.hpp"

// Bigram-backcopy (arXiv 2410.13835): x₀ is BOS; x₁ is drawn from the text's bytes that are no triggers; then
// x_{i+1} = x_{i−1} where x_i is a trigger, else a byte that follows x_i in the text, as often as it does there. A copy
// is never a trigger: only a byte drawn after another byte can be one. A head need look back by one after triggers and
// has nothing to do elsewhere.

namespace headgate::train {

inline constexpr std::int32_t kBos = 256;
inline constexpr std::array<std::int32_t, 3> kTriggers{'t', 'e', ' '};

/// How often each byte follows each other in a text.
class BigramTable {
 public:
  /// From the text's first 64 MiB. Throws Error when it has fewer than two bytes, or none but triggers.
  explicit BigramTable(const Corpus& corpus);

  std::int32_t first(RandomStream& random) const;
  std::int32_t after(std::int32_t byte, RandomStream& random) const;

 private:
  std::vector<std::uint64_t> below_;  // (257,256) inclusive running counts; row 256: bytes that are no triggers
};

class BackcopySource : public SequenceSource {
 public:
  BackcopySource(const Corpus& corpus, const DataOptions& options);

  std::int64_t seq_len() const override { return T_; }
  std::int64_t vocab() const override { return kBos + 1; }
  void training_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const override;
  std::int64_t held_out_count() const override;
  void held_out_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const override;
  bool is_trigger(std::int32_t token) const override;
  bool has_triggers() const override { return true; }
  std::uint64_t fingerprint() const override { return fingerprint_; }
  std::string description() const override;
  LeftOut left_out() const override { return left_out_; }

 private:
  void draw(std::int32_t* tokens, std::int32_t* targets, RandomStream random) const;

  BigramTable table_;
  std::int64_t T_;
  std::uint64_t seed_;
  std::uint64_t fingerprint_;
  std::int64_t bytes_;
  LeftOut left_out_;
};

}  // namespace headgate::train
