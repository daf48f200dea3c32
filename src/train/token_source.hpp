// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/data.hpp"

namespace headgate::train {

/// Token ids, cut into sequences of T tokens from the first on; the token after a sequence is its last target. All are
/// held out: models with a vocabulary of their own are evaluated on them. A tokenizer's ids of a text are such tokens.
class TokenSource : public SequenceSource {
 public:
  /// Throws Error for an id below 0 and for fewer than T + 1 of them.
  TokenSource(std::vector<std::int32_t> tokens, std::int64_t seq_len);

  std::int64_t seq_len() const override { return T_; }
  std::int64_t vocab() const override { return vocab_; }
  void training_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const override;
  std::int64_t held_out_count() const override { return (static_cast<std::int64_t>(tokens_.size()) - 1) / T_; }
  void held_out_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const override;
  bool tokens_are_bytes() const override { return false; }
  std::uint64_t fingerprint() const override;
  std::string description() const override;

 private:
  std::vector<std::int32_t> tokens_;
  std::int64_t T_;
  std::int64_t vocab_ = 1;  ///< the largest id and one
};

/// The integers of a .npy file, i32 or i64, of one dimension. Throws io::FileError, also for ids that are not within
/// 0 … 2^31 − 1.
std::vector<std::int32_t> read_token_ids(const std::string& path);

}  // namespace headgate::train
