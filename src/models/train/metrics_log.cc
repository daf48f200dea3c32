// SPDX-License-Identifier: Apache-2.0
#include "models/train/metrics_log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "models/io/json.hpp"
#include "models/train/metrics_record.hpp"

namespace headgate::train {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

/// Calls a function for the fields that every record has, in the order of the file. Both writing and recognising
/// records use it.
template <class Visit>
void visit_fields(const Visit& visit, const Progress& progress) {
  visit(std::string(kStepKey), progress.step.step);
  visit(std::string(kStepLoss.key), progress.step.loss);
  visit(std::string(kGradNorm.key), progress.step.grad_norm);
  visit(std::string(kLearningRate.key), progress.step.lr);
  visit(std::string(kTokensKey), progress.step.tokens);
  visit(std::string(kSecondsKey), progress.step.seconds);
  visit(std::string(kTokensPerSecond.key), progress.tokens_per_second);
}

ordered_json record_of(const Progress& progress) {
  ordered_json out;
  visit_fields([&out](const std::string& key, const auto& value) { out[key] = value; }, progress);
  if (progress.step.bits_per_byte) out[std::string(kStepBits.key)] = *progress.step.bits_per_byte;
  if (progress.mfu) out[std::string(kMfu.key)] = *progress.mfu;
  if (progress.step.spike) out[std::string(kSpikeKey)] = true;
  if (progress.evaluation) out[std::string(kEvaluationKey)] = evaluation_json(*progress.evaluation);
  return out;
}

/// Returns the step of a record, or −1 if the line is not a record.
std::int64_t step_of(const std::string& line) {
  json record;
  try {
    record = io::parse_json({}, line, kMostNested);
  } catch (const io::FileError&) {
    return -1;
  }
  if (!record.is_object()) return -1;
  bool whole = true;
  visit_fields([&](const std::string& key, const auto&) { whole = whole && record.contains(key); }, Progress{});
  if (!whole) return -1;
  const json& step = record[std::string(kStepKey)];
  return step.is_number_integer() ? step.get<std::int64_t>() : -1;
}

struct Kept {
  std::int64_t bytes = 0;
  bool ends_line = true;        ///< whether the kept lines end with a newline
  std::int64_t last_begin = 0;  ///< offset of the last kept line, in bytes
  std::string last;             ///< text of the last kept line; empty if its step is not `step`
};

/// Reads a line and returns whether there was one. Reads at most kMostOfLine bytes, because a file other than
/// metrics.jsonl may consist of one huge line.
bool next_line(std::istream& in, std::string& line) {
  line.clear();
  for (int c = in.get(); c != std::istream::traits_type::eof(); c = in.get()) {
    if (c == '\n' || line.size() == kMostOfLine) return true;
    line += static_cast<char>(c);
  }
  return !line.empty();
}

/// Returns the extent of the records up to `step`. A log that is opened after `step` keeps this part of the file.
/// Throws io::FileError if the file holds anything but records.
Kept kept_part(const std::string& path, std::int64_t step) {
  Kept kept;
  std::error_code error;
  const std::filesystem::file_status there = std::filesystem::status(path, error);
  if (exists(there) && !is_regular_file(there)) io::fail<io::WriteError>(path, "cannot write: not a regular file");
  std::ifstream in(path, std::ios::binary);
  std::int64_t last = 0, begin = 0, number = 0;
  for (std::string line; next_line(in, line);) {
    ++number;
    const bool ended = !in.eof();
    const std::int64_t at = step_of(line);
    if (at < 0 && !ended && may_begin_record(line)) break;
    if (at < 0) io::fail(path, "line {} is not a record of a run; move the file away", number);
    if (at <= last) io::fail(path, "line {} has step {} after step {}; move the file away", number, at, last);
    last = at;
    const std::int64_t end = begin + std::ssize(line) + (ended ? 1 : 0);
    if (at <= step) kept = {end, ended, begin, at == step ? line : ""};
    begin = end;
  }
  return kept;
}

}  // namespace

bool may_begin_record(std::string_view line) {
  const std::string begin = fmt::format("{{\"{}\":", kStepKey);
  return line.starts_with(begin) || begin.starts_with(line);
}

std::string metrics_line(const Progress& progress) { return record_of(progress).dump(); }

void check_metrics(const std::string& path) { kept_part(path, 0); }

bool has_step_without_evaluation(const std::string& path, std::int64_t step) {
  const std::string record = kept_part(path, step).last;
  return !record.empty() && !json::parse(record).contains(kEvaluationKey);
}

MetricsLog::MetricsLog(const std::string& path, std::int64_t step) : path_(path), step_(step) {
  // Without O_NONBLOCK, opening a pipe would wait for its reader.
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (descriptor_ < 0) io::fail<io::WriteError>(path, "cannot write: {}", std::strerror(errno));
  try {
    const Kept kept = kept_part(path, step);
    if (::ftruncate(descriptor_, kept.bytes) != 0) {
      io::fail<io::WriteError>(path, "cannot write: {}", std::strerror(errno));
    }
    if (!kept.ends_line) unwritten_.push_back('\n');
  } catch (const io::FileError&) {
    ::close(descriptor_);
    throw;
  }
}

MetricsLog::~MetricsLog() { ::close(descriptor_); }

void MetricsLog::add(const Progress& progress) {
  unwritten_ += metrics_line(progress) + "\n";
  flush();
}

void MetricsLog::add_evaluation(const Evaluation& evaluation) {
  const Kept kept = kept_part(path_, step_);
  if (kept.last.empty()) return;
  ordered_json record = ordered_json::parse(kept.last);
  record[std::string(kEvaluationKey)] = evaluation_json(evaluation);
  if (::ftruncate(descriptor_, kept.last_begin) != 0) {
    io::fail<io::WriteError>(path_, "cannot write: {}", std::strerror(errno));
  }
  unwritten_ = record.dump() + "\n";
  flush();
}

void MetricsLog::flush() {
  error_.clear();
  std::size_t written = 0;
  while (written < unwritten_.size() && error_.empty()) {
    const ssize_t put = ::write(descriptor_, unwritten_.data() + written, unwritten_.size() - written);
    if (put >= 0) {
      written += put;
    } else if (errno != EINTR) {
      error_ = fmt::format("{}: cannot write: {}", path_, std::strerror(errno));
    }
  }
  unwritten_.erase(0, written);
}

}  // namespace headgate::train
