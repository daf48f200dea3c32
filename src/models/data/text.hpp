// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "models/data/corpus.hpp"
#include "models/data/data.hpp"

namespace headgate::train {

/// Returns the offset in bytes of the first held-out byte of a text. Throws Error with the text's name if the text is
/// shorter than two sequences of T + 1 bytes.
std::int64_t held_out_begin(const std::string& name, std::int64_t size_bytes, std::int64_t T);

/// Returns the offset in tokens at which the window of training sequence `index` begins. Training uses tokens [0,
/// training) of the text. See TextSource.
std::int64_t training_window(std::int64_t training, std::int64_t T, std::uint64_t seed, std::int64_t index);

/// Reads a text with one token per byte.
/// - Held-out part: the last twentieth of the text, but at most 4 MiB and at least one sequence.
/// - Training part: the rest, cut into windows of T tokens without padding. The byte after a window is the window's
///   last target.
/// - Epoch: visits every window once in a random order. The windows of each epoch start at a different offset, so that
///   each byte occurs at many positions of a sequence.
/// - Bos::on: the tokens are kBos and the window's first T − 1 bytes, and the targets are the window's T bytes.
class TextSource : public SequenceSource {
 public:
  TextSource(Corpus corpus, const DataOptions& options);

  std::int64_t seq_len() const override { return T_; }
  std::int64_t vocab() const override { return bos_ == Bos::on ? kBos + 1 : kBos; }
  void training_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const override;
  std::int64_t held_out_count() const override { return (corpus_.size() - training_ - 1) / T_; }
  void held_out_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const override;
  std::uint64_t fingerprint() const override { return corpus_.fingerprint(); }
  std::string description() const override;
  std::string name() const override { return corpus_.name(); }
  LeftOut left_out() const override { return corpus_.left_out(); }

  std::int64_t trained_bytes() const { return training_; }

 private:
  /// Writes the T tokens and T targets of the window of T bytes that starts at `begin`. With Bos::off, the tokens are
  /// the window's bytes, and the last target is the byte after the window. With Bos::on, the targets are the window's
  /// bytes.
  void copy_window(std::int32_t* tokens, std::int32_t* targets, std::int64_t begin) const;

  Corpus corpus_;
  std::int64_t T_;
  std::uint64_t seed_;
  Bos bos_;
  std::int64_t training_ = 0;  ///< training uses bytes [0, training_)
};

}  // namespace headgate::train
