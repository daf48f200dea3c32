// SPDX-License-Identifier: Apache-2.0
#include "models/train/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "models/io/units.hpp"

namespace headgate::train {

namespace {

namespace fs = std::filesystem;

/// Returns the number that follows `key` at the start of a line, for files such as /proc/meminfo and memory.stat.
std::optional<std::uint64_t> number_after(const std::string& file, const std::string& key) {
  std::ifstream in(file);
  std::string name;
  std::uint64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    if (words >> name >> number && name == key) return number;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> number_in(const std::string& file) {
  std::ifstream in(file);
  std::uint64_t number = 0;
  if (!(in >> number)) return std::nullopt;  // the file holds the word "max" if there is no limit
  return number;
}

/// Names of the files of control groups (cgroups), which limit the memory of processes. Each cgroup version has a row.
struct GroupFiles {
  const char* controller;  ///< name of the memory controller in /proc/self/cgroup; empty in cgroup v2
  const char* root;
  const char* limit;
  const char* usage;
  const char* file_cache[2];  ///< keys of memory.stat with the page cache, which the kernel can free
};
constexpr GroupFiles kVersions[] = {
    {"", "/sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file", "active_file"}},
    {"memory",
     "/sys/fs/cgroup/memory",
     "memory.limit_in_bytes",
     "memory.usage_in_bytes",
     {"total_inactive_file", "total_active_file"}}};

std::optional<std::uint64_t> left_in_group(const std::string& directory, const GroupFiles& files) {
  const auto limit = number_in(directory + "/" + files.limit);
  const auto usage = number_in(directory + "/" + files.usage);
  if (!limit || !usage) return std::nullopt;
  std::uint64_t cache = 0;
  for (const char* key : files.file_cache) cache += number_after(directory + "/memory.stat", key).value_or(0);
  const std::uint64_t used = *usage - std::min(*usage, cache);
  return *limit - std::min(*limit, used);
}

void lower(std::optional<std::uint64_t>& least, std::optional<std::uint64_t> value) {
  if (value) least = std::min(least.value_or(*value), *value);
}

/// Returns how many more bytes the control groups of the process allow: the minimum over these groups and their
/// ancestors.
std::optional<std::uint64_t> remaining_in_groups(const std::string& root) {
  std::optional<std::uint64_t> least;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // NUMBER:CONTROLLERS:PATH
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controller = line.substr(first + 1, second - first - 1);
    for (const GroupFiles& files : kVersions) {
      if (controller != files.controller) continue;
      for (fs::path group = line.substr(second + 1);; group = group.parent_path()) {
        lower(least, left_in_group(root + files.root + group.string(), files));
        if (!group.has_relative_path()) break;
      }
    }
  }
  return least;
}

}  // namespace

std::optional<std::uint64_t> available_memory(const std::string& root) {
  constexpr std::uint64_t kUnit = 1024;
  std::optional<std::uint64_t> available;
  const std::string meminfo = root + "/proc/meminfo";
  if (const auto free = number_after(meminfo, "MemAvailable:")) {
    available = (*free + number_after(meminfo, "SwapFree:").value_or(0)) * kUnit;
  }
  lower(available, remaining_in_groups(root));
  return available;
}

std::string shortage_text(const MemoryPlan& plan, std::optional<std::uint64_t> available) {
  constexpr std::size_t kShown = 3;
  const auto text = [](std::uint64_t bytes) { return console::bytes_text(static_cast<double>(bytes)); };
  std::uint64_t needed = 0;
  for (const models::MemoryItem& item : plan) needed += item.bytes;
  MemoryPlan largest = plan;
  std::stable_sort(largest.begin(), largest.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  std::string items;
  for (std::size_t i = 0; i < std::min(largest.size(), kShown); ++i) {
    items += fmt::format("{}{} {}", i == 0 ? "" : ", ", largest[i].name, text(largest[i].bytes));
  }
  std::string why = "and the system gave less";
  if (available && *available < needed) why = fmt::format("but {} are available", text(*available));
  return fmt::format("not enough memory: {} are needed {}; the largest items are {}", text(needed), why, items);
}

void require_memory(const MemoryPlan& plan, std::uint64_t taken) {
  const auto available = available_memory();
  std::uint64_t needed = 0;
  for (const models::MemoryItem& item : plan) needed += item.bytes;
  if (available && needed - std::min(needed, taken) > *available) throw Error(shortage_text(plan, *available + taken));
}

}  // namespace headgate::train
