// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/xray/saved_reports.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "headgate/version.h"
#include "library/core/words.hpp"
#include "models/decoder/config.hpp"
#include "models/decoder/config_keys.hpp"
#include "models/io/file_error.hpp"
#include "models/io/input_file.hpp"
#include "models/io/json.hpp"
#include "models/tokenize/charsmap.hpp"
#include "models/tokenize/error.hpp"
#include "tool/console/table.hpp"
#include "tool/console/terminal_text.hpp"
#include "tool/reports/xray/collector.hpp"

namespace headgate::xray {
namespace {

using io::Json;
using nlohmann::ordered_json;

/// A value in the JSON of a report and its location: the object or list that contains it, and its key or index there.
struct Place {
  const Json* value;
  const Place* above = nullptr;  ///< the object or list that contains this value; null for the whole report
  std::string_view key{};
  std::size_t index = 0;
};

/// Returns the path of a place for error messages, such as "models[1].heads[0][3].map".
std::string name_of(const Place& place) {
  if (place.above == nullptr) return "the JSON";
  std::string out = place.above->above == nullptr ? "" : name_of(*place.above);
  if (place.above->value->is_array()) return out + fmt::format("[{}]", place.index);
  return out + (out.empty() ? "" : ".") + io::printable(place.key);
}

/// Returns the entry of the report's list "models" that contains `place` or is `place` itself.
const Json& model_of(const Place& place) {
  const Place* at = &place;
  while (at->above->above->above != nullptr) at = at->above;
  return *at->value;
}

/// Returns the number stored under `key` in the model that contains `place`, for instance its number of layers.
std::size_t count_of(const char* key, const Place& place) { return model_of(place).at(key).get<std::size_t>(); }

/// A JSON type that a part of a report must have. `words` names the type in error messages.
struct Type {
  const char* words;
  bool (*holds)(const Json& value);
  bool nullable = false;
};

constexpr Type or_null(const Type& type) { return {type.words, type.holds, true}; }

bool is_base64(const Json& value) {
  try {
    return value.is_string() && (tokenize::decode_base64(value.get_ref<const std::string&>()), true);
  } catch (const tokenize::TokenizerError&) {
    return false;
  }
}

bool is_layer_type(const Json& value) {
  return value.is_string() && find_word<models::LayerType>(value.get_ref<const std::string&>()).has_value();
}

constexpr Type kText{"string", [](const Json& value) { return value.is_string(); }};
constexpr Type kFlag{"boolean", [](const Json& value) { return value.is_boolean(); }};
constexpr Type kList{"array", [](const Json& value) { return value.is_array(); }};
constexpr Type kObject{"object", [](const Json& value) { return value.is_object(); }};
constexpr Type kNumber{"number", [](const Json& value) { return value.is_number(); }};
constexpr Type kCount{"a whole number of at least 0 and below 2^64",
                      [](const Json& value) { return value.is_number_unsigned(); }};
constexpr Type kBytes{"string of base64", is_base64};
constexpr Type kLayerType{"a known layer type", is_layer_type};

/// The smallest and the largest allowed size.
struct Limits {
  std::size_t least = 0, most = std::numeric_limits<std::size_t>::max();
};

constexpr Limits exactly(std::size_t size) { return {size, size}; }

/// Limits the size of a value. Error messages give `reason` after the limits.
/// The size is the length of a list, the value of a count, or the number of decoded bytes of a base64 string.
struct Size {
  Limits (*limits)(const Place& place) = nullptr;  ///< function that returns the limits; null if any size is allowed
  const char* reason = "";
};

constexpr Size kSome{[](const Place&) { return Limits{.least = 1}; }};
constexpr Size kVersion{[](const Place&) { return exactly(kReportVersion); }};
constexpr Size kLayers{[](const Place&) { return Limits{1, models::kMaxLayers}; }};
constexpr Size kCells{[](const Place& at) {
                        return Limits{1, std::min(kMostMapCells, count_of("tokens", at))};
                      },
                      ", and no more than tokens"};
constexpr Size kPerLayer{[](const Place& at) { return exactly(count_of("layers", at)); }, ", one for each of layers"};
constexpr Size kPerHead{[](const Place& at) { return exactly(model_of(at).at("heads").at(at.index).size()); },
                        ", one for each of heads in this layer"};
constexpr Size kPerToken{[](const Place& at) { return exactly(count_of("tokens", at)); }, ", one for each of tokens"};
constexpr Size kPerCell{[](const Place& at) {
                          const std::size_t M = count_of("map_size", at);
                          return exactly(M * (M + 1) / 2);
                        },
                        ", the lower triangle of map_size"};
constexpr Size kPerBin{[](const Place&) { return exactly(kGateBins); }};
constexpr Size kPair{[](const Place&) { return exactly(2); }, ", a token and its weight"};
constexpr Size kToken{[](const Place& at) { return Limits{0, count_of("tokens", at) - 1}; }, ", below tokens"};

/// The type and the size that the values at `path` in a report must have.
/// In `path`, [] stands for every entry of a list and .* for every key.
struct Part {
  std::string_view path;
  Type type;
  Size size{};
};

/// Types and sizes of all values in a report that the page reads, in the order in which they are checked.
/// A list or object comes before its entries or members. A count comes before the values whose size depends on it.
constexpr Part kParts[] = {
    {"", kObject},
    {"version", kCount, kVersion},
    {"headgate", kText},
    {"text", kText},
    {"figures", kList},
    {"figures[]", kObject},
    {"figures[].key", kText},
    {"figures[].name", kText},
    {"figures[].sentence", kText},
    {"figures[].share", kFlag},
    {"models", kList, kSome},
    {"models[]", kObject},
    {"models[].name", kText},
    {"models[].gate", kText},
    {"models[].verdict", kText},
    {"models[].parameters", or_null(kCount)},
    {"models[].layers", kCount, kLayers},
    {"models[].kv_heads", or_null(kCount)},
    {"models[].dim", kCount},
    {"models[].tokens", kCount, kSome},
    {"models[].map_size", kCount, kCells},
    {"models[].layer_types", kList, kPerLayer},
    {"models[].layer_types[]", kLayerType},
    {"models[].heads", kList, kPerLayer},
    {"models[].heads[]", kList, kSome},
    {"models[].heads[][]", kObject},
    {"models[].heads[][].map", kBytes, kPerCell},
    {"models[].heads[][].received", kBytes, kPerToken},
    {"models[].heads[][].gate", or_null(kBytes), kPerToken},
    {"models[].heads[][].gate_histogram", or_null(kList), kPerBin},
    {"models[].heads[][].gate_histogram[]", kCount},
    {"models[].heads[][].top_keys", kList},
    {"models[].heads[][].top_keys[]", kList, kPair},
    {"models[].heads[][].top_keys[][0]", kCount, kToken},
    {"models[].heads[][].top_keys[][1]", or_null(kNumber)},
    {"models[].heads[][].singular_values", kList},
    {"models[].heads[][].singular_values[]", or_null(kNumber)},
    {"models[].figures", kObject},
    {"models[].figures.*", or_null(kNumber)},
    {"models[].layer_figures", kList, kPerLayer},
    {"models[].layer_figures[]", kObject},
    {"models[].layer_figures[].*", or_null(kNumber)},
    {"models[].head_figures", kList, kPerLayer},
    {"models[].head_figures[]", kList, kPerHead},
    {"models[].head_figures[][]", kObject},
    {"models[].head_figures[][].*", or_null(kNumber)},
    {"models[].text", kList, kPerToken},
    {"models[].text[]", kText},
    {"models[].token_losses", kList, kPerToken},
    {"models[].token_losses[]", or_null(kNumber)},
    {"models[].layer_text", kObject},
    {"models[].layer_text.received", kList, kPerLayer},
    {"models[].layer_text.received[]", kBytes, kPerToken},
    {"models[].layer_text.gate", or_null(kList), kPerLayer},
    {"models[].layer_text.gate[]", or_null(kBytes), kPerToken},
    {"models[].overrides", or_null(kObject)},
    {"models[].overrides.tokens", kCount},
    {"models[].overrides.loss", or_null(kNumber)},
    {"models[].overrides.kinds", kList},
    {"models[].overrides.kinds[]", kObject},
    {"models[].overrides.kinds[].word", kText},
    {"models[].overrides.kinds[].figure", kText},
    {"models[].overrides.kinds[].left_out", or_null(kText)},
};

template <typename... Args>
[[noreturn]] void refuse(const std::string& file, fmt::format_string<Args...> format, Args&&... args) {
  io::fail(file, "not a report that this headgate reads: {}", fmt::format(format, std::forward<Args>(args)...));
}

/// Throws io::FileError if the value at `place` does not have the type and the size that `part` requires.
void check(const std::string& file, const Place& place, const Part& part) {
  const Json& value = *place.value;
  if (value.is_null() && part.type.nullable) return;
  if (!part.type.holds(value)) {
    const bool brief = value.is_number() || value.is_string();
    refuse(file, "{} is {} but must be {}{}", name_of(place),
           brief ? io::printable(value.dump()) : fmt::format("of type {}", value.type_name()), part.type.words,
           part.type.nullable ? " or null" : "");
  }
  if (part.size.limits == nullptr) return;
  const auto refuse_unless_within = [&](std::size_t size, const char* is, const char* unit, const char* be) {
    const auto [least, most] = part.size.limits(place);
    if (size >= least && size <= most) return;
    const std::string limits = least == most           ? fmt::format("{}", least)
                               : most == Limits{}.most ? fmt::format("at least {}", least)
                                                       : fmt::format("from {} to {}", least, most);
    refuse(file, "{} {} {}{} but must {} {}{}", name_of(place), is, size, unit, be, limits, part.size.reason);
  };
  if (value.is_array()) refuse_unless_within(value.size(), "has", " entries", "have");
  if (value.is_number_unsigned()) refuse_unless_within(value.get<std::size_t>(), "is", "", "be");
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    const auto padding = static_cast<std::size_t>(std::count(text.begin(), text.end(), '='));
    refuse_unless_within(text.size() / 4 * 3 - padding, "has", " bytes", "have");
  }
}

/// Checks all values that `path`, relative to `place`, selects.
/// Requires that the lists and objects that contain these values have been checked.
void walk(const std::string& file, const Place& place, std::string_view path, const Part& part) {
  const Json& value = *place.value;
  if (path.empty()) return check(file, place, part);
  if (value.is_null()) return;
  const std::string_view step = path.substr(0, path.find_first_of(".[", 1)), rest = path.substr(step.size());
  if (step == "[]" || step == ".*") {
    std::size_t index = 0;
    for (auto child = value.begin(); child != value.end(); ++child, ++index) {
      walk(file, {&*child, &place, value.is_object() ? std::string_view{child.key()} : "", index}, rest, part);
    }
  } else if (step.starts_with('[')) {
    const auto index = static_cast<std::size_t>(step[1] - '0');
    walk(file, {&value[index], &place, {}, index}, rest, part);
  } else {
    const std::string_view key = step.substr(step.starts_with('.') ? 1 : 0);
    const auto child = value.find(std::string(key));
    if (child == value.end()) refuse(file, "{} lacks {}", name_of(place), key);
    walk(file, {&*child, &place, key}, rest, part);
  }
}

}  // namespace

ordered_json parse_report(const std::string& name, std::string_view text) {
  constexpr int kMostDepth = 16;
  // Parses to io::Json, which sorts keys. ordered_json would take quadratic time for objects with many keys.
  const Json report = io::parse_json(name, text, kMostDepth);
  for (const Part& part : kParts) walk(name, {&report}, part.path, part);
  return report;
}

ordered_json joined_reports(const std::vector<ordered_json>& reports) {
  std::vector<std::string> texts;
  std::set<std::string> known_texts, keys, names;
  std::map<std::string, std::size_t> numbers;  // next number to append to a repeated model name
  ordered_json figures = ordered_json::array(), models = ordered_json::array();
  for (const ordered_json& report : reports) {
    const auto text = report.at("text").get<std::string>();
    if (known_texts.insert(text).second) texts.push_back(text);
    for (const ordered_json& figure : report.at("figures")) {
      if (keys.insert(figure.at("key").get<std::string>()).second) figures.push_back(figure);
    }
    for (ordered_json model : report.at("models")) {
      const auto name = model.at("name").get<std::string>();
      std::size_t& number = numbers.try_emplace(name, 2).first->second;
      std::string unique = name;
      while (!names.insert(unique).second) {
        unique = fmt::format("{} ({})", name.substr(0, name.find_last_not_of('/') + 1), number++);
      }
      model["name"] = std::move(unique);
      models.push_back(std::move(model));
    }
  }
  return {{"headgate", HEADGATE_VERSION},
          {"version", kReportVersion},
          {"text", fmt::format("{}", fmt::join(texts, ", "))},
          {"figures", std::move(figures)},
          {"models", std::move(models)}};
}

std::string verdicts_text(const ordered_json& report) {
  std::string out;
  for (const ordered_json& model : report.at("models")) {
    const auto text = [&model](const char* key) { return console::terminal_text(model.at(key).get<std::string>()); };
    out += console::paragraph(fmt::format("{}: {}", text("name"), text("verdict")));
  }
  return out;
}

}  // namespace headgate::xray
