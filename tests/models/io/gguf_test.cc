// SPDX-License-Identifier: Apache-2.0
#include "models/io/gguf.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "library/core/convert.hpp"
#include "models/io/gguf_bytes.hpp"
#include "models/io/scratch.hpp"

namespace headgate::io {
namespace {

using headgate::testing::GgufBytes;
using headgate::testing::MemoryFile;
using headgate::testing::Scratch;
using headgate::testing::write_bytes;

class GgufTest : public ::testing::Test {
 protected:
  std::string refusal(const std::string& bytes) {
    file.write(bytes);
    try {
      const GgufFile gguf(file.path());
      return "(read without complaint)";
    } catch (const FileError& error) {
      std::string what = error.what();
      EXPECT_TRUE(what.starts_with(file.path() + ": ")) << what;
      EXPECT_EQ(what.find('\n'), std::string::npos) << what;
      return what;
    }
  }
  void expect_refused(const std::string& bytes, const std::string& why) {
    const std::string what = refusal(bytes);
    EXPECT_NE(what.find(why), std::string::npos) << what << "\nlacks: " << why;
  }

  MemoryFile file;
};

TEST_F(GgufTest, Values_EveryType_AreRead) {
  GgufBytes out;
  out.value<std::uint8_t>("u8", GgufType::u8, 200);
  out.value<std::int8_t>("i8", GgufType::i8, -100);
  out.value<std::uint16_t>("u16", GgufType::u16, 60000);
  out.value<std::int16_t>("i16", GgufType::i16, -30000);
  out.u32("u32", 4000000000U);
  out.value<std::int32_t>("i32", GgufType::i32, -2000000000);
  out.value<std::uint64_t>("u64", GgufType::u64, std::uint64_t{1} << 62);
  out.value<std::int64_t>("i64", GgufType::i64, -5);
  out.f32("f32", 0.5F);
  out.value<double>("f64", GgufType::f64, 0.1);
  out.value<std::uint8_t>("yes", GgufType::boolean, 1);
  out.string("text", std::string("a\0b", 3));
  out.strings("texts", {"", "Ġ t", "x"});
  out.raw_value("list", GgufType::list,
                GgufBytes::raw(GgufType::i16) + GgufBytes::raw<std::uint64_t>(2) + GgufBytes::raw<std::int16_t>(-1) +
                    GgufBytes::raw<std::int16_t>(7));
  out.raw_value("empty", GgufType::list, GgufBytes::raw(GgufType::f32) + GgufBytes::raw<std::uint64_t>(0));
  out.raw_value("floats", GgufType::list,
                GgufBytes::raw(GgufType::f32) + GgufBytes::raw<std::uint64_t>(1) + GgufBytes::raw(1.5F));
  for (const std::uint32_t version : {2U, 3U}) {
    out.version = version;
    file.write(out.bytes());
    const GgufFile gguf(file.path());
    EXPECT_EQ(gguf.version(), version);
    EXPECT_EQ(gguf.integer("u8"), 200);
    EXPECT_EQ(gguf.integer("i8"), -100);
    EXPECT_EQ(gguf.integer("u16"), 60000);
    EXPECT_EQ(gguf.integer("i16"), -30000);
    EXPECT_EQ(gguf.integer("u32"), 4000000000);
    EXPECT_EQ(gguf.integer("i32"), -2000000000);
    EXPECT_EQ(gguf.integer("u64"), std::int64_t{1} << 62);
    EXPECT_EQ(gguf.integer("i64"), -5);
    EXPECT_EQ(gguf.number("f32"), 0.5);
    EXPECT_EQ(gguf.number("f64"), 0.1);
    EXPECT_EQ(gguf.number("u8"), 200.0);
    EXPECT_TRUE(gguf.boolean("yes"));
    EXPECT_EQ(gguf.string("text"), std::string("a\0b", 3));
    EXPECT_EQ(gguf.strings("texts"), (std::vector<std::string>{"", "Ġ t", "x"}));
    EXPECT_EQ(gguf.integers("list"), (std::vector<std::int64_t>{-1, 7}));
    EXPECT_TRUE(gguf.numbers("empty").empty());
    EXPECT_EQ(gguf.numbers("floats"), (std::vector<float>{1.5F}));
    EXPECT_THROW(gguf.integer("f32"), FileError);
    EXPECT_THROW(gguf.string("u8"), FileError);
    EXPECT_THROW(gguf.strings("list"), FileError);
    EXPECT_THROW(gguf.integers("floats"), FileError);
    EXPECT_THROW(gguf.integer("none"), FileError);
  }
}

TEST_F(GgufTest, Tensors_EveryFormat_AreRead) {
  GgufBytes out;
  out.f32_tensor("b", {2, 3}, {1, 2, 3, 4, 5, 6});
  out.tensor("a", {2}, find_gguf_format("BF16")->id,
             GgufBytes::raw(to_bf16(1.5F).bits) + GgufBytes::raw(to_bf16(-2.0F).bits));
  out.tensor("h", {1, 1, 1, 1}, find_gguf_format("F16")->id, GgufBytes::raw(to_f16(0.25F).bits));
  file.write(out.bytes());
  const GgufFile gguf(file.path());
  ASSERT_EQ(gguf.tensors().size(), 3U);
  const GgufTensor& b = *gguf.find("b");
  EXPECT_EQ(b.shape, (std::vector<std::int64_t>{2, 3}));
  std::vector<float> values(6);
  gguf.read_f32(b, values.data());
  EXPECT_EQ(values, (std::vector<float>{1, 2, 3, 4, 5, 6}));
  gguf.read_f32(*gguf.find("a"), values.data());
  EXPECT_EQ(values[0], 1.5F);
  EXPECT_EQ(values[1], -2.0F);
  gguf.read_f32(*gguf.find("h"), values.data());
  EXPECT_EQ(values[0], 0.25F);
  EXPECT_EQ(gguf.find("c"), nullptr);
}

TEST_F(GgufTest, Tensor_NotFiniteOrFormatUnknown_IsRefused) {
  GgufBytes out;
  out.f32_tensor("x", {2}, {1.0F, std::numeric_limits<float>::infinity()});
  out.tensor("q", {256}, find_gguf_format("Q2_K")->id, std::string(84, '\0'));
  file.write(out.bytes());
  const GgufFile gguf(file.path());
  std::vector<float> values(256);
  EXPECT_THROW(gguf.read_f32(*gguf.find("x"), values.data()), FileError);
  try {
    gguf.read_f32(*gguf.find("q"), values.data());
    FAIL();
  } catch (const FileError& error) {
    EXPECT_NE(std::string(error.what()).find("tensor 'q' is Q2_K, which is not read; F32, F16, BF16"),
              std::string::npos)
        << error.what();
  }
}

/// Random bytes make scales that are not finite in some blocks: both ways of reading refuse the same element.
TEST_F(GgufTest, Numbers_NotFinite_AreFoundAsWhenTheyAreRead) {
  std::mt19937 random(5);
  for (const GgufFormat& format : gguf_formats()) {
    if (format.widen == nullptr) continue;
    int refused = 0;
    for (int round = 0; round < 60; ++round) {
      const std::int64_t blocks = format.numbers == 1 ? 40 : 8;
      std::string data(static_cast<std::size_t>(blocks) * format.bytes, '\0');
      for (char& byte : data) byte = static_cast<char>(random());
      GgufBytes out;
      out.tensor("x", {blocks * format.numbers}, format.id, data);
      file.write(out.bytes());
      const GgufFile gguf(file.path());
      const GgufTensor& x = *gguf.find("x");
      std::vector<float> values(static_cast<std::size_t>(x.numel()));
      const auto complaint = [](const auto& read) -> std::string {
        try {
          read();
        } catch (const FileError& error) {
          return error.what();
        }
        return "";
      };
      const std::string expected = complaint([&] { gguf.read_f32(x, values.data()); });
      EXPECT_EQ(complaint([&] { gguf.check_numbers(x); }), expected) << format.word;
      refused += expected.empty() ? 0 : 1;
    }
    EXPECT_GT(refused, 0) << format.word;
    EXPECT_LT(refused, 60) << format.word;
  }
}

TEST_F(GgufTest, Header_Faulty_IsRefused) {
  GgufBytes good;
  good.string("general.architecture", "llama").f32_tensor("x", {2}, {1, 2});
  EXPECT_EQ(refusal(good.bytes()), "(read without complaint)");
  for (std::size_t bytes = 0; bytes < good.bytes().size(); ++bytes) {
    EXPECT_NE(refusal(good.bytes().substr(0, bytes)), "(read without complaint)") << bytes;
  }
  const auto changed = [&](const auto& change) {
    GgufBytes out = good;
    change(out);
    return out.bytes();
  };
  const auto list = [](GgufType of, std::uint64_t count) { return GgufBytes::raw(of) + GgufBytes::raw(count); };
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 61;
  expect_refused(changed([](GgufBytes& out) { out.magic = "GGML"; }), "not a GGUF file");
  expect_refused(changed([](GgufBytes& out) { out.version = 1; }), "GGUF version 1 is not read; 2 and 3 are");
  expect_refused(changed([](GgufBytes& out) { out.version = 0x03000000; }), "big-endian");
  expect_refused(changed([](GgufBytes& out) { out.tensor_count = kHuge; }), "tensors; at most");
  expect_refused(changed([](GgufBytes& out) { out.tensor_count = 1000; }), "truncated: 1000 tensors");
  expect_refused(changed([](GgufBytes& out) { out.value_count = kHuge; }), "values; at most");
  expect_refused(changed([](GgufBytes& out) { out.value_count = 5000; }), "truncated: 5000 values");
  expect_refused(changed([](GgufBytes& out) { out.u32("general.architecture", 1); }),
                 "duplicate key 'general.architecture'");
  expect_refused(changed([](GgufBytes& out) { out.u32("", 1); }), "a key has 0 bytes");
  expect_refused(changed([](GgufBytes& out) { out.value<char>("t", static_cast<GgufType>(13), 0); }),
                 "the unknown type 13");
  expect_refused(changed([](GgufBytes& out) { out.value<char>("t", GgufType::boolean, 2); }),
                 "boolean of 2, neither 0 nor 1");
  expect_refused(changed([&](GgufBytes& out) { out.raw_value("t", GgufType::list, list(GgufType::list, 1)); }),
                 "list of lists");
  expect_refused(changed([&](GgufBytes& out) { out.raw_value("t", GgufType::list, list(GgufType::u64, kHuge)); }),
                 "truncated: 't' has");
  expect_refused(changed([&](GgufBytes& out) { out.raw_value("t", GgufType::list, list(GgufType::string, kHuge)); }),
                 "truncated: 't' has");
  expect_refused(changed([](GgufBytes& out) { out.raw_value("t", GgufType::string, GgufBytes::raw(kHuge)); }),
                 "truncated: a string");
  for (const std::uint32_t alignment : {0U, 24U, 1U << 21}) {
    expect_refused(changed([&](GgufBytes& out) { out.u32("general.alignment", alignment); }), "not a power of two");
  }
}

TEST_F(GgufTest, Tensor_Faulty_IsRefused) {
  GgufBytes good;
  good.f32_tensor("x", {8}, {1, 2, 3, 4, 5, 6, 7, 8});
  const auto with = [&](const std::vector<std::int64_t>& sizes, std::uint32_t format, std::uint64_t offset,
                        const std::string& name = "y") {
    GgufBytes out = good;
    out.tensor_at(name, sizes, format, offset).data(std::string(64, '\0'));
    return out.bytes();
  };
  constexpr std::int64_t kHuge = std::int64_t{1} << 40;
  EXPECT_EQ(refusal(with({16}, 0, 32)), "(read without complaint)");
  expect_refused(with({16}, 0, 32, "x"), "duplicate tensor 'x'");
  expect_refused(with({16}, 0, 32, ""), "name has 0 bytes");
  expect_refused(with({16}, 0, 0), "overlap");
  expect_refused(with({16}, 0, 40), "not a multiple of 32");
  expect_refused(with({16}, 0, 64), "truncated: tensor 'y' takes 64 bytes from 64 on");
  expect_refused(with({16}, 0, std::uint64_t{1} << 63), "truncated: tensor 'y'");
  expect_refused(with({kHuge, kHuge}, 0, 32), "tensor 'y': dimension");
  expect_refused(with({kHuge}, 0, 32), "truncated: tensor 'y'");
  expect_refused(with({0}, 0, 32), "tensor 'y': dimension 0 is 0");
  expect_refused(with({-1}, 0, 32), "tensor 'y': dimension 0 is");
  expect_refused(with({}, 0, 32), "has 0 dimensions");
  expect_refused(with({1, 1, 1, 1, 1}, 0, 32), "has 5 dimensions");
  expect_refused(with({16}, 4, 32), "of format 4, which is not known; F32, F16, BF16, Q8_0");
  expect_refused(with({2, 16}, find_gguf_format("Q8_0")->id, 32), "are not whole blocks of Q8_0, which hold 32");
}

/// Numbers that PyPI's `gguf` reads from a block whose byte i is 37 i + 11, with f16 scales of 1 and ½, or one of 2.
struct WidenedBlock {
  const char* format;
  std::vector<int> places;
  std::vector<float> values;
  float sum;
};

TEST(GgufFormats, Formats_Blocks_AreWidened) {
  const std::vector<int> small{0, 1, 15, 16, 17, 31};
  const std::vector<int> super{0, 1, 31, 32, 63, 64, 100, 127, 128, 160, 191, 200, 224, 255};
  const std::vector<WidenedBlock> blocks{
      {"Q8_0", small, {85, 122, -128, -91, -54, -48}, -176},
      {"Q4_0", small, {-3, 2, -8, -3, -1, 0}, -21},
      {"Q4_1", small, {15.5, 4.5, 10.5, 9.5, 12.5, 12.5}, 261},
      {"Q5_0", small, {9, -2, -12, 14, 0, 1}, 15},
      {"Q5_1", small, {19.5, 24.5, 30.5, 19.5, 5.5, 5.5}, 521},
      {"Q4_K", super, {315.5, -25.5, 160.5, 8, 40, 420.5, 95, 81, 423, 525, 45, 138.5, 0.5, 48.5}, 54440},
      {"Q5_K", super, {811.5, -25.5, 160.5, 112, 80, 420.5, 235, -3, 1047, 165, 645, 138.5, 60.5, 108.5}, 116216},
      {"Q6_K", super, {-1431, 1696, -96, 231, -580, -3040, 2523, 1500, -351, 671, -980, 1089, 846, -60}, 4612},
      {"MXFP4", small, {0, 6, -3, 3, 6, 6}, 25}};
  for (const WidenedBlock& expected : blocks) {
    const GgufFormat& format = *find_gguf_format(expected.format);
    std::vector<std::uint8_t> block(format.bytes);
    for (std::size_t i = 0; i < block.size(); ++i) block[i] = static_cast<std::uint8_t>(i * 37 + 11);
    const auto put = [&](std::size_t at, float x) {
      const Float16 half = to_f16(x);
      std::memcpy(&block[at], &half, sizeof(half));
    };
    const std::string word = expected.format;
    if (word == "MXFP4") {
      block[0] = 128;
    } else {
      put(word == "Q6_K" ? 208 : 0, 1.0F);
    }
    if (word == "Q4_1" || word == "Q5_1" || word == "Q4_K" || word == "Q5_K") put(2, 0.5F);
    std::vector<float> out(static_cast<std::size_t>(format.numbers));
    widen_blocks(format, out.data(), block.data(), 1);
    float sum = 0.0F;
    for (const float x : out) sum += x;
    EXPECT_EQ(sum, expected.sum) << word;
    for (std::size_t i = 0; i < expected.places.size(); ++i) {
      EXPECT_EQ(out[static_cast<std::size_t>(expected.places[i])], expected.values[i]) << word << ' ' << i;
    }
  }
}

/// Writes three parts of a model, with a tensor each, whose values are its number.
void write_parts(const Scratch& scratch, const std::function<void(GgufBytes&, int)>& change = {}) {
  for (int part = 0; part < 3; ++part) {
    GgufBytes bytes;
    if (part == 0) bytes.string("general.architecture", "llama").u32("split.tensors.count", 3);
    bytes.u32("split.count", 3);
    if (change) change(bytes, part);
    if (bytes.value_count < (part == 0 ? 4U : 2U)) bytes.u32("split.no", static_cast<std::uint32_t>(part));
    bytes.f32_tensor("tensor" + std::to_string(part), {2}, {static_cast<float>(part), 0.5F});
    write_bytes(scratch / fmt::format("m-{:05}-of-00003.gguf", part + 1), bytes.bytes());
  }
}

TEST(GgufParts, FirstPart_OpensAll) {
  const Scratch scratch;
  write_parts(scratch);
  const GgufFile file(scratch / "m-00001-of-00003.gguf");
  EXPECT_EQ(file.string("general.architecture"), "llama");
  ASSERT_EQ(file.tensors().size(), 3U);
  for (int part = 0; part < 3; ++part) {
    const GgufTensor* tensor = file.find("tensor" + std::to_string(part));
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->file->path(), scratch / fmt::format("m-{:05}-of-00003.gguf", part + 1));
    float values[2] = {};
    file.read_f32(*tensor, values);
    EXPECT_EQ(values[0], static_cast<float>(part));
  }
  ASSERT_EQ(::truncate((scratch / "m-00002-of-00003.gguf").c_str(), 100), 0);
  try {
    file.check_whole();
    ADD_FAILURE() << "a part has become shorter";
  } catch (const FileError& error) {
    EXPECT_NE(std::string(error.what()).find("m-00002-of-00003.gguf: shortened"), std::string::npos) << error.what();
  }
}

TEST(GgufParts, PartsThatDoNotFit_AreRefused) {
  const Scratch scratch;
  const std::string first = scratch / "m-00001-of-00003.gguf";
  const auto expect_part_refused = [&](const std::string& path, const std::string& why) {
    try {
      const GgufFile file(path);
      ADD_FAILURE() << "read without complaint; expected: " << why;
    } catch (const FileError& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  write_parts(scratch);
  expect_part_refused(scratch / "m-00002-of-00003.gguf", "is part 2 of 3: give the first one, " + first);
  std::filesystem::copy_file(first, scratch / "renamed.gguf");
  expect_part_refused(scratch / "renamed.gguf",
                      "split.no is 0 and split.count is 3, but the name does not end in -00001-of-00003.gguf");
  std::filesystem::remove(scratch / "m-00003-of-00003.gguf");
  expect_part_refused(first, "is part 1 of 3, and part 3, " + (scratch / "m-00003-of-00003.gguf") + ", is not there");
  write_parts(scratch, [](GgufBytes& bytes, int part) {
    if (part == 1) bytes.u32("split.no", 2);
  });
  expect_part_refused(first, "m-00002-of-00003.gguf: split.no is 2, but its name says 1");
  write_parts(scratch, [](GgufBytes& bytes, int part) {
    if (part == 2) bytes.f32_tensor("tensor0", {1}, {1.0F});
  });
  expect_part_refused(first, "split.tensors.count is 3, but the 3 parts have 4 tensors");
  std::filesystem::copy_file(first, scratch / "n-00001-of-00003.gguf");
  EXPECT_EQ(gguf_parts(scratch / "n-00002-of-00003.gguf").front(), scratch / "n-00001-of-00003.gguf");
  for (const char* name : {"m.gguf", "m-00004-of-00003.gguf", "m-00000-of-00003.gguf", "m-0000x-of-00003.gguf"}) {
    EXPECT_EQ(gguf_parts(name), std::vector<std::string>{name});
  }
}

}  // namespace
}  // namespace headgate::io
