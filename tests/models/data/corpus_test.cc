// SPDX-License-Identifier: Apache-2.0
#include "models/data/corpus.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "models/io/scratch.hpp"

namespace headgate::train {
namespace {

using testing::Scratch;
using testing::write_bytes;

std::string text_of(const Corpus& corpus) {
  std::vector<std::int32_t> bytes(static_cast<std::size_t>(corpus.size()));
  corpus.copy(bytes.data(), 0, corpus.size());
  return {bytes.begin(), bytes.end()};
}

std::string refusal(const std::string& path) {
  try {
    const Corpus corpus({path});
  } catch (const io::FileError& error) {
    return error.what();
  }
  return "";
}

TEST(Corpus, Corpus_FilesAndDirectories_JoinsThemInOrder) {
  const Scratch scratch;
  write_bytes(scratch / "single.txt", "one ");
  std::filesystem::create_directories(scratch / "many/deep");
  std::filesystem::create_directories(scratch / "many/.git");
  write_bytes(scratch / "many/b.txt", "four");
  write_bytes(scratch / "many/a.txt", "two ");
  write_bytes(scratch / "many/c.txt", "");
  write_bytes(scratch / "many/deep/z.txt", ".");
  write_bytes(scratch / "many/.hidden", "no");
  write_bytes(scratch / "many/.git/no.txt", "no");
  const Corpus corpus({scratch / "single.txt", scratch / "many"});
  EXPECT_EQ(text_of(corpus), "one two four.");
  EXPECT_EQ(corpus.files(), 4U) << "empty files do not count";
}

TEST(Corpus, Copy_RangeAcrossFiles_JoinsTheirBytes) {
  const Scratch scratch;
  for (const char* name : {"a", "b", "c"}) write_bytes(scratch / name, std::string(name) + "12");
  const Corpus corpus({scratch / "a", scratch / "b", scratch / "c"});
  for (std::int64_t begin = 0; begin < corpus.size(); ++begin) {
    for (std::int64_t count = 0; begin + count <= corpus.size(); ++count) {
      std::vector<std::int32_t> bytes(static_cast<std::size_t>(count));
      corpus.copy(bytes.data(), begin, count);
      ASSERT_EQ(std::string(bytes.begin(), bytes.end()),
                std::string("a12b12c12").substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)));
    }
  }
}

TEST(Corpus, Paths_ThatCannotBeOpened_AreLeftOut) {
  const Scratch scratch;
  std::filesystem::create_directories(scratch / "data/deep");
  write_bytes(scratch / "data/a.txt", "text");
  std::filesystem::create_symlink("nowhere", scratch / "data/link");
  // Makes directories one in the other until their path is too long, and a file in the last one.
  const std::string name(250, 'd');
  int directory = ::open((scratch / "data/deep").c_str(), O_RDONLY | O_DIRECTORY);
  for (int depth = 0; depth < 17; ++depth) {
    ASSERT_EQ(::mkdirat(directory, name.c_str(), 0777), 0);
    const int inner = ::openat(directory, name.c_str(), O_RDONLY | O_DIRECTORY);
    ::close(directory);
    directory = inner;
  }
  ::close(::openat(directory, "b.txt", O_WRONLY | O_CREAT, 0666));
  ::close(directory);
  const Corpus corpus({scratch / "data"});
  EXPECT_EQ(text_of(corpus), "text");
  ASSERT_EQ(corpus.left_out().unreachable.size(), 2U);
  const std::vector<std::string> phrases = corpus.left_out().phrases();
  ASSERT_EQ(phrases.size(), 1U);
  EXPECT_TRUE(phrases.front().starts_with("2 paths that cannot be opened (")) << phrases.front();
  EXPECT_LT(phrases.front().size(), 400U);
}

TEST(Corpus, Directory_BelowThatCannotBeRead_IsNamed) {
  const Scratch scratch;
  std::filesystem::create_directories(scratch / "data/open/closed");
  write_bytes(scratch / "data/a.txt", "text");
  // Leaves room for two more open files: the upper directories.
  const int free = ::open("/dev/null", O_RDONLY);
  ::close(free);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit two_more{static_cast<rlim_t>(free) + 2, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &two_more), 0);
  const std::string refused = refusal(scratch / "data");
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(refused, scratch / "data/open/closed" + ": cannot read: Too many open files");
}

TEST(Corpus, File_NotUtf8_IsRefused) {
  const Scratch scratch;
  write_bytes(scratch / "zip", "PK\x03\x04\xFF\xFE");
  write_bytes(scratch / "zero", std::string("text\0more", 9));
  EXPECT_EQ(refusal(scratch / "zip"), scratch / "zip" + ": not UTF-8 text: byte 0xff at offset 4");
  EXPECT_EQ(refusal(scratch / "zero"), scratch / "zero" + ": not text: byte 0x00 at offset 4");
  EXPECT_EQ(refusal(scratch / "none"), scratch / "none" + ": cannot read: No such file or directory");
  EXPECT_EQ(refusal("/dev/null"), "/dev/null: not a regular file");
  std::filesystem::create_directory(scratch / "empty");
  EXPECT_EQ(refusal(scratch / "empty"), scratch / "empty" + ": no file in this directory");
}

TEST(Corpus, Directory_WithFilesThatAreNotText_LeavesThemOut) {
  const Scratch scratch;
  std::filesystem::create_directory(scratch / "deep");
  write_bytes(scratch / "a.txt", "one ");
  write_bytes(scratch / "latin.txt", "caf\xE9 au lait");
  write_bytes(scratch / "deep/zip", "PK\x03\x04\xFF\xFE");
  write_bytes(scratch / "z.txt", "two");
  const Corpus corpus({scratch.path()});
  EXPECT_EQ(text_of(corpus), "one two");
  EXPECT_EQ(corpus.left_out().not_text, (std::vector<std::string>{scratch / "deep/zip", scratch / "latin.txt"}));
  EXPECT_EQ(refusal(scratch / "deep"), scratch / "deep" +
                                           ": no text in this directory, only 1 file that is not UTF-8 text (" +
                                           scratch / "deep/zip" + ")");
}

TEST(Corpus, Pattern_InADirectory_MatchesNamesAndPaths) {
  const Scratch scratch;
  std::filesystem::create_directories(scratch / "docs/deep");
  for (const char* name : {"a.md", "b.txt", "docs/c.md", "docs/deep/d.txt", "docs/e.rst"}) {
    write_bytes(scratch / name, std::string(name).substr(std::string(name).rfind('.') - 1, 1));
  }
  const auto taken = [&](const std::vector<std::string>& include) {
    return text_of(Corpus({scratch.path() + "/"}, {include, ""}));
  };
  EXPECT_EQ(taken({}), "abcde");
  EXPECT_EQ(taken({"*.md"}), "ac");
  EXPECT_EQ(taken({"*.md", "*.rst"}), "ace");
  EXPECT_EQ(taken({"docs/*"}), "cde");
  EXPECT_EQ(taken({"docs/*.txt"}), "d");
  EXPECT_EQ(taken({"[ab].*"}), "ab");
  EXPECT_EQ(text_of(Corpus({scratch / "b.txt"}, {{"*.md"}, ""})), "b") << "a file that is named is taken";
  EXPECT_THROW(taken({"*.tex"}), io::FileError);
}

TEST(Corpus, Directory_WithRuns_LeavesThemOut) {
  const Scratch scratch;
  for (const char* name : {"full/checkpoint", "young/checkpoint", "model", "checkpoint-like", "mine", "text"}) {
    std::filesystem::create_directories(scratch / name);
  }
  write_bytes(scratch / "full/checkpoint/config.json", "no");
  write_bytes(scratch / "full/checkpoint/trainer_state.json", "no");
  write_bytes(scratch / "full/notes.txt", "no");
  write_bytes(scratch / "young/metrics.jsonl", "no");
  write_bytes(scratch / "model/config.json", "no");
  write_bytes(scratch / "model/trainer_state.json", "no");
  write_bytes(scratch / "checkpoint-like/config.json", "b");
  write_bytes(scratch / "mine/notes.txt", "c");
  write_bytes(scratch / "text/metrics.jsonl", "d");
  write_bytes(scratch / "a.txt", "a");
  const Corpus all({scratch.path()});
  EXPECT_EQ(text_of(all), "abcd");
  EXPECT_EQ(all.left_out().runs, (std::vector<std::string>{scratch / "full", scratch / "model", scratch / "young"}));
  EXPECT_EQ(text_of(Corpus({scratch.path()}, {{}, scratch / "text/../mine/"})), "abd");
  EXPECT_EQ(text_of(Corpus({scratch.path()}, {{}, scratch / "not/there/yet"})), "abcd");
  // The run lies in the directory of the data itself.
  EXPECT_EQ(text_of(Corpus({scratch / "text"}, {{}, scratch / "mine"})), "d");
  EXPECT_EQ(refusal(scratch / "full"), "");
  EXPECT_EQ(text_of(Corpus({scratch / "full"})), "no") << "the notes, named by their directory";
}

TEST(Corpus, File_ShortenedWhileMapped_ThrowsAnError) {
  const Scratch scratch;
  const std::string path = scratch / "text";
  write_bytes(path, std::string(3 << 16, 'x'));
  const Corpus corpus({path});
  std::filesystem::resize_file(path, 5);
  std::vector<std::int32_t> bytes(1);
  const auto read = [&](auto&& what) -> std::string {
    try {
      what();
    } catch (const io::FileError& error) {
      return error.what();
    }
    return "";
  };
  const std::string said = path + ": shortened from 196608 to 5 bytes while it was read";
  EXPECT_EQ(read([&] { corpus.copy(bytes.data(), corpus.size() - 1, 1); }), said);
  EXPECT_EQ(read([&] { std::ignore = corpus.fingerprint(); }), said);
}

TEST(Corpus, File_ReplacedOrRemovedWhileMapped_StaysReadable) {
  const Scratch scratch;
  const std::string path = scratch / "text";
  write_bytes(path, "as it was");
  const Corpus corpus({path});
  std::filesystem::remove(path);
  EXPECT_EQ(text_of(corpus), "as it was");
  write_bytes(path, "new");
  EXPECT_EQ(text_of(corpus), "as it was");
}

TEST(Corpus, Utf8_WellFormedOrNot_IsRecognised) {
  const auto first_bad = [](const std::string& text) {
    return first_bad_utf8(reinterpret_cast<const std::uint8_t*>(text.data()), static_cast<std::int64_t>(text.size()));
  };
  const std::string good = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x99\x82\xED\x9F\xBF\xF4\x8F\xBF\xBF";
  EXPECT_EQ(first_bad(good), static_cast<std::int64_t>(good.size()));
  EXPECT_EQ(first_bad("a\xE2\x82"), 3) << "cut off by the end";
  EXPECT_EQ(first_bad("a\xE2("), 1) << "no continuation";
  EXPECT_EQ(first_bad("ab\x80"), 2) << "a continuation alone";
  EXPECT_EQ(first_bad("\xC0\xAF"), 0) << "overlong";
  EXPECT_EQ(first_bad("\xE0\x80\xAF"), 0) << "overlong";
  EXPECT_EQ(first_bad("\xF0\x80\x80\xAF"), 0) << "overlong";
  EXPECT_EQ(first_bad("\xED\xA0\x80"), 0) << "a surrogate";
  EXPECT_EQ(first_bad("\xF4\x90\x80\x80"), 0) << "beyond U+10FFFF";
}

TEST(Corpus, Fingerprint_DifferentTexts_Differs) {
  const Scratch scratch;
  write_bytes(scratch / "a", "some text");
  write_bytes(scratch / "same", "some text");
  write_bytes(scratch / "other", "some tect");
  EXPECT_EQ(Corpus({scratch / "a"}).fingerprint(), Corpus({scratch / "same"}).fingerprint());
  EXPECT_NE(Corpus({scratch / "a"}).fingerprint(), Corpus({scratch / "other"}).fingerprint());
  EXPECT_NE(Corpus({scratch / "a"}).fingerprint(), Corpus({scratch / "a", scratch / "a"}).fingerprint());
}

}  // namespace
}  // namespace headgate::train
