// SPDX-License-Identifier: Apache-2.0
#include "models/io/input_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "models/io/missing_file.hpp"

namespace headgate::io {
namespace {

constexpr std::size_t kMaxRead = std::size_t{1} << 30;
constexpr std::size_t kMostShown = 1024;  // maximum number of bytes of a path in a message

[[noreturn]] void refuse_unopened(const std::string& path, int reason) {
  if (reason == ENOENT) fail<MissingFile>(path, "cannot open: {}", std::strerror(reason));
  fail(path, "cannot open: {}", std::strerror(reason));
}

/// Calls take(to, bytes, done) until `bytes` bytes are read. `take` wraps read() or pread(), and `done` is the number
/// of bytes read so far.
template <class Take>
void read_all(const std::string& path, void* to, std::size_t bytes, const Take& take) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t got = take(static_cast<char*>(to) + done, std::min(bytes - done, kMaxRead), done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path, "cannot read: {}", std::strerror(errno));
    if (got == 0) fail(path, "became shorter while it was read");
    done += static_cast<std::size_t>(got);
  }
}

/// Returns `text` with some bytes written as \xNN: those for which plain(byte) is false.
template <class Plain>
std::string escaped(std::string_view text, const Plain& plain) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    out += plain(byte) ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text, std::size_t most) {
  const std::string out = escaped(text.substr(0, most), [](unsigned char c) { return c >= 0x20 && c < 0x7F; });
  return text.size() > most ? out + "…" : out;
}

std::string shown_path(std::string_view path) {
  const auto plain = [](unsigned char c) { return c >= 0x20 && c != 0x7F; };
  if (path.size() <= kMostShown) return escaped(path, plain);
  const auto inside = [path](std::size_t at) { return (static_cast<unsigned char>(path[at]) & 0xC0U) == 0x80U; };
  std::size_t end = kMostShown / 2, begin = path.size() - kMostShown / 2;
  while (end > 0 && inside(end)) --end;
  while (begin < path.size() && inside(begin)) ++begin;
  return fmt::format("{}…{} ({} bytes)", escaped(path.substr(0, end), plain), escaped(path.substr(begin), plain),
                     path.size());
}

InputFile::InputFile(const std::string& path) : path_(path) {
  // O_NONBLOCK avoids waiting for a writer if the path is a pipe.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) refuse_unopened(path_, errno);
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    fail(path_, "not a regular file");
  }
  size_ = static_cast<std::size_t>(status.st_size);
}

InputFile::~InputFile() { ::close(descriptor_); }

void InputFile::read(void* to, std::size_t bytes) const {
  read_all(path_, to, bytes,
           [this](char* at, std::size_t count, std::size_t) { return ::read(descriptor_, at, count); });
}

void InputFile::read_at(void* to, std::size_t bytes, std::size_t offset) const {
  read_all(path_, to, bytes, [this, offset](char* at, std::size_t count, std::size_t done) {
    return ::pread(descriptor_, at, count, static_cast<off_t>(offset + done));
  });
}

InputStream::InputStream(const std::string& path, std::size_t most)
    : path_(path), most_(most), file_(std::fopen(path.c_str(), "rb"), &std::fclose) {
  if (!file_) refuse_unopened(path, errno);
  struct stat status {};
  if (::fstat(::fileno(file_.get()), &status) != 0) fail(path, "cannot read: {}", std::strerror(errno));
  if (S_ISDIR(status.st_mode)) fail(path, "is a directory, not a file");
  if (S_ISREG(status.st_mode) && static_cast<std::size_t>(status.st_size) > most) refuse_size();
  constexpr std::size_t kPart = std::size_t{1} << 16;
  part_.resize(kPart);
}

void InputStream::refuse_size() const { fail(path_, "is larger than the limit of {} bytes", most_); }

std::string_view InputStream::next() {
  const std::size_t got = std::fread(part_.data(), 1, part_.size(), file_.get());
  if (got == 0 && std::ferror(file_.get()) != 0) fail(path_, "cannot read: {}", std::strerror(errno));
  done_ += got;
  if (done_ > most_) refuse_size();
  return std::string_view{part_}.substr(0, got);
}

std::string read_stream(const std::string& path, std::size_t most) {
  InputStream stream(path, most);
  std::string text;
  for (std::string_view part = stream.next(); !part.empty(); part = stream.next()) text += part;
  return text;
}

std::string read_text(const std::string& path, std::size_t most) {
  const InputFile file(path);
  if (file.size() > most) fail(path, "{} bytes; at most {} are read", file.size(), most);
  std::string text(file.size(), '\0');
  file.read(text.data(), text.size());
  return text;
}

}  // namespace headgate::io
