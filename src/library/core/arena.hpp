// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace headgate {

/// One aligned block, advised to lie on huge pages when it is large: packed operands are read by stride, and the cost
/// of faulting 4 KiB pages in anew at every call is measurable.
class Block {
 public:
  static constexpr std::size_t kAlign_bytes = 128;  // two cache lines: neighbours never share a prefetch pair
  static constexpr std::size_t kHugePage_bytes = std::size_t{2} << 20;

  Block() = default;
  explicit Block(std::size_t bytes) : bytes_(bytes), align_(bytes >= kHugePage_bytes ? kHugePage_bytes : kAlign_bytes) {
    data_ = ::operator new (bytes_, std::align_val_t{align_});
#if defined(__linux__)
    // Advice only: if the kernel declines, the block lies on small pages.
    if (align_ == kHugePage_bytes) (void)madvise(data_, bytes_ / kHugePage_bytes * kHugePage_bytes, MADV_HUGEPAGE);
#endif
  }
  Block(Block&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)), align_(other.align_) {}
  Block& operator=(Block&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(align_, other.align_);
    return *this;
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() {
    if (data_ != nullptr) ::operator delete (data_, std::align_val_t{align_});
  }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t align_ = kAlign_bytes;
};

/// Scratch memory of one call. A block of up to kKept_bytes stays with the calling thread for its next call.
class Arena {
 public:
  /// What the attention kernels pack at a time (kPackedBudget_bytes, 24 MiB) and scratch for 20 threads: a thread of
  /// the backward pass takes 0.4 MiB at D = 128.
  static constexpr std::size_t kKept_bytes = std::size_t{32} << 20;

  /// Throws std::bad_alloc when memory runs out.
  explicit Arena(std::size_t bytes) : bytes_(bytes) {
    if (kept().bytes() >= bytes) {
      block_ = std::move(kept());
    } else {
      kept() = Block();  // too small: freed first, so that the process never holds both
      block_ = Block(bytes);
    }
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    if (block_.bytes() <= kKept_bytes && block_.bytes() > kept().bytes()) kept() = std::move(block_);
  }

  std::byte* data() const { return block_.data(); }
  std::size_t bytes() const { return bytes_; }

  /// Frees the block that the calling thread keeps.
  static void release() { Block dropped = std::move(kept()); }

 private:
  static Block& kept() {
    thread_local Block block;
    return block;
  }

  std::size_t bytes_;
  Block block_;
};

}  // namespace headgate
