// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "headgate/error.hpp"
#include "headgate/runtime.hpp"
#include "support/problem_runs.hpp"

namespace headgate {

/// Returns false `patience` times, then always true.
class Canceller {
 public:
  explicit Canceller(std::int64_t patience) : patience_(patience) {}
  const std::function<bool()>* callback() const { return &callback_; }
  std::int64_t asked() const { return asked_; }

 private:
  std::int64_t patience_;
  std::int64_t asked_ = 0;  // checks by the calling thread only
  const std::function<bool()> callback_ = [this] { return ++asked_ > patience_; };
};

inline constexpr std::int64_t kForEver = std::int64_t{1} << 60;

/// A call that takes a context, and the bytes that it writes.
struct Work {
  const char* name;
  std::function<void(const ExecutionContext&)> call;
  std::function<std::vector<std::uint8_t>()> bits;
};

/// Cancels the call at many of the points at which it checks.
inline void expect_cancellable(const Work& work, std::int64_t least_questions) {
  work.call({.threads = 1});
  const std::vector<std::uint8_t> expected = work.bits();
  Canceller never(kForEver);
  work.call({.threads = 1, .cancelled = never.callback()});
  EXPECT_TRUE(work.bits() == expected) << work.name;
  EXPECT_GE(never.asked(), least_questions) << work.name;
  const std::int64_t points = std::max<std::int64_t>(2, static_cast<std::int64_t>(problem_runs()) / 5);
  for (const int threads : {1, 2, 3}) {
    for (std::int64_t patience = 0; patience < never.asked(); patience += 1 + never.asked() / points) {
      Canceller canceller(patience);
      bool cancelled = false;
      try {
        work.call({.threads = threads, .cancelled = canceller.callback()});
      } catch (const Cancelled&) {
        cancelled = true;
      }
      // The calling thread may get fewer tasks in parallel than alone.
      EXPECT_EQ(cancelled, canceller.asked() > patience) << work.name << ", " << threads << " threads";
      EXPECT_TRUE(cancelled || (threads > 1 && patience > 0)) << work.name << ", " << threads << " threads";
      EXPECT_TRUE(cancelled || work.bits() == expected) << work.name;
      EXPECT_LE(canceller.asked(), patience + 1) << work.name << ": asked again after it was cancelled";
    }
    work.call({.threads = threads});
    EXPECT_TRUE(work.bits() == expected) << work.name << ", " << threads << " threads";
  }
}

}  // namespace headgate
