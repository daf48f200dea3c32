// SPDX-License-Identifier: Apache-2.0
#include "support/allocations.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HEADGATE_ALLOCATIONS_NOT_COUNTED
#endif
#endif

#ifdef HEADGATE_ALLOCATIONS_NOT_COUNTED

namespace headgate::support {

std::size_t allocations() { return 0; }
std::size_t take_largest_allocation() { return 0; }
bool allocations_are_counted() { return false; }

}  // namespace headgate::support

#else

namespace {

std::atomic<std::size_t> count{0}, largest{0};

void* counted_or_null(std::size_t bytes, std::size_t align) noexcept {
  ++count;
  std::size_t before = largest;
  while (before < bytes && !largest.compare_exchange_weak(before, bytes)) continue;
  return std::aligned_alloc(align, (bytes + align - 1) / align * align);
}

void* counted(std::size_t bytes, std::size_t align) {
  void* data = counted_or_null(bytes, align);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t align) {
  return counted(bytes, static_cast<std::size_t>(align));
}
void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {  // std::stable_sort's
  return counted_or_null(bytes, alignof(std::max_align_t));
}
void* operator new(std::size_t bytes, std::align_val_t align, const std::nothrow_t& /*tag*/) noexcept {
  return counted_or_null(bytes, static_cast<std::size_t>(align));
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, std::size_t, std::align_val_t) noexcept { std::free(data); }

namespace headgate::support {

std::size_t allocations() { return count; }
std::size_t take_largest_allocation() { return largest.exchange(0); }
bool allocations_are_counted() { return true; }

}  // namespace headgate::support

#endif
