// SPDX-License-Identifier: Apache-2.0
#include "models/io/json.hpp"

#include <cstddef>
#include <set>
#include <utility>
#include <vector>

#include "models/io/input_file.hpp"

namespace headgate::io {
namespace {

/// Checks JSON before Json::parse() reads it. Throws FileError for duplicate keys, and for brackets that are nested too
/// deeply. Stops at a syntax error, because Json::parse() then reports the error. A callback of Json::parse() would be
/// slower: after each inner object, Json::parse() visits all members of the outer object again.
class StructureCheck : public Json::json_sax_t {
 public:
  StructureCheck(const std::string& path, int max_depth) : path_(path), max_depth_(max_depth) {}

  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    if (!keys_.back().insert(name).second) fail(path_, "duplicate key '{}'", printable(name));
    return true;
  }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(Json::number_integer_t) override { return true; }
  bool number_unsigned(Json::number_unsigned_t) override { return true; }
  bool number_float(Json::number_float_t, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(Json::binary_t&) override { return true; }
  bool parse_error(std::size_t, const std::string&, const Json::exception&) override { return false; }

 private:
  bool open() {
    if (static_cast<int>(keys_.size()) >= max_depth_) fail(path_, "brackets nested more than {} deep", max_depth_);
    keys_.emplace_back();
    return true;
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  const std::string& path_;
  int max_depth_;
  std::vector<std::set<std::string>> keys_;  ///< keys found so far in each open object; arrays have an empty set
};

std::string dumped(const nlohmann::ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

}  // namespace

Json parse_json(const std::string& path, std::string_view text, int max_depth) {
  // nlohmann/json would treat a NUL as the end of the text.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
    fail(path, "not JSON: byte 0x00 at offset {}", nul);
  }
  StructureCheck check(path, max_depth);
  Json::sax_parse(text, &check);
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    constexpr std::size_t kMaxReason = 160;
    // what() has the form "[json.exception.NAME.ID] REASON". REASON may quote the text.
    std::string_view what = error.what();
    if (const auto bracket = what.find("] "); bracket != std::string_view::npos) what.remove_prefix(bracket + 2);
    fail(path, "not JSON: {}", printable(what, kMaxReason));
  }
}

std::string json_text(const nlohmann::ordered_json& json) { return dumped(json, 2); }

std::string json_line(const nlohmann::ordered_json& json) { return dumped(json, -1); }

}  // namespace headgate::io
