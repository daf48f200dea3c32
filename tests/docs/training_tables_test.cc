// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "library/core/rows.hpp"
#include "models/decoder/config_keys.hpp"
#include "models/decoder/weights.hpp"
#include "models/train/choices.hpp"
#include "models/train/settings.hpp"

// Checks that the tables of docs/reference/training.md agree with the rows in the code.

namespace headgate {
namespace {

using Lines = std::vector<std::string>;

/// Returns the lines of the document's table below its heading line and the rule under that.
Lines table_of_document(const std::string& heading) {
  std::ifstream in(HEADGATE_TRAINING_MD);
  Lines lines;
  std::string line;
  while (std::getline(in, line) && line != heading) continue;
  std::getline(in, line);  // the rule
  while (std::getline(in, line) && line.starts_with('|')) lines.push_back(line);
  return lines;
}

/// Shows a difference as the whole table that the document should have.
void expect_table(const std::string& heading, const Lines& expected) {
  std::string text = heading + "\n" + "|" + [&heading] {
    std::string rule;
    for (auto i = std::count(heading.begin(), heading.end(), '|'); i > 1; --i) rule += "---|";
    return rule;
  }();
  for (const std::string& line : expected) text += "\n" + line;
  EXPECT_TRUE(table_of_document(heading) == expected) << "docs/reference/training.md should have:\n" << text;
}

std::string code(std::string_view text) { return text.empty() ? "" : fmt::format("`{}`", text); }

/// Escapes stars, which mean emphasis in Markdown.
std::string prose(std::string_view text) {
  std::string out;
  for (const char letter : text) out += letter == '*' ? std::string("\\*") : std::string(1, letter);
  return out;
}

template <class Rows>
std::string list_in_code(const Rows& rows) {
  std::string out;
  for (const auto& row : rows) out += (out.empty() ? "" : ", ") + code(row.word);
  return out;
}

/// Returns the values of a field: its range, or its words in files and, if different, on the command line.
template <class Row>
std::string values_text(const Row& row) {
  using Value = ValueOf<Row>;
  if constexpr (std::is_same_v<Value, models::Embeddings>) {
    return "`true`, `false`; option: " + list_in_code(OptionWords<Value>::kAll);
  } else if constexpr (std::is_same_v<Value, models::Switch>) {
    return "`true`, `false`";
  } else if constexpr (std::is_enum_v<Value>) {
    const std::string in_files = list_in_code(Words<Value>::kAll), in_options = list_in_code(OptionWords<Value>::kAll);
    return in_files == in_options ? in_files : in_files + "; option: " + in_options;
  } else if constexpr (std::is_same_v<Value, std::vector<models::LayerType>>) {
    return "for each layer, " + list_in_code(Words<models::LayerType>::kAll);
  } else if constexpr (std::is_same_v<Value, std::vector<double>>) {
    return "for each layer, " + row.range.text();
  } else if constexpr (kIsList<Value>) {
    return "texts";
  } else if constexpr (std::is_same_v<Value, std::uint64_t>) {
    return "a whole number";
  } else if constexpr (std::is_same_v<Value, std::string>) {
    return "a text";
  } else {
    return row.range.text();
  }
}

template <typename Value>
std::string value_in_file(const Value& value) {
  if constexpr (std::is_same_v<Value, models::Embeddings>) {
    return code(value == models::Embeddings::tied ? "true" : "false");
  } else if constexpr (std::is_same_v<Value, models::Switch>) {
    return code(value == models::Switch::on ? "true" : "false");
  } else if constexpr (kIsList<Value>) {
    return "none";
  } else if constexpr (std::is_enum_v<Value>) {
    return code(word_of(value));
  } else {
    return fmt::format("{}", value);
  }
}

TEST(TrainingDocument, ConfigTable_EveryKey_IsListed) {
  const models::DecoderConfig defaults;
  Lines lines;
  for_each_row(models::kConfigKeys, [&](const auto& row) {
    const bool required = row.presence == models::Presence::required;
    const std::string missing = required ? "refused" : value_in_file(row.of(defaults));
    lines.push_back(fmt::format("| {} | {} | {} | {} | {} |", code(row.key), code(row.option), prose(row.help),
                                values_text(row), missing));
  });
  expect_table("| key | option | what it is | values | where it is missing |", lines);
}

TEST(TrainingDocument, SettingsTable_EverySetting_IsListed) {
  Lines lines;
  for_each_row(train::kSettings, [&](const auto& row) {
    lines.push_back(fmt::format("| {} | {} | {} | {} | {} | {} |", code(row.key), code(row.option), prose(row.help),
                                values_text(row), train::default_text(row, train::task_settings),
                                row.on_resume == train::OnResume::may_change ? "may change" : ""));
  });
  expect_table("| key | option | what it is | values | default | on `--resume` |", lines);
}

TEST(TrainingDocument, TensorTable_EveryTensorOfALayer_IsListedInOrder) {
  Lines expected, found;
  models::LayerWeights<const float*> weights;
  models::visit_layer_tensors([&](const auto& row, auto&&) { expected.push_back(std::string(row.name)); },
                              models::DecoderConfig{}, models::LayerConfig{}, weights);
  for (const std::string& line : table_of_document("| name, after `model.layers.N.` | shape | present with |")) {
    const std::string cell = line.substr(0, line.find('|', 1));
    for (std::size_t at = cell.find('`'); at != std::string::npos;) {
      const std::size_t end = cell.find('`', at + 1);
      found.push_back(cell.substr(at + 1, end - at - 1));
      at = cell.find('`', end + 1);
    }
  }
  EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace headgate
