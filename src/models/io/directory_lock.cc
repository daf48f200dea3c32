// SPDX-License-Identifier: Apache-2.0
#include "models/io/directory_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace headgate::io {
namespace {

/// Returns the owner of the lock on a directory, such as "process 123". Searches /proc/locks for the directory's device
/// and inode. A line there looks like "1: FLOCK ADVISORY WRITE 123 08:01:4567 0 EOF", with the device in hexadecimal.
/// Returns "another process" if no line matches, because some file systems report other device numbers.
std::string find_owner(int descriptor) {
  struct stat facts {};
  if (::fstat(descriptor, &facts) != 0) return "another process";
  const std::string place = fmt::format("{:02x}:{:02x}:{}", major(facts.st_dev), minor(facts.st_dev), facts.st_ino);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    std::string number, kind, mode, access, process, where;
    std::istringstream(line) >> number >> kind >> mode >> access >> process >> where;
    if (kind == "FLOCK" && where == place) return "process " + process;
  }
  return "another process";
}

}  // namespace

DirectoryLock::DirectoryLock(const std::string& path)
    : descriptor_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (descriptor_ < 0) fail(path, "cannot open: {}", std::strerror(errno));
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  if (errno != EWOULDBLOCK) {
    unavailable_ = std::strerror(errno);
    return;
  }
  const std::string holder = find_owner(descriptor_);
  ::close(descriptor_);
  fail(path, "in use by {}", holder);
}

DirectoryLock::~DirectoryLock() { ::close(descriptor_); }

}  // namespace headgate::io
