// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "models/data/corpus.hpp"
#include "models/data/data.hpp"
#include "models/data/random.hpp"

// Implements the Bigram-backcopy task (arXiv 2410.13835): after a trigger byte (kTriggers), the next byte copies an
// earlier one. The task draws random sequences x₀, x₁, …:
// - x₀ is BOS. x₁ is drawn from the bytes of the text that are not triggers.
// - If x_i is a trigger, x_{i+1} is a copy of x_{i−1}.
// - Otherwise x_{i+1} is drawn from the bytes that follow x_i in the text, with their frequencies.
//
// A copied byte is never a trigger. To predict the byte after a trigger, a head has to attend to the previous token.
// Every other byte depends only on the current token.

namespace headgate::train {

inline constexpr std::array<std::int32_t, 3> kTriggers{'t', 'e', ' '};

/// Counts how often each pair of adjacent bytes occurs in a text.
class BigramTable {
 public:
  /// Counts the pairs of bytes in the first 64 MiB of the text. Throws Error if the text has fewer than two bytes, or
  /// if all its bytes are in kTriggers.
  explicit BigramTable(const Corpus& corpus);

  /// Draws the first byte of a sequence, which follows BOS.
  std::int32_t first(RandomStream& random) const;
  /// Draws a byte that follows `byte`.
  std::int32_t after(std::int32_t byte, RandomStream& random) const;

 private:
  /// (257,256): cumulative counts. Element (b,c) is how often one of the bytes 0 … c follows byte b. Element (256,c) is
  /// how often one of these bytes occurs in the text. Row 256 does not count the bytes in kTriggers.
  std::vector<std::int64_t> cumulative_;
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
