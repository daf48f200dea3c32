// SPDX-License-Identifier: Apache-2.0
#include "models/train/memory.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <new>
#include <string>

#include "models/io/scratch.hpp"

namespace headgate::train {
namespace {

using testing::Scratch;
using testing::write_bytes;

const MemoryPlan kPlan = {{"tokens", 1000}, {"moments", 4'000'000'000'000}, {"logits", 2'000'000}, {"weights", 5000}};

std::string error_of(const MemoryPlan& plan, bool make_fails = false) {
  try {
    with_memory(plan, 0, [make_fails] {
      if (make_fails) throw std::bad_alloc();
      return 0;
    });
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void write_file(const Scratch& root, const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(root / path).parent_path());
  write_bytes(root / path, text);
}

TEST(Memory, Shortage_Message_NamesNeedLimitAndLargestItems) {
  EXPECT_EQ(shortage_text(kPlan, 8'000'000'000),
            "not enough memory: 4.00 TB are needed but 8.00 GB are available; the largest items are moments 4.00 TB, "
            "logits 2.0 MB, weights 5 kB");
  EXPECT_EQ(shortage_text({{"logits", 2'000'000}}, 8'000'000'000),
            "not enough memory: 2.0 MB are needed and the system gave less; the largest items are logits 2.0 MB");
}

TEST(Memory, Model_LargerThanMemory_IsRefusedBeforeAllocation) {
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() / 2;
  const std::string refusal = error_of({{"parameters", kMost}});
  EXPECT_TRUE(refusal.starts_with("not enough memory: ")) << refusal;
  EXPECT_NE(refusal.find(" are available; the largest items are parameters "), std::string::npos) << refusal;
  EXPECT_EQ(error_of({{"parameters", 1000}}), "");
  EXPECT_EQ(error_of({{"parameters", 1000}}, true),
            "not enough memory: 1 kB are needed and the system gave less; the largest items are parameters 1 kB");
  EXPECT_NO_THROW(require_memory({{"parameters", kMost}}, kMost)) << "all of it is taken already";
}

TEST(Memory, Limit_MachineAndControlGroups_IsTheSmallest) {
  const Scratch root;
  EXPECT_EQ(available_memory(root.path()), std::nullopt);
  write_file(root, "proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    4000 kB\nSwapFree: 1000 kB\n");
  EXPECT_EQ(available_memory(root.path()), 5000U * 1024U);
  // Version 2: the inner group has no limit, the outer one does; file pages are freed on demand.
  write_file(root, "proc/self/cgroup", "0::/outer/inner\n");
  write_file(root, "sys/fs/cgroup/outer/inner/memory.max", "max\n");
  write_file(root, "sys/fs/cgroup/outer/inner/memory.current", "1\n");
  EXPECT_EQ(available_memory(root.path()), 5000U * 1024U);
  write_file(root, "sys/fs/cgroup/outer/memory.max", "3000000\n");
  write_file(root, "sys/fs/cgroup/outer/memory.current", "1000000\n");
  EXPECT_EQ(available_memory(root.path()), 2000000U);
  write_file(root, "sys/fs/cgroup/outer/memory.stat", "anon 600000\nactive_file 100000\ninactive_file 200000\n");
  EXPECT_EQ(available_memory(root.path()), 2300000U);
  // Version 1, seen from a container whose group is the root.
  write_file(root, "proc/self/cgroup", "9:name=systemd:/\n4:memory:/unseen/here\n");
  write_file(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "700000\n");
  write_file(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", "900000\n");
  EXPECT_EQ(available_memory(root.path()), 0U);
  write_file(root, "sys/fs/cgroup/memory/memory.stat", "total_inactive_file 600000\n");
  EXPECT_EQ(available_memory(root.path()), 400000U);
}

}  // namespace
}  // namespace headgate::train
