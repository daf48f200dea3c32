// SPDX-License-Identifier: Apache-2.0
#include "models/train/metrics_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string_view>
#include <system_error>
#include <utility>

#include "models/evaluate/evaluation.hpp"
#include "models/evaluate/registry.hpp"
#include "models/io/given_path.hpp"
#include "models/io/input_file.hpp"
#include "models/io/json.hpp"
#include "models/io/work.hpp"
#include "models/train/metrics_record.hpp"
#include "models/train/run_directory.hpp"

namespace headgate::train {

namespace {

using io::Json;

constexpr std::size_t kMostBytes = std::size_t{1}
                                   << 30;  // limit of the file's size; the curves take at most about as much memory
constexpr std::size_t kChunk = std::size_t{1} << 20;
constexpr std::int64_t kMostCounted = std::int64_t{1} << 53;  // maximum of a count; doubles are exact up to this value

/// Calls take(line, number, ended) for each line of the file. `ended` is false if the line has no newline at its end.
/// Reports the progress of reading.
template <class Take>
void for_each_line(const io::InputFile& file, const Take& take) {
  std::string line, chunk;
  std::int64_t number = 1;
  for (std::size_t at = 0; at < file.size(); at += chunk.size()) {
    io::report_work("reading ", file.path(), static_cast<double>(at) / static_cast<double>(file.size()));
    chunk.resize(std::min(kChunk, file.size() - at));
    file.read(chunk.data(), chunk.size());
    std::string_view rest = chunk;
    for (std::size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      line += rest.substr(0, end);
      rest.remove_prefix(end + 1);
      take(line, number++, true);
      line.clear();
    }
    line += rest;
    if (line.size() > kMostOfLine) {
      io::fail(file.path(), "line {} has more than {} bytes", number, kMostOfLine);
    }
  }
  if (!line.empty()) take(line, number, false);
  io::report_work("reading ", file.path(), 1.0);
}

/// Formats a JSON value for error messages.
std::string quoted(const Json& value) { return io::printable(value.dump()); }

/// A parsed line of the file. `where` names the line in messages, as "PATH: line N".
struct Record {
  std::string where;
  Json json;

  /// Returns the value of `key`, or null if the key is absent.
  static const Json* find(const Json& in, std::string_view key) {
    const auto it = in.find(std::string(key));
    return it == in.end() ? nullptr : &*it;
  }
  /// Returns the object at `key`, or null if the key is absent. Throws io::FileError for a value of another type.
  const Json* object(const Json& in, std::string_view key) const {
    const Json* value = find(in, key);
    if (value != nullptr && !value->is_object()) io::fail(where, "'{}' is {}, not an object", key, quoted(*value));
    return value;
  }
  std::int64_t count(const Json& value, std::string_view key, std::int64_t least) const {
    const auto in_range = [least](auto number) {
      return std::cmp_greater_equal(number, least) && std::cmp_less_equal(number, kMostCounted);
    };
    const bool fits = value.is_number_unsigned() ? in_range(value.get<std::uint64_t>())
                                                 : value.is_number_integer() && in_range(value.get<std::int64_t>());
    if (!fits) {
      io::fail(where, "'{}' is {}, not a whole number from {} to {}", key, quoted(value), least, kMostCounted);
    }
    return value.get<std::int64_t>();
  }
  double number(const Json& value, std::string_view key) const {
    if (value.is_null()) return std::numeric_limits<double>::quiet_NaN();
    if (!value.is_number()) io::fail(where, "'{}' is {}, not a number or null", key, quoted(value));
    return value.get<double>();
  }
};

/// Names the JSON object that holds a figure (number of a metric): the record, its evaluation, or the part of the
/// evaluation that compares trigger tokens with others.
enum class Place { step, evaluation, by_trigger };

std::vector<std::pair<const metrics::Figure*, Place>> figures_and_places() {
  std::vector<std::pair<const metrics::Figure*, Place>> out{{kStepFigures.front(), Place::step}};
  for (const Place place : {Place::evaluation, Place::by_trigger}) {
    const auto figures = metrics::figures_of(metrics::all_metrics(), place == Place::by_trigger);
    for (const metrics::Figure* figure : figures) out.emplace_back(figure, place);
  }
  for (std::size_t i = 1; i < kStepFigures.size(); ++i) out.emplace_back(kStepFigures[i], Place::step);
  return out;
}

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {
    for (const auto& [figure, place] : figures_and_places()) {
      run_.curves.push_back({figure, {}, {}});
      places_.push_back(place);
    }
  }

  void add_line(const std::string& line, std::int64_t number, bool ended) {
    if (!ended && may_begin_record(line) && !Json::accept(line)) {
      run_.cut_off = true;
      return;
    }
    const std::string where = fmt::format("{}: line {}", path_, number);
    add({where, io::parse_json(where, line, kMostNested)});
  }

  RecordedRun finished() {
    if (run_.steps.empty()) io::fail(path_, "holds no record of a step");
    const auto without_number = [](const Curve& curve) {
      return std::all_of(curve.values.begin(), curve.values.end(), [](double value) { return std::isnan(value); });
    };
    std::erase_if(run_.curves, without_number);
    if (run_.curves.empty()) io::fail(path_, "holds no figure of a run");
    if (!tokens_.empty()) run_.tokens = tokens_.back();
    return std::move(run_);
  }

 private:
  void add(const Record& record) {
    if (!record.json.is_object()) io::fail(record.where, "is {}, not an object", quoted(record.json));
    const Json* step = Record::find(record.json, kStepKey);
    if (step == nullptr) io::fail(record.where, "'{}' is missing", kStepKey);
    const std::int64_t at = record.count(*step, kStepKey, 1);
    take_back_to(at);
    run_.steps.push_back(at);
    if (const Json* tokens = Record::find(record.json, kTokensKey)) {
      tokens_.push_back(record.count(*tokens, kTokensKey, 0));
      token_steps_.push_back(at);
    }
    if (const Json* spike = Record::find(record.json, kSpikeKey)) {
      if (!spike->is_boolean()) io::fail(record.where, "'{}' is {}, not true or false", kSpikeKey, quoted(*spike));
      if (spike->get<bool>()) run_.spikes.push_back(at);
    }
    const Json* evaluation = record.object(record.json, kEvaluationKey);
    const Json* by_trigger = evaluation == nullptr ? nullptr : record.object(*evaluation, kByTriggerKey);
    for (std::size_t i = 0; i < run_.curves.size(); ++i) {
      Curve& curve = run_.curves[i];
      const Json* in = places_[i] == Place::step         ? &record.json
                       : places_[i] == Place::evaluation ? evaluation
                                                         : by_trigger;
      const Json* value = in == nullptr ? nullptr : Record::find(*in, curve.figure->key);
      if (value == nullptr) continue;
      curve.steps.push_back(at);
      curve.values.push_back(record.number(*value, curve.figure->key));
    }
  }

  /// Removes the records from `step` on, because a resumed run has written them again.
  void take_back_to(std::int64_t step) {
    const auto shorten = [step](std::vector<std::int64_t>& steps) {
      const auto from = std::lower_bound(steps.begin(), steps.end(), step);
      const auto removed = steps.end() - from;
      steps.erase(from, steps.end());
      return removed;
    };
    if (run_.steps.empty() || run_.steps.back() < step) return;
    run_.replaced += shorten(run_.steps);
    shorten(run_.spikes);
    shorten(token_steps_);
    tokens_.resize(token_steps_.size());
    for (Curve& curve : run_.curves) {
      shorten(curve.steps);
      curve.values.resize(curve.steps.size());
    }
  }

  std::string path_;
  RecordedRun run_;  ///< has a curve for every metric value; finished() removes curves without numbers
  std::vector<Place> places_;
  std::vector<std::int64_t> token_steps_, tokens_;  ///< steps whose records have tokens, and these tokens
};

}  // namespace

const Curve* RecordedRun::find(const metrics::Figure& figure) const {
  const auto it =
      std::find_if(curves.begin(), curves.end(), [&](const Curve& curve) { return curve.figure->key == figure.key; });
  return it == curves.end() ? nullptr : &*it;
}

std::vector<const metrics::Figure*> recorded_figures() {
  std::vector<const metrics::Figure*> out;
  for (const auto& [figure, place] : figures_and_places()) out.push_back(figure);
  return out;
}

RecordedRun read_run(const std::string& directory) {
  const std::string metrics = metrics_path(io::given_path(directory));
  std::error_code error;
  if (!std::filesystem::exists(metrics, error)) {
    io::fail(directory, "not a run: it holds no metrics.jsonl, which `headgate train --out` writes");
  }
  return read_metrics(metrics);
}

RecordedRun read_metrics(const std::string& path) {
  const io::InputFile file(path);
  if (file.size() > kMostBytes) io::fail(path, "has {} bytes, more than {}", file.size(), kMostBytes);
  Reader reader(path);
  for_each_line(
      file, [&](const std::string& line, std::int64_t number, bool ended) { reader.add_line(line, number, ended); });
  return reader.finished();
}

}  // namespace headgate::train
