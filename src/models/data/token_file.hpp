// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "models/data/corpus.hpp"
#include "models/io/mapped_file.hpp"
#include "models/tokenize/tokenizer_file.hpp"

// The ids of a text, which a run encodes once. Numbers are little-endian:
//   header   "headgate-tokens1", the tokenizer's hash (16 characters), the text's fingerprint (u64), the bytes of an
//            id, 2 or 4 (u32), the vocabulary (u32)
//   records  for each token its id and the bytes of text that it stands for, each a u16 if the vocabulary has at most
//            65536 ids, a u32 otherwise
//   trailer  bytes of the text without a token (u64), io::Checksum of all before it (16 characters)

namespace headgate::train {

/// Says which tokenizer read which text.
struct TokenFileKey {
  std::string tokenizer;   ///< TokenizerFile::hash
  std::uint64_t text = 0;  ///< Corpus::fingerprint

  friend bool operator==(const TokenFileKey&, const TokenFileKey&) = default;
};

/// Tokenizes each file of the corpus as a text of its own, without what the tokenizer puts around it, and writes the
/// ids to `path` atomically. end_of_text() follows each file if the tokenizer has it. A byte that several tokens share
/// counts for the first of them. Memory does not grow with the text. Throws io::FileError.
void write_token_file(const std::string& path, const Corpus& corpus, const tokenize::TokenizerFile& tokenizer);

/// A file of ids, mapped into memory.
class TokenFile {
 public:
  /// Checks everything in the file. Throws io::FileError for a file that is not one, truncated or damaged.
  explicit TokenFile(const std::string& path);

  const TokenFileKey& key() const { return key_; }
  std::int64_t size() const { return size_; }  ///< in tokens
  std::int64_t vocab() const { return vocab_; }
  std::uint64_t left_out() const { return left_out_; }  ///< bytes of the text without a token

  /// out(count) = ids [begin, begin + count), which must lie in the file. Throws io::FileError if the file has changed
  /// so that one of them is out of the vocabulary.
  void copy(std::int32_t* out, std::int64_t begin, std::int64_t count) const;
  /// Returns the bytes of text that tokens [begin, begin + count) stand for.
  std::int64_t text_bytes(std::int64_t begin, std::int64_t count) const;
  /// Returns the first of the last tokens that stand for at least `bytes` bytes of text; 0 if all do not.
  std::int64_t begin_of_tail(std::int64_t bytes) const;

 private:
  struct Record {
    std::uint32_t id, bytes;
  };

  void read_header();
  void check_records() const;
  Record record(std::int64_t index) const;

  io::MappedFile file_;
  TokenFileKey key_;
  std::int64_t id_bytes_ = 0;
  std::int64_t size_ = 0;
  std::int64_t vocab_ = 0;
  std::uint64_t left_out_ = 0;
};

}  // namespace headgate::train
