// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "models/data/corpus.hpp"
#include "models/data/data.hpp"

namespace headgate::train {

/// Returns the offset of the first held-out byte of a text. Throws Error, with the text's name, if the text is shorter
/// than two sequences of T + 1 bytes.
std::int64_t held_out_begin(const std::string& name, std::int64_t size_bytes, std::int64_t T);

/// Returns where the window of a training sequence begins, in a text whose tokens [0, training) are trained on: see
/// TextSource.
std::int64_t training_window(std::int64_t training, std::int64_t T, std::uint64_t seed, std::int64_t index);

/// Reads bytes as tokens. The tail of the text is held out: a twentieth, at most 4 MiB, at least one sequence. The rest
/// is cut into windows of T tokens without padding; the byte after a window is its last target. An epoch visits every
/// window once in a random order. The windows of each epoch start at another offset, so that a byte occurs at many
/// positions of a sequence. With Bos::on a sequence is kBos and T − 1 bytes, whose targets are the window's T bytes.
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
  /// Copies the sequence of the T bytes from `begin` on, and its targets, which end with the byte after them.
  void copy_window(std::int32_t* tokens, std::int32_t* targets, std::int64_t begin) const;

  Corpus corpus_;
  std::int64_t T_;
  std::uint64_t seed_;
  Bos bos_;
  std::int64_t training_ = 0;  ///< training uses bytes [0, training_)
};

}  // namespace headgate::train
