// SPDX-License-Identifier: Apache-2.0
#include "models/io/mapped_file.hpp"
#include "models/io/missing_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>

namespace headgate::io {

/// Describes where a file is mapped. All regions form a list, which a signal handler in any thread may read at any
/// time. Regions are therefore reused, but never freed. The handler reads `path` only in the region that its thread was
/// accessing. That region's file is still mapped, so its path does not change.
struct MappedRegion {
  std::atomic<const std::uint8_t*> begin{nullptr};  ///< null if no file is mapped
  std::size_t bytes = 0;
  std::string path;
  MappedRegion* next = nullptr;
  MappedRegion* next_free = nullptr;
};

namespace {

std::atomic<MappedRegion*> g_regions{nullptr};
static_assert(std::atomic<MappedRegion*>::is_always_lock_free);
std::mutex g_free_mutex;
MappedRegion* g_free = nullptr;  // list of regions without a mapped file

/// Returns a region with `path` and `bytes` set, but with `begin` still null. Reuses a free region if possible.
MappedRegion* take_region(const std::string& path, std::size_t bytes) {
  std::string shown = shown_path(path);
  const std::lock_guard lock(g_free_mutex);
  MappedRegion* region = g_free;
  if (region != nullptr) {
    g_free = region->next_free;
  } else {
    region = new MappedRegion;
    region->next = g_regions.load();
    g_regions.store(region);
  }
  region->bytes = bytes;
  region->path = std::move(shown);
  return region;
}

void give_back(MappedRegion* region) noexcept {
  region->begin.store(nullptr);
  const std::lock_guard lock(g_free_mutex);
  region->next_free = g_free;
  g_free = region;
}

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
  if (file.number < 0 && errno == ENOENT) fail<MissingFile>(path, "cannot read: {}", std::strerror(errno));
  if (file.number < 0 || ::fstat(file.number, &facts) != 0) fail(path, "cannot read: {}", std::strerror(errno));
  if (!S_ISREG(facts.st_mode)) fail(path, "not a regular file");
  device_ = facts.st_dev;
  inode_ = facts.st_ino;
  size_ = facts.st_size;
  if (size_ == 0) return;
  region_ = take_region(path, static_cast<std::size_t>(size_));
  data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.number, 0);
  if (data_ == MAP_FAILED) {
    const int reason = errno;
    give_back(region_);
    fail(path, "cannot read: {}", std::strerror(reason));
  }
  region_->begin.store(data());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      device_(other.device_),
      inode_(other.inode_),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      region_(std::exchange(other.region_, nullptr)) {}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  give_back(region_);
  ::munmap(data_, size_);
}

void MappedFile::check_whole() const {
  struct stat now {};
  // If the path now refers to another file or to none, the mapped file still has all its bytes.
  if (::stat(path_.c_str(), &now) != 0 || now.st_dev != device_ || now.st_ino != inode_) return;
  if (now.st_size < size_) fail(path_, "shortened from {} to {} bytes while it was read", size_, now.st_size);
}

const char* mapped_path_at(const void* address) noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  for (const MappedRegion* region = g_regions.load(); region != nullptr; region = region->next) {
    const auto begin = reinterpret_cast<std::uintptr_t>(region->begin.load());
    if (begin != 0 && at >= begin && at - begin < region->bytes) return region->path.c_str();
  }
  return nullptr;
}

}  // namespace headgate::io
