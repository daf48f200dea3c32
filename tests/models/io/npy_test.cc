// SPDX-License-Identifier: Apache-2.0
#include "models/io/npy.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "library/core/element.hpp"
#include "models/io/scratch.hpp"

namespace headgate::io {
namespace {

using headgate::testing::MemoryFile;
using headgate::testing::read_bytes;
using headgate::testing::Scratch;

/// Returns magic, version, header length and header, without data.
std::string npy(const std::string& dict, int major = 1) {
  const std::string header = dict + "\n";
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(major);
  bytes += '\0';
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  return bytes + header;
}

std::string dict(const std::string& descr, const std::string& order, const std::string& shape) {
  return "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }";
}

template <typename T>
std::string data_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

class NpyTest : public ::testing::Test {
 protected:
  Array read(const std::string& bytes) {
    file.write(bytes);
    return read_npy(file.path());
  }

  /// Returns the message of a refusal, after checking its form: one line that begins with the file's name.
  std::string refusal(const std::string& bytes) {
    file.write(bytes);
    return refusal_of(file.path());
  }

  static std::string refusal_of(const std::string& path) {
    try {
      read_npy(path);
    } catch (const FileError& error) {
      const std::string what = error.what();
      EXPECT_TRUE(what.starts_with(path + ": ")) << what;
      for (const char c : what) EXPECT_GE(static_cast<unsigned char>(c), 0x20) << what;
      return what.substr(std::min(what.size(), path.size() + 2));
    }
    return "(read without complaint)";
  }

  MemoryFile file;
  Scratch scratch;
};

#define EXPECT_REFUSED(bytes, reason) EXPECT_PRED2(contains, refusal(bytes), std::string_view(reason))

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST_F(NpyTest, Array_EveryDType_IsRead) {
  const std::vector<std::pair<std::string, DType>> dtypes = {
      {"'<f2'", DType::f16}, {"'<f4'", DType::f32},     {"'<f8'", DType::f64}, {"'<i4'", DType::i32},
      {"'<i8'", DType::i64}, {"'|b1'", DType::boolean}, {"'|i1'", DType::i8}};
  for (const auto& [descr, dtype] : dtypes) {
    std::string data(2 * dtype_bytes(dtype), '\0');
    data[dtype_bytes(dtype)] = 1;
    const Array array = read(npy(dict(descr, "False", "(2,)")) + data);
    EXPECT_EQ(array.dtype, dtype);
    EXPECT_EQ(array.shape, std::vector<std::int64_t>{2});
    ASSERT_EQ(array.bytes(), data.size());
    EXPECT_EQ(std::memcmp(array.data.get(), data.data(), data.size()), 0);
  }
}

TEST_F(NpyTest, Array_EveryVersion_IsRead) {
  for (const int major : {1, 2, 3}) {
    const Array array = read(npy(dict("'<i4'", "False", "(3,)"), major) + data_of<std::int32_t>({7, 8, 9}));
    EXPECT_EQ(load_element(array.data.get(), array.dtype, 2), 9.0) << major;
  }
}

TEST_F(NpyTest, Array_EveryRank_IsRead) {
  EXPECT_EQ(read(npy(dict("'<f8'", "False", "()")) + data_of<double>({1.5})).numel(), 1);
  std::string ones;
  for (std::size_t rank = 1; rank <= kMaxRank; ++rank) {
    ones += "1,";
    const Array array = read(npy(dict("'<f8'", "False", fmt::format("({})", ones))) + data_of<double>({2.5}));
    EXPECT_EQ(array.shape.size(), rank);
    EXPECT_EQ(load_element(array.data.get(), array.dtype, 0), 2.5);
  }
}

TEST_F(NpyTest, Array_FortranOrder_HasItsStrides) {
  const std::string data = data_of<std::int32_t>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  const Array c = read(npy(dict("'<i4'", "False", "(2, 3, 2)")) + data);
  EXPECT_EQ(c.strides, (std::vector<std::int64_t>{6, 2, 1}));
  const Array fortran = read(npy(dict("'<i4'", "True", "(2, 3, 2)")) + data);
  EXPECT_EQ(fortran.strides, (std::vector<std::int64_t>{1, 2, 6}));
  EXPECT_EQ(std::memcmp(c.data.get(), fortran.data.get(), data.size()), 0);
}

TEST_F(NpyTest, Header_AnySpellingOfPython_IsRead) {
  const std::string data = data_of<double>({1, 2});
  for (const char* text : {"{'shape':(2,),'descr':'<f8','fortran_order':False}",
                           "{\"descr\": \"<f8\", \"fortran_order\": False, \"shape\": (2,)}",
                           "{ 'descr' : '<f8' , 'fortran_order' : False , 'shape' : ( 2 , ) , }                  ",
                           "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 1)}",
                           "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 2,)}"}) {
    EXPECT_EQ(read(npy(text) + data).numel(), 2) << text;
  }
}

TEST_F(NpyTest, Array_Empty_IsRead) {
  const Array array = read(npy(dict("'<f4'", "False", "(3, 0, 5)")));
  EXPECT_EQ(array.numel(), 0);
  EXPECT_EQ(array.shape, (std::vector<std::int64_t>{3, 0, 5}));
}

TEST_F(NpyTest, File_NoNpyFile_IsRefused) {
  EXPECT_REFUSED("", "only 0 bytes");
  EXPECT_REFUSED("short", "only 5 bytes");
  EXPECT_REFUSED("PK\x03\x04 a zip archive", "does not begin with");
  std::string bytes = npy(dict("'<f8'", "False", "()")) + data_of<double>({1});
  bytes[0] = '\x92';
  EXPECT_REFUSED(bytes, "does not begin with");
}

TEST_F(NpyTest, Version_Unknown_IsRefused) {
  std::string bytes = npy(dict("'<f8'", "False", "()")) + data_of<double>({1});
  for (const char major : {'\0', '\x04', '\x7F', '\xFF'}) {
    bytes[6] = major;
    EXPECT_REFUSED(bytes, ".npy version");
  }
  bytes[6] = 1;
  bytes[7] = 1;
  EXPECT_REFUSED(bytes, ".npy version 1.1");
}

TEST_F(NpyTest, HeaderLength_Wrong_IsRefused) {
  const std::string good = npy(dict("'<f8'", "False", "(2,)"), 2) + data_of<double>({1, 2});
  for (const std::uint32_t claim : {0xFFFFFFFFU, 0x7FFFFFFFU, 1000U}) {
    std::string bytes = good;
    std::memcpy(bytes.data() + 8, &claim, 4);
    EXPECT_REFUSED(bytes, "the header claims");
  }
  for (std::uint32_t claim = 0; claim < 80; ++claim) {
    std::string bytes = good;
    if (claim == static_cast<unsigned char>(good[8])) continue;
    std::memcpy(bytes.data() + 8, &claim, 4);
    EXPECT_NE(refusal(bytes), "(read without complaint)") << claim;
  }
  EXPECT_REFUSED(npy(dict("'<f8'", "False", "()") + std::string(70000, ' '), 2) + data_of<double>({1}), "at most");
}

TEST_F(NpyTest, DType_NotSupported_IsRefused) {
  for (const char* descr : {"'>f4'", "'>f8'", "'>i8'"}) {
    EXPECT_REFUSED(npy(dict(descr, "False", "()")) + std::string(8, '\0'), "big-endian");
  }
  for (const char* descr : {"'<f16'", "'<i2'", "'|u1'", "'<u4'", "'<c8'", "'|S3'", "'<U3'", "'|V4'", "'f4'", "'=f4'",
                            "'<M8[ns]'", "''", "'<f4 '", "'|f4'", "'<b1'"}) {
    EXPECT_REFUSED(npy(dict(descr, "False", "()")) + std::string(8, '\0'), "is not read; <f2 <f4");
  }
  EXPECT_REFUSED(npy(dict("'|O'", "False", "()")) + std::string(8, '\0'), "Python objects");
  EXPECT_REFUSED(npy(dict("[('a', '<f4'), ('b', '<f4')]", "False", "()")) + std::string(8, '\0'), "structured");
  EXPECT_REFUSED(npy(dict("('<f4', (2,))", "False", "()")) + std::string(8, '\0'), "structured");
  EXPECT_REFUSED(npy(dict("4", "False", "()")) + std::string(8, '\0'), "where a dtype should be");
}

TEST_F(NpyTest, Shape_Bad_IsRefused) {
  const auto with_shape = [](const std::string& shape) {
    return npy(dict("'<f4'", "False", shape)) + std::string(16, '\0');
  };
  EXPECT_REFUSED(with_shape("(-4,)"), "negative dimension '-4");
  EXPECT_REFUSED(with_shape("(2, -2)"), "negative dimension");
  EXPECT_REFUSED(with_shape("(99999999999999999999999,)"), "is too large");
  EXPECT_REFUSED(with_shape("(9223372036854775808,)"), "is too large");
  EXPECT_REFUSED(with_shape("(9223372036854775807,)"), "is too large");
  EXPECT_REFUSED(with_shape("(4294967296, 4294967296)"), "is too large");
  EXPECT_REFUSED(with_shape("(4611686018427387904, 4)"), "is too large");  // 2^62 · 4 · 4 bytes wraps to 0
  EXPECT_REFUSED(with_shape("(0, 4294967296, 4294967296)"), "is too large");
  for (const char* shape : {"(4)", "4", "[4]", "(4,,)", "(,)", "(2 2)", "(04,)", "(+4,)", "(4.0,)", "(4L,)", "(0x4,)",
                            "(4_0,)", "('4',)", "(None,)", "(4", "((4,),)"}) {
    EXPECT_REFUSED(with_shape(shape), "should be");
  }
  std::string many = "(";
  for (std::size_t i = 0; i <= kMaxRank; ++i) many += "1,";
  EXPECT_REFUSED(npy(dict("'<f4'", "False", many + ")")) + std::string(4, '\0'), "more than 32 dimensions");
}

TEST_F(NpyTest, Dict_Bad_IsRefused) {
  const std::string data(8, '\0');
  for (const char* text :
       {"", "{", "}", "{}", "{'descr': '<f8', 'fortran_order': False}", "{'descr': '<f8', 'shape': ()}",
        "{'fortran_order': False, 'shape': ()}", "{'descr': '<f8', 'fortran_order': False, 'shape': (), 'extra': 1}",
        "{'descr': '<f8', 'descr': '<f8', 'fortran_order': False, 'shape': ()}",
        "{'descr': '<f8', 'fortran_order': 0, 'shape': ()}", "{'descr': '<f8', 'fortran_order': false, 'shape': ()}",
        "{'descr': '<f8' 'fortran_order': False, 'shape': ()}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': ()} trailing",
        "{'descr': '<f8', 'fortran_order': False, 'shape': ()}}",
        "{'descr': '\\x3cf8', 'fortran_order': False, 'shape': ()}",
        "{'descr': '<f8, 'fortran_order': False, 'shape': ()}",
        "('descr', '<f8', 'fortran_order', False, 'shape', ())"}) {
    EXPECT_NE(refusal(npy(text) + data), "(read without complaint)") << text;
  }
  std::string zero_byte = dict("'<f8'", "False", "()");
  zero_byte += '\0';
  EXPECT_REFUSED(npy(zero_byte) + data, "the end of the header");
  std::string no_newline = npy(dict("'<f8'", "False", "()"));
  no_newline.back() = ' ';
  EXPECT_REFUSED(no_newline + data, "newline");
}

TEST_F(NpyTest, Data_MissingOrTrailing_IsRefused) {
  const std::string header = npy(dict("'<f4'", "False", "(2, 3)"));
  EXPECT_EQ(read(header + std::string(24, '\0')).numel(), 6);
  EXPECT_REFUSED(header + std::string(23, '\0'), "data missing");
  EXPECT_REFUSED(header, "data missing");
  EXPECT_REFUSED(header + std::string(25, '\0'), "trailing data");
  EXPECT_REFUSED(npy(dict("'<f4'", "False", "(0,)")) + "x", "trailing data");
  // Claims 4 EiB, for which nothing may be allocated.
  EXPECT_REFUSED(npy(dict("'<f4'", "False", "(1152921504606846976,)")) + "1234", "data missing");
}

TEST_F(NpyTest, Booleans_NotZeroOrOne_AreRefused) {
  const std::string header = npy(dict("'|b1'", "False", "(3,)"));
  EXPECT_EQ(read(header + std::string("\0\1\1", 3)).numel(), 3);
  EXPECT_REFUSED(header + std::string("\0\1\2", 3), "byte 2 at element 2 is not a boolean");
}

TEST_F(NpyTest, File_NotRegular_IsRefused) {
  EXPECT_PRED2(contains, refusal_of(scratch / "absent.npy"), "No such file");
  EXPECT_PRED2(contains, refusal_of(scratch.path()), "not a regular file");
  const std::string pipe = scratch / "pipe.npy";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_PRED2(contains, refusal_of(pipe), "not a regular file");  // and does not wait for a writer
  EXPECT_PRED2(contains, refusal_of("/dev/zero"), "not a regular file");
}

TEST_F(NpyTest, File_EveryTruncationOrExtension_IsRefused) {
  for (const int major : {1, 2, 3}) {
    const std::string whole = npy(dict("'<f4'", "True", "(2, 3)"), major) + std::string(24, '\x3F');
    ASSERT_EQ(read(whole).numel(), 6);
    for (std::size_t n = 0; n < whole.size(); ++n) {
      EXPECT_NE(refusal(whole.substr(0, n)), "(read without complaint)") << n;
    }
    EXPECT_NE(refusal(whole + '\0'), "(read without complaint)");
  }
}

/// What is read must be the content of the file, however its header is damaged.
TEST_F(NpyTest, File_AnyByteAnywhere_IsReadOrRefused) {
  const std::string data = data_of<float>({1, 2, 3, 4, 5, 6});
  const std::string header = npy(dict("'<f4'", "False", "(2, 3)"));
  int read_count = 0;
  for (std::size_t at = 0; at < header.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string bytes = header + data;
      bytes[at] = static_cast<char>(value);
      try {
        const Array array = read(bytes);
        ++read_count;
        ASSERT_EQ(array.bytes(), data.size());
        ASSERT_EQ(std::memcmp(array.data.get(), data.data(), data.size()), 0);
      } catch (const FileError& error) {
        ASSERT_TRUE(std::string(error.what()).starts_with(file.path() + ": "));
      }
    }
  }
  EXPECT_GE(read_count, static_cast<int>(header.size()));  // the undamaged file is read once for each position
}

TEST_F(NpyTest, Header_RandomBytes_IsReadOrRefused) {
  constexpr std::array<const char*, 24> kTokens = {
      "{",       "}",    "(",     ")",     ",",     ":", "'", "\"", "'descr'", "'fortran_order'",
      "'shape'", "True", "False", "'<f4'", "'<f8'", "1", "2", "0",  "-1",      "99999999999999999999",
      " ",       "\n",   "[",     "\\"};
  std::mt19937 random(20505);  // NOLINT: the same tokens in every run
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (auto n = random() % 24; n > 0; --n) text += kTokens[random() % kTokens.size()];
    try {
      const Array array = read(npy(text, 1 + static_cast<int>(random() % 3)) + "12345678");
      ASSERT_EQ(array.bytes(), 8U) << text;
    } catch (const FileError&) {  // nearly all are refused
    }
  }
}

TEST_F(NpyTest, Array_WrittenAndRead_IsTheSame) {
  for (const DType dtype : {DType::f16, DType::f32, DType::f64, DType::i32, DType::i64, DType::i8, DType::boolean}) {
    for (const std::vector<std::int64_t>& shape :
         {std::vector<std::int64_t>{}, {5}, {2, 3}, {4, 0, 2}, {2, 1, 3, 4}, {1, 2, 3, 1, 2}}) {
      Array array = make_array(dtype, shape);
      for (std::size_t i = 0; i < array.bytes(); ++i) array.data[i] = std::byte{i % 2 == 0};
      NpyWriter writer;
      writer.add(scratch / "a.npy", array);
      writer.commit();
      const Array back = read_npy(scratch / "a.npy");
      EXPECT_EQ(back.dtype, dtype);
      EXPECT_EQ(back.shape, shape);
      EXPECT_EQ(back.strides, array.strides);
      EXPECT_EQ(std::memcmp(back.data.get(), array.data.get(), array.bytes()), 0);
    }
  }
}

/// Byte for byte what numpy.save writes for this shape.
TEST_F(NpyTest, Header_Written_IsThatOfNumPy) {
  const std::string dict_1 = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  EXPECT_EQ(npy_header(DType::f32, {2, 3}),
            std::string("\x93NUMPY\x01\0v\0", 10) + dict_1 + std::string(128 - 10 - 1 - dict_1.size(), ' ') + "\n");
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{}, {1}, {1234567890123, 5, 77, 1}}) {
    const std::string header = npy_header(DType::boolean, shape);
    EXPECT_EQ(header.size() % 64, 0U);
    EXPECT_PRED2(contains, header, "'shape': " + shape_text(shape) + ", }");
  }
}

TEST_F(NpyTest, Files_WrittenTogether_AppearWhenAllAreWritten) {
  Array array = make_array(DType::f32, {2});
  std::memset(array.data.get(), 0, array.bytes());
  NpyWriter writer;
  writer.add(scratch / "one.npy", array);
  EXPECT_THROW(writer.add(scratch / "missing/two.npy", array), FileError);
  EXPECT_EQ(read_bytes(scratch / "one.npy"), "");
  EXPECT_THROW(writer.add(scratch / "three.npy", make_array(DType::bf16, {2})), FileError);
}

TEST_F(NpyTest, Directory_Missing_IsMadeWithItsFiles) {
  const std::string made = scratch / "made";
  {
    NpyWriter dropped;
    dropped.make_directory(made + "/");
    dropped.add(made + "/one.npy", make_array(DType::f32, {0}));
  }
  EXPECT_EQ(scratch.count(), 0U);
  for (int round = 0; round < 2; ++round) {  // the directory is missing, then exists
    NpyWriter writer;
    writer.make_directory(made);
    writer.add(made + "/one.npy", make_array(DType::f32, {0}));
    writer.add(made + "/two.npy", make_array(DType::f32, {0}));
    writer.commit();
    EXPECT_EQ(read_npy(made + "/one.npy").numel(), 0);
    EXPECT_EQ(read_npy(made + "/two.npy").numel(), 0);
    EXPECT_EQ(scratch.count(), 1U);
  }
}

TEST(NpyShape, Shape_SizesOverflow_IsRefused) {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(fits_in_memory({}, 8));
  EXPECT_TRUE(fits_in_memory({std::int64_t{1} << 59}, 8));
  EXPECT_FALSE(fits_in_memory({(std::int64_t{1} << 59) + 1}, 8));
  EXPECT_FALSE(fits_in_memory({kLargest, 0}, 4));
  EXPECT_FALSE(fits_in_memory({1 << 20, 1 << 20, 1 << 20, 1 << 20}, 1));
  EXPECT_THROW(make_array(DType::f32, {kLargest, kLargest}), std::bad_alloc);
}

TEST(NpyShape, Shape_OnePrinted_IsAPythonTuple) {
  EXPECT_EQ(shape_text({}), "()");
  EXPECT_EQ(shape_text({3}), "(3,)");
  EXPECT_EQ(shape_text({3, 4}), "(3, 4)");
}

}  // namespace
}  // namespace headgate::io
