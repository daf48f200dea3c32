// SPDX-License-Identifier: Apache-2.0
#include "train/settings.hpp"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/check.hpp"
#include "io/input_file.hpp"

namespace headgate::train {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::int64_t kMaxCount = std::int64_t{1} << 31;
constexpr const char* kFormat = "headgate-trainer-1";

void require_count(std::string_view name, std::int64_t value, std::int64_t least) {
  require(value >= least && value <= kMaxCount, "{} is {} but must be from {} to {}", name, value, least, kMaxCount);
}

void require_number(std::string_view name, double value, double low, double high) {
  require(std::isfinite(value) && value >= low && value <= high, "{} is {} but must be from {} to {}", name, value, low,
          high);
}

void require_share(std::string_view name, double value) {
  require(value >= 0.0 && value < 1.0, "{} is {} but must be from 0 to below 1", name, value);
}

/// Every key of a state and the field that it fills: written and read alike.
template <class Archive, class State>
void visit(const Archive& at, State& state) {
  auto& s = state.settings;
  at("data", s.paths);
  at("seq_len", s.seq_len);
  at("batch", s.batch);
  at("accumulate", s.accumulate);
  at("steps", s.schedule.steps);
  at("lr", s.schedule.peak);
  at("lr_floor", s.schedule.floor);
  at("warmup", s.schedule.warmup);
  at("weight_decay", s.weight_decay);
  at("beta1", s.beta1);
  at("beta2", s.beta2);
  at("eps", s.eps);
  at("clip", s.clip);
  at("seed", s.seed);
  at("eval_every", s.eval_every);
  at("eval_tokens", s.eval_tokens);
  at("save_every", s.save_every);
  at("threads", s.threads);
  at("step", state.step);
  at("data_fingerprint", state.data_fingerprint);
  at("spikes", state.spikes);
  at("inside_spike", state.inside_spike);
  at("recent_losses", state.recent_losses);
}

// nlohmann/json would turn numbers into each other without a word.
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
                        ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<Int>::max())
                        : value.is_number_integer() && std::is_signed_v<Int> &&
                              value.get<std::int64_t>() >= static_cast<std::int64_t>(std::numeric_limits<Int>::min());
  if (!fits) throw Error("not a whole number in range");
  out = value.get<Int>();
}

void read_value(std::string& out, const json& value) {
  if (!value.is_string()) throw Error("not a text");
  out = value.get<std::string>();
}

template <typename Element>
void read_value(std::vector<Element>& out, const json& value) {
  if (!value.is_array()) throw Error("not a list");
  out.clear();
  for (const json& element : value) read_value(out.emplace_back(), element);
}

const json& value_of(const json& object, const char* key) {
  const auto found = object.find(key);
  require(found != object.end(), "trainer state: no key \"{}\"", key);
  return *found;
}

}  // namespace

void validate(const TrainSettings& settings) {
  require(!settings.paths.empty(), "no data");
  require_count("seq_len", settings.seq_len, 1);
  require_count("batch", settings.batch, 1);
  require_count("accumulate", settings.accumulate, 1);
  const std::int64_t rest = kMaxCount / settings.seq_len;
  require(settings.batch <= rest && settings.accumulate <= rest / settings.batch,
          "seq_len {} x batch {} x accumulate {} is more than {} tokens a step", settings.seq_len, settings.batch,
          settings.accumulate, kMaxCount);
  require_count("steps", settings.schedule.steps, 1);
  require_count("warmup", settings.schedule.warmup, 0);
  require_number("lr", settings.schedule.peak, 0.0, 1e6);
  require_number("lr_floor", settings.schedule.floor, 0.0, 1.0);
  require_number("weight_decay", settings.weight_decay, 0.0, 1e6);
  require_share("beta1", settings.beta1);
  require_share("beta2", settings.beta2);
  require_number("eps", settings.eps, std::numeric_limits<float>::min(), 1.0);
  require_number("clip", settings.clip, 0.0, 1e30);
  require_count("eval_every", settings.eval_every, 0);
  require_count("eval_tokens", settings.eval_tokens, 0);
  require_count("save_every", settings.save_every, 0);
  require(settings.threads >= 1 && settings.threads <= 1024, "threads is {} but must be from 1 to 1024",
          settings.threads);
}

DataOptions data_of(const TrainSettings& settings, const std::string& run) {
  DataOptions options;
  options.paths = settings.paths;
  options.files = {settings.include, run};
  options.task = settings.task;
  options.seq_len = settings.seq_len;
  options.seed = settings.seed;
  return options;
}

std::string write_state(const TrainerState& state) {
  ordered_json out = {{"format", kFormat},
                      {"task", word_of(state.settings.task)},
                      {"schedule", word_of(state.settings.schedule.decay)}};
  out["include"] = state.settings.include;
  visit([&out](const char* key, const auto& value) { out[key] = value; }, state);
  return out.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

TrainerState read_state(const std::string& text) {
  const json in = json::parse(text, nullptr, /*allow_exceptions=*/false);
  require(in.is_object(), "trainer state: not a JSON object");
  TrainerState state;
  const auto read = [&in](const char* key, auto& value) {
    const json& element = value_of(in, key);
    try {
      read_value(value, element);
    } catch (const Error& error) {
      throw Error(fmt::format("trainer state: \"{}\" is {}", key, error.what()));
    }
  };
  std::string format, task, decay;
  read("format", format);
  require(format == kFormat, "trainer state: format \"{}\" is not \"{}\"", io::printable(format), kFormat);
  read("task", task);
  read("schedule", decay);
  state.settings.task = parse_word<Task>("task", io::printable(task));
  state.settings.schedule.decay = parse_word<Decay>("schedule", io::printable(decay));
  if (in.contains("include")) read("include", state.settings.include);  // absent from states written without patterns
  visit(read, state);
  validate(state.settings);
  require(state.step >= 0 && state.step <= kMaxCount, "trainer state: \"step\" is {}", state.step);
  require(state.spikes >= 0 && state.spikes <= kMaxCount, "trainer state: \"spikes\" is {}", state.spikes);
  return state;
}

}  // namespace headgate::train
