// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace headgate {

/// An aligned block of memory. Blocks of at least kHugePage_bytes request huge pages, for two reasons. Kernels read
/// packed operands with large strides, which would need many TLB entries for small pages. Page faults for 4 KiB pages
/// in every call take measurable time.
class Block {
 public:
  static constexpr std::size_t kAlign_bytes = 128;  // two cache lines, because CPUs prefetch pairs of lines
  static constexpr std::size_t kHugePage_bytes = std::size_t{2} << 20;

  Block() = default;
  explicit Block(std::size_t bytes) : bytes_(bytes), align_(bytes >= kHugePage_bytes ? kHugePage_bytes : kAlign_bytes) {
    data_ = ::operator new (bytes_, std::align_val_t{align_});
#if defined(__linux__)
    // madvise() is a hint: if Linux declines, the block has small pages.
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

/// Scratch memory of a call. The destructor keeps the memory block for the thread's next calls. A thread keeps at most
/// kMostKept blocks, of at most kKept_bytes in total. It keeps several blocks, because a call may use several arenas at
/// a time.
class Arena {
 public:
  /// Limit of the memory that a thread keeps. It suffices for the operands that the attention kernels pack at a time
  /// (kPackedBudget_bytes, 24 MiB) and for the scratch of 20 threads. In the backward pass with D = 128, a thread needs
  /// 0.4 MiB.
  static constexpr std::size_t kKept_bytes = std::size_t{32} << 20;

  /// Throws std::bad_alloc when memory runs out.
  explicit Arena(std::size_t bytes) : bytes_(bytes) {
    Block* const fitting = smallest_fitting(bytes);
    if (fitting != nullptr) {
      block_ = std::move(*fitting);
      return;
    }
    // Before allocating, frees the largest kept block that is too small. The process thus never holds both this block
    // and the new one.
    Block* too_small = nullptr;
    for (Block& block : kept()) {
      if (block.bytes() < bytes && (too_small == nullptr || block.bytes() > too_small->bytes())) too_small = &block;
    }
    if (too_small != nullptr) *too_small = Block();
    block_ = Block(bytes);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    std::size_t others = 0;
    Block* smallest = kept().data();
    for (Block& block : kept()) {
      others += block.bytes();
      if (block.bytes() < smallest->bytes()) smallest = &block;
    }
    others -= smallest->bytes();  // this block replaces the smallest kept one
    if (others + block_.bytes() <= kKept_bytes && block_.bytes() > smallest->bytes()) *smallest = std::move(block_);
  }

  std::byte* data() const { return block_.data(); }
  std::size_t bytes() const { return bytes_; }

  /// Frees the blocks kept by the calling thread.
  static void release() {
    for (Block& block : kept()) block = Block();
  }

 private:
  static constexpr std::size_t kMostKept = 4;
  /// A request reuses a kept block only if it needs at least 1/kLeastPart of the block. Small requests thus leave large
  /// blocks to other arenas of the same call.
  static constexpr std::size_t kLeastPart = 8;

  static std::array<Block, kMostKept>& kept() {
    thread_local std::array<Block, kMostKept> blocks;
    return blocks;
  }

  static Block* smallest_fitting(std::size_t bytes) {
    Block* found = nullptr;
    for (Block& block : kept()) {
      const bool fits = block.bytes() >= bytes && block.bytes() / kLeastPart <= bytes;
      if (fits && (found == nullptr || block.bytes() < found->bytes())) found = &block;
    }
    return found;
  }

  std::size_t bytes_;
  Block block_;
};

}  // namespace headgate
