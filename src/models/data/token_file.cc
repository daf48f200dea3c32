// SPDX-License-Identifier: Apache-2.0
#include "models/data/token_file.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "models/data/corpus_tokens.hpp"
#include "models/io/safetensors.hpp"
#include "models/io/staged_file.hpp"

namespace headgate::train {

namespace {

constexpr std::string_view kMagic = "headgate-tokens1";
constexpr std::int64_t kHashBytes = 16;
constexpr std::int64_t kMostNarrow = std::int64_t{1} << 16;  ///< largest vocabulary with ids that fit into u16

struct Header {
  std::array<char, kHashBytes> magic, tokenizer;
  std::uint64_t text;
  std::uint32_t id_bytes, vocab;
};
static_assert(sizeof(Header) == 48);

struct Trailer {
  std::uint64_t left_out;
  std::array<char, kHashBytes> checksum;
};
static_assert(sizeof(Trailer) == 24);

std::string_view text_of(const std::array<char, kHashBytes>& characters) {
  return {characters.data(), characters.size()};
}

std::array<char, kHashBytes> characters_of(std::string_view text) {
  std::array<char, kHashBytes> out{};
  std::copy_n(text.begin(), std::min(text.size(), out.size()), out.begin());
  return out;
}

/// Writes a file that ends with a checksum of its content.
class Writer {
 public:
  Writer(const std::string& path, std::uint32_t id_bytes) : file_(path), id_bytes_(id_bytes) {}

  void write(const void* data, std::size_t bytes) {
    checksum_.add(data, bytes);
    file_.write(data, bytes);
  }

  /// Appends a token that represents `bytes` bytes of text.
  void add(std::int32_t id, std::size_t bytes) {
    const std::uint32_t most =
        id_bytes_ == 2 ? std::numeric_limits<std::uint16_t>::max() : std::numeric_limits<std::uint32_t>::max();
    const auto counted = static_cast<std::uint32_t>(std::min<std::size_t>(bytes, most));
    for (const std::uint32_t number : {static_cast<std::uint32_t>(id), counted}) {
      const char* const begin = reinterpret_cast<const char*>(&number);  // little-endian
      buffer_.insert(buffer_.end(), begin, begin + id_bytes_);
    }
    constexpr std::size_t kBuffer = std::size_t{1} << 20;
    if (buffer_.size() >= kBuffer) flush();
  }

  void flush() {
    write(buffer_.data(), buffer_.size());
    buffer_.clear();
  }

  void finish(std::uint64_t left_out) {
    flush();
    write(&left_out, sizeof(left_out));
    const std::string sum = checksum_.text();
    file_.write(sum.data(), sum.size());
    file_.commit();
  }

 private:
  io::StagedFile file_;
  io::Checksum checksum_;
  std::vector<char> buffer_;
  std::uint32_t id_bytes_;
};

}  // namespace

void write_token_file(const std::string& path, const Corpus& corpus, const tokenize::TokenizerFile& tokenizer) {
  const std::int32_t vocab = tokenizer.tokenizer->vocab();
  const std::int32_t end = tokenize::end_of_text(*tokenizer.tokenizer);
  const Header header{.magic = characters_of(kMagic),
                      .tokenizer = characters_of(tokenizer.hash),
                      .text = corpus.fingerprint(),
                      .id_bytes = vocab <= kMostNarrow ? 2U : 4U,
                      .vocab = static_cast<std::uint32_t>(vocab)};
  Writer writer(path, header.id_bytes);
  writer.write(&header, sizeof(header));
  std::uint64_t left_out = 0;
  for (std::size_t file = 0; file < corpus.files(); ++file) {
    left_out +=
        for_tokens(corpus, {corpus.begin_of(file), corpus.begin_of(file + 1)}, {0, corpus.size()}, *tokenizer.tokenizer,
                   [&writer](std::int32_t id, std::size_t bytes) { writer.add(id, bytes); });
    if (end != tokenize::kNoToken) writer.add(end, 0);
  }
  writer.finish(left_out);
}

TokenFile::TokenFile(const std::string& path) : file_(path) {
  file_.check_whole();
  read_header();
  check_records();
}

void TokenFile::read_header() {
  const std::string& path = file_.path();
  Header header{};
  constexpr std::int64_t kAround = sizeof(Header) + sizeof(Trailer);
  if (file_.size() < kAround) io::fail(path, "is not a file of token ids: it has {} bytes", file_.size());
  std::memcpy(&header, file_.data(), sizeof(header));
  if (text_of(header.magic) != kMagic) io::fail(path, "is not a file of token ids");
  if (header.id_bytes != 2 && header.id_bytes != 4) io::fail(path, "ids of {} bytes, not 2 or 4", header.id_bytes);
  if (header.vocab < 1 || header.vocab > tokenize::kMostTokens) {
    io::fail(path, "a vocabulary of {} ids, not 1 to {}", header.vocab, tokenize::kMostTokens);
  }
  key_ = {std::string(text_of(header.tokenizer)), header.text};
  id_bytes_ = header.id_bytes;
  vocab_ = header.vocab;
  const std::int64_t bytes = file_.size() - kAround;
  if (bytes % (2 * id_bytes_) != 0) io::fail(path, "is truncated: {} bytes are no whole number of tokens", bytes);
  size_ = bytes / (2 * id_bytes_);
  Trailer trailer{};
  std::memcpy(&trailer, file_.data() + file_.size() - sizeof(trailer), sizeof(trailer));
  left_out_ = trailer.left_out;
  // Checks first that the checksum is hexadecimal. A sparse file extended with zeros thus fails before it is read
  // whole.
  const bool is_sum = text_of(trailer.checksum).find_first_not_of("0123456789abcdef") == std::string_view::npos;
  if (!is_sum) io::fail(path, "is damaged: it does not end in a checksum");
  io::Checksum checksum;
  checksum.add(file_.data(), static_cast<std::size_t>(file_.size() - kHashBytes));
  if (checksum.text() != text_of(trailer.checksum)) io::fail(path, "is damaged: its checksum is another");
}

void TokenFile::check_records() const {
  for (std::int64_t i = 0; i < size_; ++i) {
    const Record r = record(i);
    if (r.id >= vocab_) io::fail(file_.path(), "id {} is {}, not below {}", i, r.id, vocab_);
  }
}

TokenFile::Record TokenFile::record(std::int64_t index) const {
  const std::uint8_t* const at = file_.data() + sizeof(Header) + 2 * id_bytes_ * index;
  if (id_bytes_ == 2) {
    std::array<std::uint16_t, 2> narrow{};
    std::memcpy(narrow.data(), at, sizeof(narrow));
    return {narrow[0], narrow[1]};
  }
  Record out{};
  std::memcpy(&out, at, sizeof(out));
  return out;
}

void TokenFile::copy(std::int32_t* out, std::int64_t begin, std::int64_t count) const {
  file_.check_whole();
  for (std::int64_t i = begin; i < begin + count; ++i) {
    const Record r = record(i);
    if (r.id >= vocab_) io::fail(file_.path(), "has changed: id {} is {}, not below {}", i, r.id, vocab_);
    *out++ = static_cast<std::int32_t>(r.id);
  }
}

std::int64_t TokenFile::text_bytes(std::int64_t begin, std::int64_t count) const {
  file_.check_whole();
  std::int64_t bytes = 0;
  for (std::int64_t i = begin; i < begin + count; ++i) bytes += record(i).bytes;
  return bytes;
}

std::int64_t TokenFile::begin_of_tail(std::int64_t bytes) const {
  file_.check_whole();
  std::int64_t begin = size_;
  while (begin > 0 && bytes > 0) bytes -= record(--begin).bytes;
  return begin;
}

}  // namespace headgate::train
