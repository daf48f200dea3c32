// SPDX-License-Identifier: Apache-2.0
#include "models/io/safetensors.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "library/core/convert.hpp"
#include "models/io/scratch.hpp"

namespace headgate::io {
namespace {

using headgate::testing::MemoryFile;
using headgate::testing::Scratch;

constexpr const char* kAccepted = "(read without complaint)";

std::string file_bytes(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header + data;
}

/// Returns a header with one tensor "w".
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{\"w\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}";
}

class SafetensorsTest : public ::testing::Test {
 protected:
  std::string refusal(const std::string& bytes) {
    file.write(bytes);
    return refusal_of(file.path());
  }

  static std::string refusal_of(const std::string& path) {
    try {
      const SafetensorsReader reader(path);
      reader.verify_checksum();
      return kAccepted;
    } catch (const FileError& error) {
      std::string what = error.what();
      EXPECT_TRUE(what.starts_with(path + ": ")) << what;
      EXPECT_EQ(what.find('\n'), std::string::npos) << what;
      return what;
    }
  }

  void expect_refused(const std::string& bytes, const std::string& why) {
    const std::string what = refusal(bytes);
    EXPECT_NE(what.find(why), std::string::npos) << what << "\nlacks: " << why;
  }

  /// Expects a header over `data_bytes` zero bytes to be refused.
  void expect_header_refused(const std::string& header, std::size_t data_bytes, const std::string& why) {
    expect_refused(file_bytes(header, std::string(data_bytes, '\0')), why);
  }

  MemoryFile file;
  Scratch scratch;
};

TEST_F(SafetensorsTest, Tensors_WrittenAndRead_AreTheSame) {
  const std::vector<float> a{1.0F, -2.5F, 3.0F, 0.0F, 1e-40F, -0.0F};
  const std::vector<std::int32_t> b{7};
  const std::vector<std::uint8_t> c{1, 0, 1};
  const std::vector<double> d{0.1, 0.2};
  const std::string path = scratch / "t.safetensors";
  write_safetensors(path,
                    {{"c", DType::boolean, {3}, c.data()},
                     {"model.a \"quoted\"\n", DType::f32, {2, 3}, a.data()},
                     {"b", DType::i32, {}, b.data()},
                     {"empty", DType::f32, {0, 5}, nullptr},
                     {"d", DType::f64, {2, 1}, d.data()}},
                    {{"note", "text"}});
  const SafetensorsReader reader(path);
  EXPECT_NO_THROW(reader.verify_checksum());
  ASSERT_EQ(reader.tensors().size(), 5U);
  EXPECT_EQ(reader.metadata().at("format"), "pt");
  EXPECT_EQ(reader.metadata().at("note"), "text");
  EXPECT_EQ(reader.find("absent"), nullptr);

  const TensorEntry* entry = reader.find("model.a \"quoted\"\n");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->dtype, DType::f32);
  EXPECT_EQ(entry->shape, (std::vector<std::int64_t>{2, 3}));
  std::vector<float> back(6);
  reader.read_f32(*entry, back.data());
  EXPECT_EQ(back, std::vector<float>(a.begin(), a.end()));
  std::vector<double> d_back(2);
  reader.read(*reader.find("d"), d_back.data());
  EXPECT_EQ(d_back, d);
  EXPECT_TRUE(reader.find("b")->shape.empty());
  EXPECT_EQ(reader.find("empty")->bytes, 0U);
}

TEST_F(SafetensorsTest, Header_Written_IsPaddedToEightBytes) {
  const float x = 1.0F;
  for (std::size_t n = 1; n < 10; ++n) {
    write_safetensors(scratch / "t", {{std::string(n, 'n'), DType::f32, {1}, &x}});
    const std::string bytes = headgate::testing::read_bytes(scratch / "t");
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    EXPECT_EQ(length % 8, 0U);
    EXPECT_EQ(bytes.size(), 8 + length + 4);
  }
}

TEST_F(SafetensorsTest, File_WrittenByOtherPrograms_IsRead) {
  const std::string data(24, '\0');
  for (const char* header : {"{}", "{ }   ", "{\"__metadata__\":{}}", "{\"__metadata__\":{\"format\":\"pt\"}}"}) {
    EXPECT_EQ(refusal(file_bytes(header, "")), kAccepted) << header;
  }
  EXPECT_EQ(refusal(file_bytes("{\"b\":{\"data_offsets\":[8,24],\"shape\":[2,2],\"dtype\":\"F32\"}, "
                               "\"a\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]}}   ",
                               data)),
            kAccepted);
}

TEST_F(SafetensorsTest, NarrowTypes_Read_AreWidened) {
  const std::vector<BFloat16> bf{to_bf16(1.5F), to_bf16(-3.0F)};
  const std::vector<Float16> half{to_f16(0.25F), to_f16(65504.0F)};
  write_safetensors(scratch / "t", {{"bf", DType::bf16, {2}, bf.data()}, {"half", DType::f16, {2}, half.data()}});
  const SafetensorsReader reader(scratch / "t");
  std::vector<float> out(2);
  reader.read_f32(*reader.find("bf"), out.data());
  EXPECT_EQ(out, (std::vector<float>{1.5F, -3.0F}));
  reader.read_f32(*reader.find("half"), out.data());
  EXPECT_EQ(out, (std::vector<float>{0.25F, 65504.0F}));
}

TEST_F(SafetensorsTest, Values_NotFinite_AreRefusedByName) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const std::vector<float> values{0.0F, bad};
    write_safetensors(scratch / "t", {{"layer.w", DType::f32, {2}, values.data()}});
    const SafetensorsReader reader(scratch / "t");
    std::vector<float> out(2);
    try {
      reader.read_f32(*reader.find("layer.w"), out.data());
      ADD_FAILURE() << bad << " was read";
    } catch (const FileError& error) {
      EXPECT_NE(std::string(error.what()).find("'layer.w': element 1"), std::string::npos) << error.what();
    }
  }
  const std::int32_t whole = 1;
  write_safetensors(scratch / "t", {{"w", DType::i32, {1}, &whole}});
  const SafetensorsReader reader(scratch / "t");
  float out = 0.0F;
  EXPECT_THROW(reader.read_f32(reader.tensors()[0], &out), FileError);
}

TEST_F(SafetensorsTest, File_NoSafetensorsFile_IsRefused) {
  expect_refused("", "only 0 bytes");
  expect_refused("1234567", "only 7 bytes");
  expect_refused(std::string("\x93NUMPY\x01\0", 8) + " something else", "not a safetensors file");
  expect_refused(file_bytes("[]", ""), "not a JSON object");
  expect_refused(file_bytes("", ""), "not a JSON object");
  expect_refused(file_bytes(" {}", ""), "not a JSON object");
  expect_refused(file_bytes("{", ""), "not JSON");
  expect_refused(file_bytes("{}}", ""), "not JSON");
  expect_refused(file_bytes("{\"a\\ud800\":0}", ""), "not JSON");
  expect_refused(file_bytes("{\"\xff\":0}", ""), "not JSON");
  expect_refused(file_bytes("{\"a\":1e999}", ""), "not JSON");
  expect_refused(file_bytes("{\"w\":" + std::string(100000, '[') + std::string(100000, ']') + "}", ""), "nested");
  EXPECT_NE(refusal_of(scratch / "absent").find("No such file"), std::string::npos);
  EXPECT_NE(refusal_of(scratch.path()).find("not a regular file"), std::string::npos);
}

TEST_F(SafetensorsTest, HeaderLength_Wrong_IsRefused) {
  for (const std::uint64_t claim :
       {std::uint64_t{3}, std::uint64_t{1} << 32, ~std::uint64_t{0}, std::uint64_t{1} << 63}) {
    std::string bytes = file_bytes("{}", "");
    std::memcpy(bytes.data(), &claim, sizeof(claim));
    expect_refused(bytes, "the header claims");
  }
  expect_refused(file_bytes("{}" + std::string(std::size_t{1} << 23, ' '), ""), "at most 8388608 are read");
}

TEST_F(SafetensorsTest, Tensor_BeyondTheFile_IsRefused) {
  expect_header_refused(one("F32", "[2]", "[0,8]"), 7, "truncated");
  expect_header_refused(one("F32", "[2]", "[0,8]"), 0, "truncated");
  expect_header_refused(one("F32", "[2]", "[0,8]"), 9, "trailing data: 1 bytes");
  expect_header_refused("{}", 1, "trailing data");
  // Claims several EiB, for which nothing may be allocated.
  expect_header_refused(one("F32", "[1152921504606846976]", "[0,4611686018427387904]"), 8, "truncated");
  expect_header_refused(one("F32", "[4611686018427387904,4]", "[0,0]"), 0, "too large");
  expect_header_refused(one("F32", "[0,9223372036854775807,2]", "[0,0]"), 0, "too large");
  expect_header_refused(one("F32", "[9223372036854775808]", "[0,0]"), 0, "too large");
  expect_header_refused(one("F32", "[99999999999999999999999]", "[0,0]"), 0, "is not a non-negative integer");
}

TEST_F(SafetensorsTest, Shape_OtherNumberOfBytes_IsRefused) {
  expect_header_refused(one("F32", "[3]", "[0,8]"), 8, "'w': shape (3,) of F32 takes 12 bytes, but its offsets span 8");
  expect_header_refused(one("F16", "[2]", "[0,8]"), 8, "takes 4 bytes");
  expect_header_refused(one("F32", "[]", "[0,8]"), 8, "shape () of F32 takes 4 bytes");
  expect_header_refused(one("F32", "[2,0]", "[0,8]"), 8, "takes 0 bytes");
  expect_header_refused(one("F32", "[-2]", "[0,8]"), 8, "is not a non-negative integer");
  expect_header_refused(one("F32", "[2.0]", "[0,8]"), 8, "is not a non-negative integer");
  expect_header_refused(one("F32", "[\"2\"]", "[0,8]"), 8, "is not a non-negative integer");
  expect_header_refused(one("F32", "2", "[0,8]"), 8, "its shape is not a list");
  std::string many = "[1";
  for (int i = 0; i < 32; ++i) many += ",1";
  expect_header_refused(one("F32", many + "]", "[0,4]"), 4, "more than 32 dimensions");
}

TEST_F(SafetensorsTest, Offsets_Bad_AreRefused) {
  expect_header_refused(one("F32", "[2]", "[8,0]"), 8, "before its start");
  expect_header_refused(one("F32", "[2]", "[8,16]"), 16, "no tensor covers the 8 bytes before 'w'");
  for (const char* offsets : {"[0]", "[0,8,8]", "8", "{}", "null"}) {
    expect_header_refused(one("F32", "[2]", offsets), 8, "data_offsets are not two numbers");
  }
  for (const char* offsets : {"[0,-8]", "[0.0,8]", "[null,8]", "[0,8.0]"}) {
    expect_header_refused(one("F32", "[2]", offsets), 8, "a data offset is not a non-negative integer");
  }
}

TEST_F(SafetensorsTest, Tensors_DuplicateOrOverlapping_AreRefused) {
  const std::string w = "\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}";
  expect_header_refused("{" + w + "," + w + "}", 8, "duplicate key 'w'");
  expect_header_refused("{" + w + ",\"v\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "overlap");
  expect_header_refused("{" + w + ",\"v\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12, "overlap");
  expect_header_refused("{" + w + ",\"v\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "overlap");
  expect_header_refused("{" + w + ",\"v\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,20]}}", 20,
                        "no tensor covers the 4 bytes before 'v'");
  expect_header_refused("{\"w\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
                        "duplicate key 'dtype'");
  expect_header_refused("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "duplicate key '__metadata__'");
}

TEST_F(SafetensorsTest, Entry_Bad_IsRefused) {
  for (const char* dtype : {"F8_E4M3", "I8", "U16", "C64", "f32", "<f4", ""}) {
    expect_header_refused(one(dtype, "[2]", "[0,8]"), 8, "is not read; F32 F16");
  }
  expect_header_refused("{\"w\":1}", 0, "'w' is not a JSON object");
  expect_header_refused("{\"w\":{\"shape\":[],\"data_offsets\":[0,4]}}", 4, "'w' has no dtype");
  expect_header_refused("{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "'w' has no shape");
  expect_header_refused("{\"w\":{\"dtype\":\"F32\",\"shape\":[]}}", 4, "'w' has no data_offsets");
  expect_header_refused("{\"w\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4],\"extra\":1}}", 4,
                        "unknown key");
  expect_header_refused("{\"w\":{\"dtype\":1,\"shape\":[],\"data_offsets\":[0,4]}}", 4, "dtype is not a string");
  expect_header_refused("{\"\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, "name has 0 bytes");
  expect_header_refused("{\"" + std::string(2000, 'x') + "\":{}}", 0, "name has 2000 bytes");
  expect_header_refused("{\"__metadata__\":[]}", 0, "__metadata__ is not a JSON object");
  expect_header_refused("{\"__metadata__\":{\"k\":1}}", 0, "'k' is not a string");
  expect_header_refused("{\"line\\nbreak\\u001b[2J\":1}", 0, "line\\x0abreak\\x1b[2J");
}

TEST_F(SafetensorsTest, File_EveryTruncationExtensionOrFlippedBit_IsRefused) {
  const std::vector<float> values{1.0F, 2.0F, 3.0F, 4.0F, 5.0F};
  write_safetensors(scratch / "t", {{"a", DType::f32, {2}, values.data()}, {"b", DType::f32, {3}, values.data() + 2}});
  const std::string whole = headgate::testing::read_bytes(scratch / "t");
  ASSERT_EQ(refusal(whole), kAccepted);
  for (std::size_t n = 0; n < whole.size(); ++n) EXPECT_NE(refusal(whole.substr(0, n)), kAccepted) << n;
  EXPECT_NE(refusal(whole + '\0'), kAccepted);
  const std::size_t data = whole.size() - values.size() * sizeof(float);
  for (std::size_t at = data; at < whole.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
      expect_refused(bytes, "corrupt: the data's checksum");
    }
  }
  for (std::size_t at = 0; at < 8; ++at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    EXPECT_NE(refusal(bytes), kAccepted) << at;
  }
}

TEST(Checksum, Checksum_InPieces_IsTheSameAndDependsOnTheLength) {
  std::vector<std::uint8_t> bytes(100);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(37 * i + 1);
  Checksum whole;
  whole.add(bytes.data(), bytes.size());
  std::mt19937 random(7);  // NOLINT: the same pieces in every run
  for (int round = 0; round < 200; ++round) {
    Checksum pieces;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t n = std::min<std::size_t>(random() % 20, bytes.size() - at);
      pieces.add(bytes.data() + at, n);
      at += n;
    }
    ASSERT_EQ(pieces.text(), whole.text());
  }
  const std::vector<std::uint8_t> zeros(64);
  std::vector<std::string> seen;
  for (std::size_t n = 0; n <= zeros.size(); ++n) {
    Checksum checksum;
    checksum.add(zeros.data(), n);
    EXPECT_EQ(std::count(seen.begin(), seen.end(), checksum.text()), 0) << n;
    seen.push_back(checksum.text());
  }
}

}  // namespace
}  // namespace headgate::io
