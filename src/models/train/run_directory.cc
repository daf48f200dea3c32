// SPDX-License-Identifier: Apache-2.0
#include "models/train/run_directory.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "models/families/model_file.hpp"
#include "models/io/given_path.hpp"
#include "models/io/staged_directory.hpp"
#include "models/train/checkpoint.hpp"
#include "models/train/metrics_log.hpp"

namespace headgate::train {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxNumber = 99;

/// Returns the checkpoint directories of a run. The first one is always included, even if it does not exist yet.
std::vector<std::string> checkpoint_directories(const std::string& run) {
  std::vector<std::string> out;
  for (int number = 0; number <= kMaxNumber; ++number) {
    const std::string place = numbered_checkpoint(run, number);
    if (number == 0 || is_checkpoint(place)) out.push_back(io::present_directory(place));
  }
  return out;
}

void add_checkpoint_files(std::vector<std::string>& out, const std::string& directory) {
  for (const std::string& name : checkpoint_files()) out.push_back(fmt::format("{}/{}", directory, name));
}

/// Returns the first numbered checkpoint path that does not exist, or nothing if all exist.
std::optional<std::string> free_place(const std::string& run) {
  for (int number = 0; number <= kMaxNumber; ++number) {
    std::error_code error;
    const std::string place = numbered_checkpoint(run, number);
    if (!is_checkpoint(place) && !fs::exists(fs::symlink_status(place, error))) return place;
  }
  return std::nullopt;
}

const std::string& created_if_fresh(const std::string& path, RunStart start) {
  if (start == RunStart::fresh) {
    require_no_run(path);
    if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) {
      io::fail<io::WriteError>(path, "cannot create the directory: {}", std::strerror(errno));
    }
  }
  return path;
}

}  // namespace

std::vector<std::string> checkpoints_of(const std::string& run) {
  std::vector<std::string> found;
  for (int number = 0; number <= kMaxNumber; ++number) {
    const std::string place = numbered_checkpoint(run, number);
    if (is_checkpoint(place)) found.push_back(place);
  }
  if (found.size() < 2) return found;
  std::vector<std::pair<std::int64_t, std::string>> by_step;
  by_step.reserve(found.size());
  for (const std::string& place : found) by_step.emplace_back(checkpoint_step(place), place);
  std::stable_sort(by_step.begin(), by_step.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::transform(by_step.begin(), by_step.end(), found.begin(), [](auto& entry) { return std::move(entry.second); });
  return found;
}

std::string newest_checkpoint(const std::string& run) {
  const std::vector<std::string> found = checkpoints_of(run);
  return found.empty() ? numbered_checkpoint(run, 0) : found.front();
}

std::vector<std::string> files_of_run(const std::string& run) {
  std::vector<std::string> out{metrics_path(run), token_ids_path(run)};
  for (const std::string& directory : checkpoint_directories(run)) add_checkpoint_files(out, directory);
  return out;
}

std::vector<std::string> files_of_model_or_run(const std::string& path) {
  std::error_code error;
  const std::string directory = io::given_path_or_same(path);
  std::vector<std::string> out = models::files_of_model(directory);
  if (!fs::is_directory(directory, error)) return out;
  add_checkpoint_files(out, directory);
  for (const std::string& checkpoint : checkpoint_directories(path)) {
    const std::vector<std::string> files = models::files_of_model(checkpoint);
    out.insert(out.end(), files.begin(), files.end());
    add_checkpoint_files(out, checkpoint);
  }
  out.push_back(metrics_path(path));
  out.push_back(token_ids_path(path));
  const std::string parent = fs::weakly_canonical(fs::absolute(path, error), error).parent_path().string();
  if (is_checkpoint(path) && is_run_or_checkpoint(parent)) out.push_back(metrics_path(parent));
  return out;
}

void require_no_run(const std::string& run) {
  if (!checkpoints_of(run).empty()) io::fail(run, "holds a run already");
  std::error_code error;
  const std::string metrics = metrics_path(run);
  if (fs::exists(fs::symlink_status(metrics, error)) &&
      (!fs::is_regular_file(metrics, error) || fs::file_size(metrics, error) != 0)) {
    io::fail(metrics, "exists already and would be overwritten");
  }
  check_checkpoint_replaceable(numbered_checkpoint(run, 0));
}

RunDirectory::RunDirectory(const std::string& path, RunStart start)
    : path_(path), lock_(created_if_fresh(path, start)) {
  // Checks again: another process may have started a run here between the first check and the lock.
  if (start == RunStart::fresh) require_no_run(path);
  check_metrics(metrics_path(path));
  checkpoint_ = newest_checkpoint(path);
  check_checkpoint_replaceable(checkpoint_);
}

void RunDirectory::save(const Trainer& trainer) {
  try {
    trainer.save(checkpoint_);
  } catch (const io::NotReplaceable&) {
    const std::optional<std::string> beside = free_place(path_);
    if (!beside) throw;
    trainer.save(*beside);
    checkpoint_ = *beside;
  }
}

}  // namespace headgate::train
