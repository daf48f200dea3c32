// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "models/data/corpus.hpp"
#include "models/io/mapped_file.hpp"
#include "models/tokenize/tokenizer_file.hpp"

// Defines the file that stores the token ids of a text, so that a run tokenizes only once. Numbers are little-endian.
// The file has three sections:
// - Header: "headgate-tokens1", the tokenizer's hash (16 characters), the text's fingerprint (u64), the size of an id
//   in bytes (u32), and the size of the vocabulary (u32).
// - Records: for each token, its id and the number of text bytes that it represents. Both numbers are u16 if the
//   vocabulary has at most 65536 ids, otherwise u32.
// - Trailer: the number of text bytes without a token (u64), then the io::Checksum of all earlier bytes of the file
//   (16 characters).

namespace headgate::train {

/// Identifies the tokenizer and the text of a token file.
struct TokenFileKey {
  std::string tokenizer;   ///< TokenizerFile::hash
  std::uint64_t text = 0;  ///< Corpus::fingerprint

  friend bool operator==(const TokenFileKey&, const TokenFileKey&) = default;
};

/// Tokenizes each file of the corpus separately and writes the ids to `path` atomically. Omits the special tokens that
/// the tokenizer puts around a text. Writes end_of_text() after each file if the tokenizer has such a token. If several
/// tokens share a byte, only the first token's byte count includes the byte. Uses O(1) memory. Throws io::FileError.
void write_token_file(const std::string& path, const Corpus& corpus, const tokenize::TokenizerFile& tokenizer);

/// A memory-mapped file of token ids.
class TokenFile {
 public:
  /// Maps the file and checks its header, checksum and ids. Throws io::FileError if the file is damaged, truncated or
  /// not a token file.
  explicit TokenFile(const std::string& path);

  const TokenFileKey& key() const { return key_; }
  std::int64_t size() const { return size_; }  ///< in tokens
  std::int64_t vocab() const { return vocab_; }
  /// Returns the number of bytes in the text for which the tokenizer has no token.
  std::uint64_t left_out() const { return left_out_; }

  /// Copies ids [begin, begin + count) to out(count). The range must lie in the file. Throws io::FileError if the file
  /// has changed and one of these ids is outside the vocabulary.
  void copy(std::int32_t* out, std::int64_t begin, std::int64_t count) const;
  /// Returns the number of text bytes that tokens [begin, begin + count) represent.
  std::int64_t text_bytes(std::int64_t begin, std::int64_t count) const;
  /// Returns the largest `begin` for which tokens [begin, size()) represent at least `bytes` bytes of text. Returns 0
  /// if all tokens together represent fewer bytes.
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
