// SPDX-License-Identifier: Apache-2.0
#include "train/token_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "core/check.hpp"
#include "io/npy.hpp"
#include "train/random.hpp"

namespace headgate::train {

TokenSource::TokenSource(std::vector<std::int32_t> tokens, std::int64_t seq_len)
    : tokens_(std::move(tokens)), T_(seq_len) {
  require(static_cast<std::int64_t>(tokens_.size()) > T_, "{} token ids but a sequence of {} takes {}", tokens_.size(),
          T_, T_ + 1);
  const auto [least, most] = std::minmax_element(tokens_.begin(), tokens_.end());
  require(*least >= 0, "a token id is {}", *least);
  vocab_ = std::int64_t{*most} + 1;
}

void TokenSource::training_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const {
  held_out_sequence(tokens, targets, index % held_out_count());
}

void TokenSource::held_out_sequence(std::int32_t* tokens, std::int32_t* targets, std::int64_t index) const {
  std::copy_n(tokens_.begin() + index * T_, T_, tokens);
  std::copy_n(tokens_.begin() + index * T_ + 1, T_, targets);
}

std::uint64_t TokenSource::fingerprint() const {
  std::uint64_t hash = tokens_.size();
  for (const std::int32_t token : tokens_) hash = RandomStream(hash, static_cast<std::uint64_t>(token), 0).next();
  return hash;
}

std::string TokenSource::description() const { return fmt::format("{} token ids", tokens_.size()); }

std::vector<std::int32_t> read_token_ids(const std::string& path) {
  const io::Array array = io::read_npy(path);
  const bool wide = array.dtype == DType::i64;
  if (array.shape.size() != 1 || (!wide && array.dtype != DType::i32)) {
    io::fail(path, "{} of {}, not a list of token ids in i32 or i64", io::shape_text(array.shape),
             dtype_name(array.dtype));
  }
  std::vector<std::int32_t> out;
  for (std::int64_t i = 0; i < array.numel(); ++i) {
    std::int64_t id = 0;
    if (wide) {
      std::memcpy(&id, array.data.get() + i * sizeof(id), sizeof(id));
    } else {
      std::int32_t narrow = 0;
      std::memcpy(&narrow, array.data.get() + i * sizeof(narrow), sizeof(narrow));
      id = narrow;
    }
    if (id < 0 || id > std::numeric_limits<std::int32_t>::max()) io::fail(path, "element {} is {}, no token id", i, id);
    out.push_back(static_cast<std::int32_t>(id));
  }
  return out;
}

}  // namespace headgate::train
