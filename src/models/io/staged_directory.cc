// SPDX-License-Identifier: Apache-2.0
#include "models/io/staged_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <random>
#include <system_error>
#include <utility>

#include "models/io/directory_entries.hpp"
#include "models/io/input_file.hpp"
#include "models/io/links.hpp"

namespace headgate::io {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSuffix = ".new";
// Leaves room for the 14 bytes that a staging name adds; the file system's limit NAME_MAX is 255.
constexpr std::size_t kMaxName = 240;

std::string old_name(const fs::path& target) {
  return (target.parent_path() / fmt::format(".{}.old", target.filename().string().substr(0, kMaxName))).string();
}

/// Resolves symbolic links and removes a trailing slash.
fs::path resolved(const std::string& path) {
  std::error_code error;
  fs::path target = fs::absolute(path, error);
  if (!target.has_filename()) target = target.parent_path();
  target = follow_links(target, error).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();
  return target;
}

/// Returns the permissions of a file or directory, or nullopt if it does not exist or is a symbolic link.
std::optional<mode_t> permissions_of(const std::string& path) {
  constexpr mode_t kPermissions = 0777;
  struct stat facts {};
  if (::lstat(path.c_str(), &facts) != 0 || S_ISLNK(facts.st_mode)) return std::nullopt;
  return facts.st_mode & kPermissions;
}

int open_directory(const std::string& path) { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }

/// Returns whether `entry` has the form of a temporary name that open_staging() makes for the target `name`.
bool is_staging_name(const std::string& entry, const std::string& name) {
  const std::string front = fmt::format(".{}.", name.substr(0, kMaxName));
  constexpr std::size_t kDigits = 8;
  return entry.size() == front.size() + kDigits + std::strlen(kSuffix) && entry.starts_with(front) &&
         entry.ends_with(kSuffix);
}

}  // namespace

std::string present_directory(const std::string& target) {
  std::error_code error;
  const fs::path there = resolved(target);
  if (fs::exists(fs::symlink_status(there, error))) return target;
  const std::string old = old_name(there);
  return fs::is_directory(old, error) ? old : target;
}

void check_replaceable(const std::string& target, const std::vector<std::string>& names) {
  std::error_code error;
  const fs::path there = resolved(target);
  const fs::file_status status = fs::symlink_status(there, error);
  if (!fs::exists(status)) return;
  if (!fs::is_directory(status)) fail<NotReplaceable>(target, "cannot write: not a directory");
  const auto entries = directory_entries(there, error);
  if (error) fail<WriteError>(target, "cannot write: {}", error.message());
  for (const auto& entry : entries) {
    const std::string file = entry.path().filename().string();
    if (std::find(names.begin(), names.end(), file) == names.end()) {
      fail<NotReplaceable>(target, "is not replaced: '{}' in it is not part of a checkpoint; move it away",
                           printable(file));
    }
  }
}

StagedDirectory::StagedDirectory(const std::string& target, std::vector<std::string> names)
    : target_(target), names_(std::move(names)) {
  const fs::path path = resolved(target);
  parent_ = path.parent_path().string();
  name_ = path.filename().string();
  if (name_.empty() || name_ == "." || name_ == "..") fail<WriteError>(target_, "cannot write: no directory name");
  resolved_ = path.string();
  old_ = old_name(path);
  std::error_code error;
  fs::create_directories(parent_, error);
  if (error) fail<WriteError>(target_, "cannot write: {}", error.message());
  check_replaceable(target_, names_);
  remove_abandoned();
  open_staging();
}

StagedDirectory::~StagedDirectory() {
  if (!path_.empty()) remove_known(path_);
  if (lock_ >= 0) ::close(lock_);
}

void StagedDirectory::fail_with_reason() const { fail<WriteError>(target_, "cannot write: {}", std::strerror(errno)); }

void StagedDirectory::open_staging() {
  constexpr int kAttempts = 16;
  std::random_device random;
  for (int i = 0; i < kAttempts; ++i) {
    const std::string path = fmt::format("{}/.{}.{:08x}{}", parent_, name_.substr(0, kMaxName), random(), kSuffix);
    UnfinishedPath directory(path, PathKind::directory);
    const auto mode = permissions_of(resolved_);
    if (::mkdir(path.c_str(), mode ? *mode | S_IRWXU : 0777) == 0) {
      path_ = path;
      unfinished_.push_back(std::move(directory));
      for (const std::string& name : names_) unfinished_.emplace_back(fmt::format("{}/{}", path, name), PathKind::file);
      if (lock_staging()) return;
      unfinished_.clear();
      path_.clear();
    } else if (errno != EEXIST) {
      fail_with_reason();
    }
  }
  fail<WriteError>(target_, "cannot write: no free temporary name");
}

/// Locks the new directory path_. Returns false if another process has removed the directory as abandoned. This can
/// happen while the directory is not locked.
bool StagedDirectory::lock_staging() {
  lock_ = open_directory(path_);
  if (lock_ < 0 && errno != ENOENT) fail_with_reason();
  if (lock_ < 0) return false;
  // Waits if another process holds the lock, because that process may be removing the directory. A file system without
  // locks needs no wait: remove_abandoned() removes only directories that it can lock.
  while (::flock(lock_, LOCK_EX) != 0 && errno == EINTR) continue;
  struct stat facts {};
  if (::lstat(path_.c_str(), &facts) == 0 || errno != ENOENT) return true;
  ::close(std::exchange(lock_, -1));
  return false;
}

void StagedDirectory::remove_abandoned() const {
  std::error_code error;
  for (const auto& entry : directory_entries(parent_, error)) {
    if (!is_staging_name(entry.path().filename().string(), name_)) continue;
    const int descriptor = open_directory(entry.path().string());
    if (descriptor < 0) continue;
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) remove_known(entry.path().string());
    ::close(descriptor);
  }
}

void StagedDirectory::commit(Replacing replacing) {
  check_replaceable(target_, names_);
  keep_permissions();
  if (::fsync(lock_) != 0) fail_with_reason();
  if (replacing == Replacing::two_renames || !exchange()) rename_twice();
  sync_parent();
  remove_known(path_);  // path_ is the old directory after an exchange; otherwise it does not exist
  remove_known(old_);
  unfinished_.clear();
  path_.clear();
}

/// Copies the permissions of the old directory and its files to the new ones. Ignores errors, because some file systems
/// have no permissions.
void StagedDirectory::keep_permissions() const {
  for (const std::string& name : names_) {
    const auto mode = permissions_of((fs::path(resolved_) / name).string());
    if (mode) ::chmod((fs::path(path_) / name).c_str(), *mode);
  }
  if (const auto mode = permissions_of(resolved_)) ::fchmod(lock_, *mode);
}

/// Atomically exchanges the new directory and the old one. Returns false if the file system does not support this.
bool StagedDirectory::exchange() const {
  if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, resolved_.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == ENOENT) {  // there is no old directory to exchange with
    if (::rename(path_.c_str(), resolved_.c_str()) == 0) return true;
    fail_with_reason();
  }
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) fail_with_reason();
  return false;
}

void StagedDirectory::rename_twice() const {
  std::error_code error;
  if (fs::exists(fs::symlink_status(resolved_, error))) {
    remove_known(old_);
    if (::rename(resolved_.c_str(), old_.c_str()) != 0) fail_with_reason();
    sync_parent();
  }
  if (::rename(path_.c_str(), resolved_.c_str()) != 0) fail_with_reason();
}

/// Removes the known files and all temporary files from a directory. Then removes the directory itself if it is empty.
void StagedDirectory::remove_known(const std::string& directory) const {
  for (const std::string& name : names_) ::unlink((fs::path(directory) / name).c_str());
  // Removes temporary files of StagedFile, which a killed process leaves behind on file systems without O_TMPFILE.
  std::error_code error;
  for (const auto& entry : directory_entries(directory, error)) {
    const std::string file = entry.path().filename().string();
    if (file.starts_with('.') && file.ends_with(".tmp")) fs::remove(entry.path(), error);
  }
  ::rmdir(directory.c_str());
}

void StagedDirectory::sync_parent() const {
  const int descriptor = open_directory(parent_);
  if (descriptor < 0) return;  // the process may write to the directory, but not read it
  ::fsync(descriptor);
  ::close(descriptor);
}

}  // namespace headgate::io
