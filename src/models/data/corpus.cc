// SPDX-License-Identifier: Apache-2.0
#include "models/data/corpus.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "models/data/random.hpp"

namespace headgate::train {

namespace fs = std::filesystem;

namespace {

using io::MappedFile;

/// Number of bytes at the start of each file that must be UTF-8.
constexpr std::int64_t kCheckedBytes = std::int64_t{1} << 20;

/// Returns the offset of the first byte that is not UTF-8 within the first kCheckedBytes of a file. Returns the number
/// of checked bytes if all are UTF-8.
std::int64_t first_bad_checked(const MappedFile& file) {
  return first_bad_utf8(file.data(), std::min(file.size(), kCheckedBytes));
}

bool is_text(const MappedFile& file) { return first_bad_checked(file) == std::min(file.size(), kCheckedBytes); }

/// Returns the length in bytes of the UTF-8 character at text[0]. Returns 0 for a malformed character or a zero byte.
/// Returns −1 if the text ends within the character.
int character_bytes(const std::uint8_t* text, std::int64_t count) {
  const std::uint8_t lead = text[0];
  if (lead < 0x80) return lead == 0 ? 0 : 1;
  const int length = lead >= 0xC2 && lead < 0xE0   ? 2
                     : lead >= 0xE0 && lead < 0xF0 ? 3
                     : lead >= 0xF0 && lead < 0xF5 ? 4
                                                   : 0;
  // The range [low, high] of the second byte excludes overlong forms, surrogates and code points beyond U+10FFFF.
  const std::uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const std::uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (int i = 1; i < length; ++i) {
    if (i >= count) return -1;
    if (text[i] < (i == 1 ? low : 0x80) || text[i] > (i == 1 ? high : 0xBF)) return 0;
  }
  return length;
}

}  // namespace

Corpus::Corpus(const std::vector<std::string>& paths, const FileChoice& choice)
    : name_(fmt::format("{}", fmt::join(paths, ", "))) {
  for (const std::string& path : paths) {
    std::error_code ignored;  // MappedFile throws if the path cannot be read
    if (fs::is_directory(path, ignored)) {
      add_directory(path, choice);
    } else {
      MappedFile file(path);
      file.check_whole();
      if (!is_text(file)) {
        const std::int64_t bad = first_bad_checked(file);
        const int byte = file.data()[bad];
        io::fail(path, "not {}text: byte 0x{:02x} at offset {}", byte == 0 ? "" : "UTF-8 ", byte, bad);
      }
      add_file(std::move(file));
    }
  }
}

void Corpus::add_directory(const std::string& directory, const FileChoice& choice) {
  LeftOut left_out;
  bool any = false;
  for (const std::string& name : files_below(directory, choice, left_out)) {
    MappedFile file(name);
    file.check_whole();
    if (!is_text(file)) {
      left_out.not_text.push_back(name);
      continue;
    }
    any = true;
    add_file(std::move(file));
  }
  if (!any) {
    const std::vector<std::string> reasons = left_out.phrases(true);
    if (reasons.empty()) io::fail(directory, "no file in this directory");
    io::fail(directory, "no text in this directory, only {}", fmt::join(reasons, ", "));
  }
  for (auto list : {&LeftOut::not_text, &LeftOut::runs, &LeftOut::unmatched, &LeftOut::unreachable}) {
    (left_out_.*list).insert((left_out_.*list).end(), (left_out.*list).begin(), (left_out.*list).end());
  }
}

void Corpus::add_file(MappedFile file) {
  if (file.size() == 0) return;
  starts_.push_back(size_);
  size_ += file.size();
  files_.push_back(std::move(file));
}

std::size_t Corpus::file_at(std::int64_t position) const {
  const auto after = std::upper_bound(starts_.begin(), starts_.end(), position);
  return after - starts_.begin() - 1;
}

void Corpus::copy(std::int32_t* out, std::int64_t begin, std::int64_t count) const {
  for_pieces(begin, begin + count,
             [&out](const std::uint8_t* data, std::int64_t n) { out = std::copy_n(data, n, out); });
}

std::uint64_t Corpus::fingerprint() const {
  constexpr std::int64_t kSamples = 4096;
  std::uint64_t hash = mix64(static_cast<std::uint64_t>(size_));
  for (const MappedFile& file : files_) {
    file.check_whole();
    hash = mix64(hash ^ static_cast<std::uint64_t>(file.size()));
    const std::int64_t samples = std::min(file.size(), kSamples);
    for (std::int64_t i = 0; i < samples; ++i) {
      // Computes i · size / samples. The products cannot overflow, because there are at most 4096 samples.
      const std::int64_t at = file.size() / samples * i + file.size() % samples * i / samples;
      hash = mix64(hash ^ file.data()[at]);
    }
  }
  return hash;
}

std::vector<std::string> text_files(const std::vector<std::string>& paths, const FileChoice& choice) {
  std::vector<std::string> out;
  for (const std::string& path : paths) {
    std::error_code ignored;
    if (!fs::is_directory(path, ignored)) {
      out.push_back(path);
      continue;
    }
    LeftOut left_out;
    std::vector<std::string> files = files_below(path, choice, left_out);
    std::copy_if(files.begin(), files.end(), std::back_inserter(out),
                 [](const std::string& file) { return is_text(MappedFile(file)); });
  }
  return out;
}

std::int64_t first_bad_utf8(const std::uint8_t* text, std::int64_t count) {
  std::int64_t at = 0;
  while (at < count) {
    const int length = character_bytes(text + at, count - at);
    if (length == 0) return at;
    if (length < 0) return count;
    at += length;
  }
  return count;
}

}  // namespace headgate::train
