// SPDX-License-Identifier: Apache-2.0
#include "tool/cli/json_option.hpp"

#include <nlohmann/json.hpp>

namespace headgate::cli {
namespace {

std::string dumped(const nlohmann::ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

}  // namespace

std::string json_text(const nlohmann::ordered_json& json) { return dumped(json, 2); }

std::string json_line(const nlohmann::ordered_json& json) { return dumped(json, -1); }

}  // namespace headgate::cli
