// SPDX-License-Identifier: Apache-2.0
#include "models/train/settings.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "library/core/check.hpp"
#include "models/data/run_files.hpp"
#include "models/io/input_file.hpp"
#include "models/io/json.hpp"
#include "models/tokenize/utf8.hpp"

namespace headgate::train {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kFormatKey = "format";
constexpr const char* kFormat = "headgate-trainer-1";

/// Calls at(key, field) for every key of a trainer state except the settings. Both writing and reading use it.
template <class Archive, class State>
void visit_progress(const Archive& at, State& state) {
  at("step", state.step);
  at("data_fingerprint", state.data_fingerprint);
  at("spikes", state.spikes);
  at("inside_spike", state.inside_spike);
  at("recent_losses", state.recent_losses);
}

// The read_value() functions throw Error for a number of another type, which nlohmann/json would convert silently.
void read_value(bool& out, const json& value) {
  if (!value.is_boolean()) throw Error("not true or false");
  out = value.get<bool>();
}

void read_value(double& out, const json& value) {
  if (!value.is_number()) throw Error("not a number");
  out = value.get<double>();
}

template <typename Int>
requires std::is_integral_v<Int>
void read_value(Int& out, const json& value) {
  const bool fits = value.is_number_unsigned()
                        ? std::in_range<Int>(value.get<std::uint64_t>())
                        : value.is_number_integer() && std::in_range<Int>(value.get<std::int64_t>());
  if (!fits) throw Error("not a whole number in range");
  out = value.get<Int>();
}

void read_value(std::string& out, const json& value) {
  if (!value.is_string()) throw Error("not a string");
  out = value.get<std::string>();
}

template <typename Element>
void read_value(std::vector<Element>& out, const json& value) {
  if (!value.is_array()) throw Error("not a list");
  out.clear();
  for (const json& element : value) read_value(out.emplace_back(), element);
}

const json& value_of(const json& object, std::string_view key) {
  const auto found = object.find(key);
  require(found != object.end(), "trainer state: no key \"{}\"", key);
  return *found;
}

template <typename Value>
void read_element(Value& out, const json& in, std::string_view key) {
  if constexpr (std::is_enum_v<Value>) {
    std::string word;
    read_element(word, in, key);
    out = parse_word<Value>(key, io::printable(word));
  } else {
    const json& element = value_of(in, key);
    try {
      read_value(out, element);
    } catch (const Error& error) {
      throw Error(fmt::format("trainer state: \"{}\" is {}", key, error.what()));
    }
  }
}

json parse_state(const std::string& text) {
  constexpr int kMaxDepth = 8;
  try {
    return io::parse_json("trainer state", text, kMaxDepth);
  } catch (const io::FileError& error) {  // without a file name, which callers add
    throw Error(error.what());
  }
}

/// Throws Error for a key that write_state() does not write.
void require_known_keys(const json& in) {
  std::set<std::string_view> known{kFormatKey};
  for_each_row(kSettings, [&known](const auto& row) { known.insert(row.key); });
  const auto add = [&known](std::string_view key, const auto& /*value*/) { known.insert(key); };
  const TrainerState state;
  visit_progress(add, state);
  for (const auto& item : in.items()) {
    require(known.contains(item.key()), "trainer state: unknown key \"{}\"", io::printable(item.key()));
  }
}

/// Throws Error if `value` is a string, or contains a string, that is not UTF-8, because JSON cannot store it. Accepts
/// values of other types.
template <class Row, typename Value>
void require_utf8(const Row& row, const Value& value) {
  if constexpr (std::is_same_v<Value, std::string>) {
    require(tokenize::well_formed_prefix_size(value) == value.size(),
            "{} {}: not UTF-8, as trainer_state.json is, by which --resume finds it: rename it", row.option, value);
  } else if constexpr (kIsList<Value>) {
    for (const auto& element : value) require_utf8(row, element);
  }
}

}  // namespace

void validate(const TrainSettings& settings) {
  require(!settings.paths.empty(), "no data");
  for_each_row(kSettings, [&settings](const auto& row) { require_in(row.range, row.name, row.of(settings)); });
  for_each_row(kSettings, [&settings](const auto& row) { require_utf8(row, row.of(settings)); });
  const std::int64_t rest = kMaxCount / settings.seq_len;
  require(settings.batch <= rest && settings.accumulate <= rest / settings.batch,
          "seq_len {} x batch {} x accumulate {} is more than {} tokens a step", settings.seq_len, settings.batch,
          settings.accumulate, kMaxCount);
}

Bos bos_of(const TrainSettings& settings) { return settings.task == Task::bigram_backcopy ? Bos::on : settings.bos; }

DataOptions data_of(const TrainSettings& settings, const std::string& run,
                    std::shared_ptr<const tokenize::TokenizerFile> tokenizer) {
  DataOptions options;
  options.paths = settings.paths;
  options.files = {settings.include, run};
  options.task = settings.task;
  options.seq_len = settings.seq_len;
  options.seed = settings.seed;
  options.bos = settings.bos;
  options.tokenizer = std::move(tokenizer);
  if (options.tokenizer) options.token_file = token_ids_path(run);
  return options;
}

std::string write_state(const TrainerState& state) {
  ordered_json out = {{kFormatKey, kFormat}};
  const auto write = [&out](std::string_view key, const auto& value) {
    auto& element = out[std::string(key)];
    if constexpr (std::is_enum_v<std::remove_cvref_t<decltype(value)>>) {
      element = word_of(value);
    } else {
      element = value;
    }
  };
  for_each_row(kSettings, [&](const auto& row) { write(row.key, row.of(state.settings)); });
  visit_progress(write, state);
  return io::json_text(out);
}

TrainedPart read_trained_part(const std::string& text) {
  const json in = parse_state(text);
  TrainedPart part = TrainedPart::all;
  const auto& row = row_of<kSettings, &TrainSettings::trained>();
  if (in.is_object() && in.contains(row.key)) read_element(part, in, row.key);
  return part;
}

TrainerState read_state(const std::string& text) {
  const json in = parse_state(text);
  require(in.is_object(), "trainer state: not a JSON object");
  TrainerState state;
  const auto read = [&in](std::string_view key, auto& value) { read_element(value, in, key); };
  std::string format;
  read(kFormatKey, format);
  require(format == kFormat, "trainer state: format \"{}\" is not \"{}\"", io::printable(format), kFormat);
  for_each_row(kSettings, [&](const auto& row) {
    if (row.in_state == InState::required || in.contains(row.key)) read(row.key, row.of(state.settings));
  });
  require_known_keys(in);
  visit_progress(read, state);
  validate(state.settings);
  require(state.step >= 0 && state.step <= kMaxCount, "trainer state: \"step\" is {}", state.step);
  require(state.spikes >= 0 && state.spikes <= kMaxCount, "trainer state: \"spikes\" is {}", state.spikes);
  return state;
}

}  // namespace headgate::train
