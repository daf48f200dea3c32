// SPDX-License-Identifier: Apache-2.0
#include "models/layers/blas.hpp"

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

#include "headgate/runtime.hpp"
#include "library/core/check.hpp"
#include "models/layers/blas_core.hpp"

namespace headgate::layers {
namespace {

// Address space that OpenBLAS 0.3.21 for x86 maps, as read from /proc/self/maps: a buffer for each thread that
// multiplies, which it keeps, and the library itself with those that it needs.
constexpr std::uint64_t kBuffer_bytes = (std::uint64_t{128} << 20) + 4096;
constexpr std::uint64_t kLibrary_bytes = std::uint64_t{48} << 20;

std::uint64_t bytes_of(std::int64_t buffers) { return static_cast<std::uint64_t>(buffers) * kBuffer_bytes; }

bool can_map(std::uint64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory != MAP_FAILED && munmap(memory, bytes) == 0;
}

/// Returns how many bytes of address space this process has left under `limit`.
std::uint64_t remaining_bytes(std::uint64_t limit) {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return limit - std::min(limit, pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)));
}

/// Throws Error unless `bytes` more can be mapped.
void require_space(std::uint64_t bytes, std::int64_t threads) {
  if (can_map(bytes)) return;
  constexpr std::uint64_t kMega = 1000 * 1000;
  rlimit limit{};
  const bool limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  const std::string of =
      limited ? fmt::format("address space for {} thread{}, and the limit (ulimit -v) leaves {} MB", threads,
                            threads == 1 ? "" : "s", remaining_bytes(limit.rlim_cur) / kMega)
              : fmt::format("memory for {} thread{}, which the system does not give", threads, threads == 1 ? "" : "s");
  throw Error(fmt::format("OpenBLAS needs {} MB of {}: {}{}", bytes / kMega + 1, of, limited ? "raise it" : "free some",
                          threads == 1 ? "" : " or use fewer threads"));
}

/// Sets an environment variable while OpenBLAS is loaded, because OpenBLAS reads it at that time, then restores it.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before, was_set_ = true;
    setenv(name, value.c_str(), 1);
  }
  ~Variable() {
    if (was_set_) {
      setenv(name_, before_.c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::string before_;
  bool was_set_ = false;
};

/// Loads OpenBLAS by name, along the run path of this program. If that fails, as in builds that are not installed,
/// tries its full path: under the address sanitizer the loader does not know whose run path to search.
void* open_library() {
  constexpr int kMode = RTLD_NOW | RTLD_LOCAL;
  const Variable one_thread("OPENBLAS_NUM_THREADS", "1");
  void* library = dlopen("libheadgate_blas.so", kMode);
  std::string reason = library == nullptr ? dlerror() : "";
#ifdef HEADGATE_BLAS_LIBRARY
  if (library == nullptr) library = dlopen(HEADGATE_BLAS_LIBRARY, kMode);
#endif
  require(library != nullptr, "OpenBLAS cannot be loaded: {}", reason);
  return library;
}

struct Library {
  BlasFunctions functions;
  // OpenBLAS exports these but does not declare them in its headers.
  void* (*take_buffer)(int);
  void (*return_buffer)(void*);
};

template <typename Function>
void find(Function& out, void* library, const char* name) {
  out = reinterpret_cast<Function>(dlsym(library, name));
  require(out != nullptr, "the OpenBLAS that was loaded has no {}", name);
}

Library library_of(void* library) {
  Library all{};
  BlasFunctions& out = all.functions;
  find(out.sgemm, library, "cblas_sgemm");
  find(out.dgemm, library, "cblas_dgemm");
  find(out.dsyev, library, "dsyev_");
  find(out.get_corename, library, "openblas_get_corename");
  find(out.get_config, library, "openblas_get_config");
  find(out.get_num_threads, library, "openblas_get_num_threads");
  find(out.set_num_threads, library, "openblas_set_num_threads");
  find(all.take_buffer, library, "blas_memory_alloc");
  find(all.return_buffer, library, "blas_memory_free");
  return all;
}

/// Loads OpenBLAS with kernels that suit the CPU. If OpenBLAS does not know the CPU, loads it again with other kernels
/// named. This has no effect in a process in which another library has loaded OpenBLAS too. `threads`: those of the
/// first caller.
Library load(std::int64_t threads) {
  constexpr const char* kCore = "OPENBLAS_CORETYPE";
  require_space(kLibrary_bytes + bytes_of(threads), threads);
  void* library = open_library();
  Library out = library_of(library);
  const std::string better(better_blas_core(out.functions.get_corename(), supported_targets()));
  if (!better.empty() && std::getenv(kCore) == nullptr) {
    dlclose(library);
    const Variable core(kCore, better);
    out = library_of(open_library());
  }
  out.functions.set_num_threads(1);
  return out;
}

const Library& loaded(std::int64_t threads) {
  static const Library library = load(threads);
  return library;
}

std::atomic<std::int64_t> g_callers = 0;  // threads that may call now
std::atomic<std::int64_t> g_buffers = 0;  // buffers that OpenBLAS has allocated for them

/// Makes OpenBLAS allocate buffers until it has `count`, so that each product finds a free one and maps none. Throws
/// Error where memory or OpenBLAS allows fewer.
void require_buffers(const Library& library, std::int64_t count) {
  static std::mutex mutex;
  static std::vector<void*> known;
  const std::lock_guard lock(mutex);
  const std::int64_t more = count - g_buffers;
  if (more <= 0) return;
  require_space(bytes_of(more), count);
  std::vector<void*> taken;  // idle buffers come first, then new ones
  taken.reserve(static_cast<std::size_t>(count));
  known.reserve(taken.capacity());
  while (static_cast<std::int64_t>(known.size()) < count) {
    void* buffer = library.take_buffer(0);
    if (buffer == nullptr) break;  // OpenBLAS was built for no more buffers
    taken.push_back(buffer);
    if (std::find(known.begin(), known.end(), buffer) == known.end()) known.push_back(buffer);
  }
  for (void* buffer : taken) library.return_buffer(buffer);
  require(std::ssize(known) >= count, "OpenBLAS has buffers for {} threads, not for {}: use fewer threads",
          known.size(), count);
  g_buffers = count;
}

}  // namespace

Blas::Blas(std::int64_t threads) : functions_(&loaded(threads).functions), threads_(threads) {
  const int own = functions_->get_num_threads();
  require(own == 1, "OpenBLAS has {} threads but must have 1, which openblas_set_num_threads(1) restores", own);
  const std::int64_t callers = g_callers.fetch_add(threads) + threads;
  if (callers <= g_buffers) return;
  try {
    require_buffers(loaded(threads), callers);
  } catch (...) {
    g_callers -= threads;
    throw;
  }
}

Blas::~Blas() { g_callers -= threads_; }

}  // namespace headgate::layers
