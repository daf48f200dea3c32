// SPDX-License-Identifier: Apache-2.0
#include "models/io/staged_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include "models/io/links.hpp"

namespace headgate::io {
namespace {

constexpr mode_t kPermissions = 0777;

std::string directory_of(const std::string& target) {
  const std::string directory = std::filesystem::path(target).parent_path().string();
  return directory.empty() ? "." : directory;
}

std::string random_name(const std::string& directory, const std::string& target) {
  std::random_device random;
  const std::string name = std::filesystem::path(target).filename().string();
  // File systems limit names to 255 bytes (NAME_MAX). The additions to `name` take 14 bytes.
  return fmt::format("{}/.{}.{:08x}.tmp", directory, name.substr(0, 240), random());
}

/// Resolves symbolic links. Throws WriteError if something other than a regular file exists at the path.
std::string resolved(const std::string& path) {
  namespace fs = std::filesystem;
  if (!fs::path(path).has_filename()) fail<WriteError>(path, "cannot write: no file name");
  std::error_code error;
  // Checks the kind of file before following links, because links to pipes in /proc have targets that do not exist.
  const fs::file_status there = fs::status(path, error);
  if (fs::exists(there) && !fs::is_regular_file(there)) fail<WriteError>(path, "cannot write: not a regular file");
  const fs::path target = follow_links(path, error);
  if (error) fail<WriteError>(path, "cannot write: {}", error.message());
  return target.string();
}

/// Throws WriteError for `path`. A call in `directory` has failed, and `reason` is its errno.
[[noreturn]] void fail_in(const std::string& directory, const std::string& path, int reason) {
  if (reason == ENOENT) fail<WriteError>(path, "cannot write: there is no directory {}", directory);
  fail<WriteError>(path, "cannot write: {}", std::strerror(reason));
}

}  // namespace

void check_writable(const std::string& path) {
  const std::string directory = directory_of(resolved(path));
  const std::string inside = directory + "/.";  // "/." makes faccessat() fail if the path is a file
  if (::faccessat(AT_FDCWD, inside.c_str(), W_OK | X_OK, AT_EACCESS) != 0) fail_in(directory, path, errno);
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0 && errno == ENAMETOOLONG) fail_in(directory, path, errno);
}

StagedFile::StagedFile(const std::string& path, Staging staging, const std::string& stage_in)
    : path_(path), target_(resolved(path)), stage_in_(stage_in.empty() ? directory_of(target_) : stage_in) {
  if (staging == Staging::automatic) open_nameless();
  if (descriptor_ < 0) open_named();
  // Copies the mode of the old file before anything is written. The new content of a private file is thus never
  // readable for others.
  struct stat old {};
  if (::stat(target_.c_str(), &old) == 0) ::fchmod(descriptor_, old.st_mode & kPermissions);
}

StagedFile::StagedFile(StagedFile&& other) noexcept
    : path_(std::move(other.path_)),
      target_(std::move(other.target_)),
      stage_in_(std::move(other.stage_in_)),
      temporary_(std::exchange(other.temporary_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)),
      flushed_(other.flushed_),
      unfinished_(std::move(other.unfinished_)) {}

StagedFile::~StagedFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void StagedFile::open_nameless() {
#ifdef O_TMPFILE
  // give_name() needs /proc to give a nameless file its name.
  if (::access("/proc/self/fd", X_OK) != 0) return;
  descriptor_ = ::open(stage_in_.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
#endif
}

void StagedFile::open_named() {
  constexpr int kAttempts = 16;
  for (int i = 0; i < kAttempts && descriptor_ < 0; ++i) {
    temporary_ = random_name(stage_in_, target_);
    unfinished_ = UnfinishedPath(temporary_, PathKind::file);
    descriptor_ = ::open(temporary_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (descriptor_ >= 0) return;
    const int reason = errno;
    temporary_.clear();
    unfinished_.forget();
    if (reason != EEXIST) fail_in(stage_in_, path_, reason);
  }
  fail<WriteError>(path_, "cannot write: no free temporary name");
}

void StagedFile::write(const void* data, std::size_t bytes) {
  constexpr std::size_t kMaxWrite = std::size_t{1} << 30;
  flushed_ = false;
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = ::write(descriptor_, at, std::min(bytes, kMaxWrite));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail<WriteError>(path_, "cannot write: {}", std::strerror(errno));
    at += put;
    bytes -= static_cast<std::size_t>(put);
  }
}

void StagedFile::flush() {
  if (::fsync(descriptor_) != 0) fail<WriteError>(path_, "cannot write: {}", std::strerror(errno));
  flushed_ = true;
}

void StagedFile::give_name() {
  const std::string source = fmt::format("/proc/self/fd/{}", descriptor_);
  if (::linkat(AT_FDCWD, source.c_str(), AT_FDCWD, target_.c_str(), AT_SYMLINK_FOLLOW) == 0) return;
  if (errno != EEXIST) fail<WriteError>(path_, "cannot write: {}", std::strerror(errno));
  // Gives the file a temporary name first, because rename() can replace an existing file and linkat() cannot.
  const std::string name = random_name(stage_in_, target_);
  unfinished_ = UnfinishedPath(name, PathKind::file);
  if (::linkat(AT_FDCWD, source.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) != 0) {
    fail<WriteError>(path_, "cannot write: {}", std::strerror(errno));
  }
  temporary_ = name;
}

void StagedFile::commit() {
  if (!flushed_) flush();
  if (temporary_.empty()) give_name();
  if (!temporary_.empty()) {
    if (::rename(temporary_.c_str(), target_.c_str()) != 0)
      fail<WriteError>(path_, "cannot write: {}", std::strerror(errno));
    temporary_.clear();
  }
  unfinished_.forget();
  ::close(std::exchange(descriptor_, -1));
}

void write_text(const std::string& path, std::string_view text) {
  StagedFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace headgate::io
