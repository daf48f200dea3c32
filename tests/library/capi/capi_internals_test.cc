// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>

#include "library/capi/sized.hpp"
#include "library/capi/status.hpp"

namespace headgate::capi {
namespace {

TEST(Guarded, Guard_EachException_BecomesAStatusAndALine) {
  EXPECT_EQ(guarded("headgate_f", [] { throw Error("k is wrong"); }), HEADGATE_INVALID_ARGUMENT);
  EXPECT_STREQ(last_error(), "headgate_f: k is wrong");
  EXPECT_EQ(guarded("headgate_f", [] { throw Error("f: k is wrong"); }), HEADGATE_INVALID_ARGUMENT);
  EXPECT_STREQ(last_error(), "headgate_f: k is wrong");
  EXPECT_EQ(guarded("headgate_f", [] { throw std::bad_alloc(); }), HEADGATE_OUT_OF_MEMORY);
  EXPECT_STREQ(last_error(), "headgate_f: out of memory");
  EXPECT_EQ(guarded("headgate_f", [] { throw std::runtime_error("surprise"); }), HEADGATE_INTERNAL_ERROR);
  EXPECT_STREQ(last_error(), "headgate_f: surprise");
  EXPECT_EQ(guarded("headgate_f", [] { throw 7; }), HEADGATE_INTERNAL_ERROR);
  EXPECT_STREQ(last_error(), "headgate_f: unknown failure");
  EXPECT_EQ(guarded("headgate_f", [] {}), HEADGATE_OK);
  EXPECT_STREQ(last_error(), "");
}

TEST(LastError, LongMessage_Utf8_IsCutBetweenCharacters) {
  const std::string function = "headgate_f";
  for (std::size_t shift = 0; shift < 4; ++shift) {
    std::string text(shift, 'x');
    for (int i = 0; i < 1000; ++i) text += "·";
    set_last_error(function.c_str(), text.c_str());
    const std::string said = last_error();
    EXPECT_LE(said.size(), 1023U);
    EXPECT_GE(said.size(), 1019U);
    EXPECT_EQ((said.size() - function.size() - 2 - shift) % 2, 0U) << "half a character at shift " << shift;
  }
  set_last_error(function.c_str(), std::string(5000, 'x').c_str());
  EXPECT_EQ(std::string(last_error()).size(), 1023U);
}

TEST(LastError, Message_WithControlCharacters_IsOneLine) {
  set_last_error("headgate_f", "name is 'a\nb\tc\x7F·'");
  EXPECT_STREQ(last_error(), "headgate_f: name is 'a?b?c?·'");
}

struct FirstVersion {
  std::size_t struct_size;
  std::int64_t a;
};

struct SecondVersion {
  std::size_t struct_size;
  std::int64_t a;
  std::int64_t b;
};

struct ThirdVersion {
  std::size_t struct_size;
  std::int64_t a;
  std::int64_t b;
  std::int64_t c;
};

ThirdVersion read_third(const void* given) {
  return read_sized(static_cast<const ThirdVersion*>(given), "s", {sizeof(FirstVersion), sizeof(SecondVersion)});
}

TEST(ReadSized, Struct_OfAnOlderCaller_HasZerosInLaterFields) {
  const FirstVersion first{sizeof(FirstVersion), 5};
  const ThirdVersion of_first = read_third(&first);
  EXPECT_EQ(of_first.a, 5);
  EXPECT_EQ(of_first.b, 0);
  const SecondVersion second{sizeof(SecondVersion), 5, 6};
  const ThirdVersion of_second = read_third(&second);
  EXPECT_EQ(of_second.b, 6);
  EXPECT_EQ(of_second.c, 0);
}

TEST(ReadSized, Struct_OfTheSameVersion_IsCopied) {
  const ThirdVersion same{sizeof(ThirdVersion), 5, 6, 7};
  EXPECT_EQ(read_third(&same).c, 7);
}

TEST(ReadSized, Struct_OfANewerCaller_MustHaveZerosInUnknownBytes) {
  struct {
    ThirdVersion known;
    std::int64_t later;
  } newer{{sizeof(newer), 5, 6, 7}, 0};
  EXPECT_EQ(read_third(&newer).c, 7);
  newer.later = std::int64_t{1} << 56;
  EXPECT_THROW(read_third(&newer), Error);
}

TEST(ReadSized, Struct_SizeOfNoVersion_IsRefused) {
  ThirdVersion s{0, 5, 6, 7};
  for (const std::size_t size : {std::size_t{0}, std::size_t{8}, sizeof(FirstVersion) - 1, sizeof(FirstVersion) + 1,
                                 sizeof(SecondVersion) + 1, kMaxStructSize + 1, static_cast<std::size_t>(-1)}) {
    s.struct_size = size;
    EXPECT_THROW(read_third(&s), Error) << size;
  }
  EXPECT_THROW(read_third(nullptr), Error);
}

}  // namespace
}  // namespace headgate::capi
