// SPDX-License-Identifier: Apache-2.0
#include "io/json.hpp"

#include <set>
#include <utility>
#include <vector>

#include "io/input_file.hpp"

namespace headgate::io {

Json parse_json(const std::string& path, std::string_view text, int max_depth) {
  using Event = Json::parse_event_t;
  std::vector<std::set<std::string>> keys;  // of every open object or array
  const auto check = [&](int, Event event, const Json& value) {
    if (event == Event::object_start || event == Event::array_start) {
      if (static_cast<int>(keys.size()) >= max_depth) fail(path, "brackets nested more than {} deep", max_depth);
      keys.emplace_back();
    } else if (event == Event::object_end || event == Event::array_end) {
      keys.pop_back();
    } else if (event == Event::key) {
      const std::string& key = value.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) fail(path, "'{}' twice", printable(key));
    }
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::exception& error) {
    constexpr std::size_t kMaxReason = 160;
    std::string_view what = error.what();  // "[json.exception.NAME.ID] REASON", which may quote the text
    if (const auto bracket = what.find("] "); bracket != std::string_view::npos) what.remove_prefix(bracket + 2);
    fail(path, "not JSON: {}", printable(what, kMaxReason));
  }
}

}  // namespace headgate::io
