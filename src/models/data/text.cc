// SPDX-License-Identifier: Apache-2.0
#include "models/data/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "library/core/check.hpp"
#include "models/data/random.hpp"

namespace headgate::train {

namespace {

enum Stream : std::uint64_t { kOffsetStream = 1, kOrderStream = 2 };

}  // namespace

std::int64_t held_out_begin(const std::string& name, std::int64_t size_bytes, std::int64_t T) {
  constexpr std::int64_t kMaxHeldOut_bytes = std::int64_t{4} << 20;
  const std::int64_t window = T + 1;
  require(size_bytes >= 2 * window, "{}: the text has {} bytes but two sequences, one of them held out, take {}", name,
          size_bytes, 2 * window);
  return size_bytes - std::max(window, std::min(size_bytes / 20, kMaxHeldOut_bytes));
}

std::int64_t training_window(std::int64_t training, std::int64_t T, std::uint64_t seed, std::int64_t index) {
  const std::int64_t slack = std::min(T, training - T);  // an epoch's windows start at a random offset in [0, slack)
  const std::int64_t windows = (training - slack) / T;
  const std::int64_t epoch = index / windows;
  const std::int64_t offset = RandomStream(seed, kOffsetStream, epoch).below(slack);
  const std::uint64_t key = RandomStream(seed, kOrderStream, epoch).next();
  return offset + permuted(index % windows, windows, key) * T;
}

TextSource::TextSource(Corpus corpus, const DataOptions& options)
    : corpus_(std::move(corpus)), T_(options.seq_len), seed_(options.seed), bos_(options.bos) {
  const std::int64_t size = corpus_.size();
  if (options.split == Split::all_held_out) {
    require(size >= T_ + 1, "{}: the text has {} bytes but a sequence takes {}", name(), size, T_ + 1);
    return;
  }
  training_ = held_out_begin(name(), size, T_);
}

void TextSource::training_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const {
  copy_window(tokens, targets, training_window(training_, T_, seed_, index));
}

void TextSource::held_out_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const {
  copy_window(tokens, targets, training_ + index * T_);
}

void TextSource::copy_window(std::int32_t* tokens, std::int32_t* targets, std::int64_t begin) const {
  const std::int64_t bos = bos_ == Bos::on ? 1 : 0;
  if (bos == 1) tokens[0] = kBos;
  corpus_.copy(tokens + bos, begin, T_ - bos);
  corpus_.copy(targets, begin + 1 - bos, T_);
}

std::string TextSource::description() const {
  return fmt::format("{} bytes in {} file{}, {} of them held out", corpus_.size(), corpus_.files(),
                     corpus_.files() == 1 ? "" : "s", corpus_.size() - training_);
}

}  // namespace headgate::train
