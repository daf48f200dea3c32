// SPDX-License-Identifier: Apache-2.0
#include "models/io/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace headgate::io {
namespace {

struct Descriptor {
  int number = -1;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  struct stat facts {};
  if (file.number < 0 || ::fstat(file.number, &facts) != 0) fail(path, "cannot read: {}", std::strerror(errno));
  if (!S_ISREG(facts.st_mode)) fail(path, "not a regular file");
  device_ = facts.st_dev;
  inode_ = facts.st_ino;
  size_ = facts.st_size;
  if (size_ == 0) return;
  data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.number, 0);
  if (data_ == MAP_FAILED) {
    data_ = nullptr;
    fail(path, "cannot read: {}", std::strerror(errno));
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      device_(other.device_),
      inode_(other.inode_),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

void MappedFile::check_whole() const {
  struct stat now {};
  // If the path no longer exists or names another file, the mapped file is unchanged.
  if (::stat(path_.c_str(), &now) != 0 || now.st_dev != device_ || now.st_ino != inode_) return;
  if (now.st_size < size_) fail(path_, "shortened from {} to {} bytes while it was read", size_, now.st_size);
}

}  // namespace headgate::io
