// SPDX-License-Identifier: Apache-2.0
#include "models/io/json.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace headgate::io {
namespace {

std::string refused_json(const std::string& text, int max_depth = 4) {
  try {
    parse_json("file.json", text, max_depth);
    return "(read without complaint)";
  } catch (const FileError& error) {
    return error.what();
  }
}

/// `count` objects within one.
std::string many_objects(int count) {
  std::string text = "{\"first\":{}";
  for (int i = 0; i < count; ++i) text += ",\"k" + std::to_string(i) + "\":{}";
  return text + '}';
}

double seconds_to_parse(const std::string& text) {
  const auto begin = std::chrono::steady_clock::now();
  parse_json("file.json", text, 4);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST(ParseJson, Keys_Duplicate_AreRefusedByName) {
  EXPECT_EQ(refused_json(R"({"a":1,"b":{"a":2},"a":3})"), "file.json: duplicate key 'a'");
  EXPECT_EQ(refused_json(R"({"b":{"a":1,"\u0061":2}})"), "file.json: duplicate key 'a'");
  EXPECT_EQ(refused_json(R"([{"a":1},{"a":2},{"a":{"a":3}}])"), "(read without complaint)");
}

TEST(ParseJson, Text_WithANul_IsRefused) {
  using namespace std::string_literals;
  EXPECT_EQ(refused_json("{\"a\":1}\0 {"s), "file.json: not JSON: byte 0x00 at offset 7");
  EXPECT_EQ(refused_json("\0"s), "file.json: not JSON: byte 0x00 at offset 0");
}

TEST(ParseJson, Nesting_BeyondTheDepth_IsRefused) {
  EXPECT_EQ(refused_json("[[[[1]]]]"), "(read without complaint)");
  EXPECT_EQ(refused_json("[[[[[1]]]]]"), "file.json: brackets nested more than 4 deep");
  EXPECT_EQ(refused_json(std::string(100000, '[')), "file.json: brackets nested more than 4 deep");
}

TEST(ParseJson, Syntax_Wrong_IsOneLineThatNamesTheFile) {
  for (const char* text : {"", "{", "[1,]", "nan", "1e999", "{\"a\":\"\n\"}", "\"\xff\"", "{} x"}) {
    const std::string what = refused_json(text);
    EXPECT_TRUE(what.starts_with("file.json: not JSON: ")) << what;
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
  }
}

TEST(ParseJson, InnerObjects_Many_TakeLinearTime) {
  const double few = seconds_to_parse(many_objects(2000));
  const double many = seconds_to_parse(many_objects(40000));
  EXPECT_LT(many, 200.0 * few + 0.5) << "20 times as many took " << many / few << " times as long";
}

TEST(JsonLine, Text_NotUtf8_IsReplaced) { EXPECT_EQ(json_line({{"a", "\xff"}}), "{\"a\":\"\xef\xbf\xbd\"}\n"); }

}  // namespace
}  // namespace headgate::io
