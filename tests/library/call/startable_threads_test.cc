// SPDX-License-Identifier: Apache-2.0
// Checks calls on more threads than the system gives.

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <fstream>
#include <thread>
#include <vector>

#include "library/attention/sample_call.hpp"
#include "library/core/team.hpp"

namespace headgate {
namespace {

constexpr int kThreads = 16;

std::size_t address_space_bytes() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

std::size_t stack_bytes() {
  pthread_attr_t attributes;
  std::size_t bytes = 0;
  pthread_getattr_default_np(&attributes);
  pthread_attr_getstacksize(&attributes, &bytes);
  pthread_attr_destroy(&attributes);
  return bytes;
}

/// Leaves address space for the stacks of two more threads.
class FewThreads {
 public:
  FewThreads() {
    getrlimit(RLIMIT_AS, &before_);
    rlimit limit = before_;
    limit.rlim_cur = address_space_bytes() + 5 * stack_bytes() / 2;
    setrlimit(RLIMIT_AS, &limit);
    rlimit now{};
    getrlimit(RLIMIT_AS, &now);
    holds_ = now.rlim_cur == limit.rlim_cur;
  }
  ~FewThreads() { setrlimit(RLIMIT_AS, &before_); }
  FewThreads(const FewThreads&) = delete;
  FewThreads& operator=(const FewThreads&) = delete;
  bool holds() const { return holds_; }

 private:
  rlimit before_{};
  bool holds_ = false;
};

/// Sanitizers reserve more address space than a limit could count, and qemu-user ignores the limit.
bool is_limitable() { return address_space_bytes() < std::size_t{1} << 40 && FewThreads().holds(); }

std::vector<std::vector<double>> memory_after_forward(const testing::SampleCall& call) {
  call.forward();
  const auto memory = call.snapshot();
  return {memory.begin(), memory.end()};
}

TEST(StartableThreads, Call_OnMoreThreadsThanTheSystemGives_IsBitwiseIdentical) {
  if (!is_limitable()) GTEST_SKIP() << "the address space cannot be limited";
  testing::SampleCall alone, limited, all;
  alone.options.context.threads = 1;
  limited.options.context.threads = all.options.context.threads = kThreads;
  const auto expected = memory_after_forward(alone);
  {
    const FewThreads limit;
    EXPECT_EQ(memory_after_forward(limited), expected);
  }
  EXPECT_EQ(memory_after_forward(all), expected);
}

TEST(StartableThreads, Team_LargerThanTheLastOne_GetsWhatTheSystemGives) {
  if (!is_limitable()) GTEST_SKIP() << "the address space cannot be limited";
  EXPECT_EQ(startable_threads(1), 1);
  {
    const FewThreads limit;
    for (int n = 0; n < 3; ++n) {
      const int given = startable_threads(kThreads);
      EXPECT_TRUE(given >= 1 && given < kThreads) << given;
    }
  }
  EXPECT_EQ(startable_threads(kThreads), kThreads);
  const FewThreads limit;
  EXPECT_EQ(startable_threads(kThreads), kThreads) << "threads that OpenMP keeps";
  EXPECT_EQ(startable_threads(2), 2);
  EXPECT_EQ(startable_threads(kThreads), kThreads) << "sizes that alternate";
  EXPECT_EQ(startable_threads(2), 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  EXPECT_LT(startable_threads(kThreads), kThreads) << "threads that OpenMP has ended";
}

}  // namespace
}  // namespace headgate
