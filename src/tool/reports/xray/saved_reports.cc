// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/xray/saved_reports.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "headgate/version.h"
#include "models/io/file_error.hpp"
#include "models/io/input_file.hpp"
#include "models/io/json.hpp"
#include "tool/console/table.hpp"
#include "tool/console/terminal_text.hpp"

namespace headgate::xray {
namespace {

using nlohmann::ordered_json;
using Type = ordered_json::value_t;

/// A key that the page reads, and the type of its value.
struct Part {
  const char* key;
  Type type;
};

constexpr std::array kReportParts{Part{"headgate", Type::string}, Part{"text", Type::string},
                                  Part{"figures", Type::array}, Part{"models", Type::array}};
constexpr std::array kFigureParts{Part{"key", Type::string}, Part{"name", Type::string}, Part{"sentence", Type::string},
                                  Part{"share", Type::boolean}};
constexpr std::array kModelParts{Part{"name", Type::string},
                                 Part{"gate", Type::string},
                                 Part{"verdict", Type::string},
                                 Part{"layer_types", Type::array},
                                 Part{"figures", Type::object},
                                 Part{"layer_figures", Type::array},
                                 Part{"head_figures", Type::array},
                                 Part{"text", Type::array},
                                 Part{"token_losses", Type::array},
                                 Part{"heads", Type::array},
                                 Part{"layer_text", Type::object},
                                 Part{"parameters", Type::number_unsigned},
                                 Part{"layers", Type::number_unsigned},
                                 Part{"map_size", Type::number_unsigned}};

/// Throws io::FileError unless `object` is an object with all parts. `where` names the object in the message.
template <class Parts>
void check_parts(const std::string& name, const std::string& where, const ordered_json& object, const Parts& parts) {
  if (!object.is_object()) io::fail(name, "not a report of headgate xray: {} is no object", where);
  for (const Part& part : parts) {
    const auto found = object.find(part.key);
    if (found == object.end()) io::fail(name, "not a report of headgate xray: {} lacks {}", where, part.key);
    if (found->type() == part.type) continue;
    io::fail(name, "{} in {} is of type {} but must be {}", part.key, where, found->type_name(),
             ordered_json(part.type).type_name());
  }
}

void check_version(const std::string& name, const ordered_json& report) {
  const auto version = report.find("version");
  if (version == report.end()) io::fail(name, "not a report of headgate xray: the JSON lacks version");
  if (*version != kReportVersion) {
    io::fail(name, "version is {} but this headgate reads {}", io::printable(version->dump()), kReportVersion);
  }
}

}  // namespace

ordered_json parse_report(const std::string& name, std::string_view text) {
  constexpr int kMostDepth = 16;
  io::parse_json(name, text, kMostDepth);
  ordered_json report = ordered_json::parse(text);
  if (!report.is_object()) io::fail(name, "not a report of headgate xray: the JSON is no object");
  check_version(name, report);
  check_parts(name, "the JSON", report, kReportParts);
  for (const ordered_json& figure : report["figures"]) check_parts(name, "a figure", figure, kFigureParts);
  for (const ordered_json& model : report["models"]) check_parts(name, "a model", model, kModelParts);
  return report;
}

ordered_json joined_reports(const std::vector<ordered_json>& reports) {
  std::vector<std::string> texts;
  ordered_json figures = ordered_json::array(), models = ordered_json::array();
  for (const ordered_json& report : reports) {
    const auto text = report.at("text").get<std::string>();
    if (std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(text);
    for (const ordered_json& figure : report.at("figures")) {
      const auto same = [&figure](const ordered_json& other) { return other.at("key") == figure.at("key"); };
      if (std::none_of(figures.begin(), figures.end(), same)) figures.push_back(figure);
    }
    for (const ordered_json& model : report.at("models")) models.push_back(model);
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
