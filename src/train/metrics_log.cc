// SPDX-License-Identifier: Apache-2.0
#include "train/metrics_log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

namespace headgate::train {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

/// What every record has, in the file's order: written, and looked for where a record is read.
template <class Take>
void visit(const Take& take, const Progress& progress) {
  take("step", progress.step.step);
  take("loss", progress.step.loss);
  take("grad_norm", progress.step.grad_norm);
  take("lr", progress.step.lr);
  take("tokens", progress.step.tokens);
  take("seconds", progress.step.seconds);
  take("tokens_per_second", progress.tokens_per_second);
}

ordered_json record_of(const Progress& progress) {
  ordered_json out;
  visit([&out](const char* key, const auto& value) { out[key] = value; }, progress);
  if (progress.mfu) out["mfu"] = *progress.mfu;
  if (progress.step.spike) out["spike"] = true;
  if (progress.evaluation) out["eval"] = evaluation_json(*progress.evaluation);
  return out;
}

/// The step that a line records, −1 for what is no record.
std::int64_t step_of(const std::string& line) {
  const json record = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!record.is_object()) return -1;
  bool whole = true;
  visit([&](const char* key, const auto&) { whole = whole && record.contains(key); }, Progress{});
  return whole && record["step"].is_number_integer() ? record["step"].get<std::int64_t>() : -1;
}

/// Whether a last line may be the first bytes of a record whose writer was killed.
bool cut_off(std::string_view line) {
  constexpr std::string_view kBegin = "{\"step\":";
  return line.starts_with(kBegin) || kBegin.starts_with(line);
}

struct Kept {
  std::int64_t bytes = 0;
  bool ends_line = true;  ///< its last byte is a newline
};

/// How much of the file is records of steps up to `step`. Throws for anything that no run wrote.
Kept kept_part(const std::string& path, std::int64_t step) {
  Kept kept;
  std::error_code error;
  const std::filesystem::file_status there = std::filesystem::status(path, error);
  if (exists(there) && !is_regular_file(there)) io::fail<io::WriteError>(path, "cannot write: not a regular file");
  std::ifstream in(path, std::ios::binary);
  std::int64_t last = 0, begin = 0, number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const bool ended = !in.eof();
    const std::int64_t at = step_of(line);
    if (at < 0 && !ended && cut_off(line)) break;
    if (at < 0) io::fail(path, "line {} is no record of a run; move the file away", number);
    if (at <= last) io::fail(path, "line {} has step {} after step {}; move the file away", number, at, last);
    last = at;
    begin += static_cast<std::int64_t>(line.size()) + (ended ? 1 : 0);
    if (at <= step) kept = {begin, ended};
  }
  return kept;
}

}  // namespace

void check_metrics(const std::string& path) { kept_part(path, 0); }

MetricsLog::MetricsLog(const std::string& path, std::int64_t step) : path_(path) {
  // Without O_NONBLOCK, opening a pipe would wait for its reader.
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (descriptor_ < 0) io::fail<io::WriteError>(path, "cannot write: {}", std::strerror(errno));
  try {
    const Kept kept = kept_part(path, step);
    if (::ftruncate(descriptor_, kept.bytes) != 0) {
      io::fail<io::WriteError>(path, "cannot write: {}", std::strerror(errno));
    }
    if (!kept.ends_line) waiting_ = "\n";
  } catch (const io::FileError&) {
    ::close(descriptor_);
    throw;
  }
}

MetricsLog::~MetricsLog() { ::close(descriptor_); }

void MetricsLog::add(const Progress& progress) {
  waiting_ += record_of(progress).dump() + "\n";
  flush();
}

void MetricsLog::flush() {
  trouble_.clear();
  std::size_t written = 0;
  while (written < waiting_.size() && trouble_.empty()) {
    const ssize_t put = ::write(descriptor_, waiting_.data() + written, waiting_.size() - written);
    if (put >= 0) {
      written += static_cast<std::size_t>(put);
    } else if (errno != EINTR) {
      trouble_ = fmt::format("{}: cannot write: {}", path_, std::strerror(errno));
    }
  }
  waiting_.erase(0, written);
}

}  // namespace headgate::train
