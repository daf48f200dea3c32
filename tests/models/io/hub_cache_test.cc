// SPDX-License-Identifier: Apache-2.0
#include "models/io/hub_cache.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "models/io/file_error.hpp"
#include "models/io/given_path.hpp"
#include "models/io/scratch.hpp"

namespace headgate::io {
namespace {

namespace fs = std::filesystem;
using headgate::testing::Scratch;
using headgate::testing::write_bytes;

/// Sets a variable of the environment, or unsets it, while it exists.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    set(value);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { set(old_ ? old_->c_str() : nullptr); }

 private:
  void set(const char* value) const { value == nullptr ? ::unsetenv(name_) : ::setenv(name_, value, 1); }

  const char* name_;
  std::optional<std::string> old_;
};

std::string refusal(const std::string& path) {
  try {
    return "taken as " + given_path(path);
  } catch (const FileError& error) {
    return error.what();
  }
}

/// A cache with the model a/b: two snapshots, of which refs/main names the second.
class HubCache : public ::testing::Test {
 protected:
  HubCache() {
    fs::create_directories(model + "/refs/refs/pr");
    fs::create_directories(model + "/blobs");
    for (const char* commit : {"0a1b", "2c3d"}) {
      fs::create_directories(snapshot(commit));
      write_bytes(model + "/blobs/config", "{}");
      fs::create_symlink("../../blobs/config", snapshot(commit) + "/config.json");
    }
    write_bytes(model + "/refs/main", "2c3d");
    write_bytes(model + "/refs/v1", "0a1b\n");
    write_bytes(model + "/refs/refs/pr/1", "0a1b");
  }
  std::string snapshot(const std::string& commit) const { return model + "/snapshots/" + commit; }

  const Scratch scratch;
  const std::string model = scratch / "models--a--b";
  const Variable cache{"HF_HUB_CACHE", scratch.path().c_str()};
};

TEST(HubName, Text_AsHuggingfaceHubTakesIt_IsParsed) {
  for (const char* name : {"HuggingFaceTB/SmolLM2-135M", "gpt2", "Foo-BAR_foo.bar123", "a/b"}) {
    const std::optional<HubName> parsed = parse_hub_name(name);
    ASSERT_TRUE(parsed) << name;
    EXPECT_EQ(parsed->model, name);
    EXPECT_EQ(parsed->revision, "main");
  }
  EXPECT_EQ(parse_hub_name("a/b@refs/pr/1")->revision, "refs/pr/1");
  const std::string longest = "a/" + std::string(94, 'b');
  EXPECT_TRUE(parse_hub_name(longest));
  for (const std::string& text :
       {std::string(),           std::string("a/b/c"),      std::string("/a"),     std::string("a/"),
        std::string(".a/b"),     std::string("../b"),       std::string("a/.."),   std::string("a/b..c"),
        std::string("a--b/c"),   std::string("-a/b"),       std::string("a/b."),   std::string("a/b.git"),
        std::string("a b"),      std::string("a/b\n"),      longest + "b",         std::string("a/b@"),
        std::string("a/b@../c"), std::string("a/b@c/../d"), std::string("a/b@/c"), std::string("a/b@c/"),
        std::string("a/b@c@d")}) {
    EXPECT_FALSE(parse_hub_name(text)) << text;
  }
}

TEST(HubCachePlace, Environment_InTheOrderOfHuggingfaceHub_SaysWhere) {
  const Variable home("HOME", "/home/x");
  const Variable hub("HF_HUB_CACHE", nullptr), old("HUGGINGFACE_HUB_CACHE", nullptr), hf("HF_HOME", nullptr);
  const Variable xdg("XDG_CACHE_HOME", nullptr);
  EXPECT_EQ(hub_cache(), "/home/x/.cache/huggingface/hub");
  const Variable with_xdg("XDG_CACHE_HOME", "/cache");
  EXPECT_EQ(hub_cache(), "/cache/huggingface/hub");
  const Variable with_hf("HF_HOME", "~/hf");
  EXPECT_EQ(hub_cache(), "/home/x/hf/hub");
  const Variable with_old("HUGGINGFACE_HUB_CACHE", "/old");
  EXPECT_EQ(hub_cache(), "/old");
  const Variable with_hub("HF_HUB_CACHE", "/new");
  EXPECT_EQ(hub_cache(), "/new");
}

TEST(HubCachePlace, Environment_EmptyVariables_CountAsUnset) {
  const Variable home("HOME", "/home/x");
  const Variable hub("HF_HUB_CACHE", ""), old("HUGGINGFACE_HUB_CACHE", ""), hf("HF_HOME", "");
  const Variable xdg("XDG_CACHE_HOME", "");
  EXPECT_EQ(hub_cache(), "/home/x/.cache/huggingface/hub");
}

TEST_F(HubCache, Name_Downloaded_LeadsToTheSnapshotOfItsRevision) {
  EXPECT_EQ(given_path("a/b"), snapshot("2c3d"));
  EXPECT_EQ(given_path("a/b@main"), snapshot("2c3d"));
  EXPECT_EQ(given_path("a/b@v1"), snapshot("0a1b"));
  EXPECT_EQ(given_path("a/b@refs/pr/1"), snapshot("0a1b"));
  EXPECT_EQ(given_path("a/b@0a1b"), snapshot("0a1b"));
  EXPECT_EQ(refusal("a/b@v2"), model + ": has no refs/v2 and no snapshot v2: download this revision");
  fs::create_directories(scratch / "models--gpt2/snapshots/4e5f");
  EXPECT_EQ(given_path("gpt2"), scratch / "models--gpt2/snapshots/4e5f");
}

TEST_F(HubCache, Name_OfALocalPath_IsThatPath) {
  const fs::path before = fs::current_path();
  const Scratch here;
  fs::create_directories(here / "a/b");
  fs::create_symlink("nowhere", here / "gpt2");
  fs::create_directories(scratch / "models--gpt2/snapshots/4e5f");
  fs::current_path(here.path());
  EXPECT_EQ(given_path("a/b"), "a/b");
  EXPECT_EQ(refusal("gpt2"), "gpt2: is a link to nowhere, which does not exist");
  fs::current_path(before);
}

TEST_F(HubCache, Name_NotDownloaded_SaysWhereItWasLookedForAndHowToDownloadIt) {
  const std::string there = "is not in the Hugging Face Hub's cache " + scratch.path() + " (HF_HUB_CACHE, HF_HOME): ";
  EXPECT_EQ(refusal("c/d"), "c/d: does not exist, and " + there + "`hf download c/d` puts it there");
  EXPECT_EQ(refusal("c/d@v1"),
            "c/d@v1: does not exist, and " + there + "`hf download c/d --revision v1` puts it there");
  EXPECT_EQ(refusal("c/d/e"), "c/d/e: does not exist: there is no directory c");
  EXPECT_EQ(refusal("c"), "c: does not exist");
}

TEST_F(HubCache, Reference_WithAnythingButASnapshot_IsRefused) {
  for (const std::string& name : {std::string("../.."), std::string("0a1b\0", 5), std::string(), std::string(".."),
                                  std::string("/etc"), std::string("0a1b/.."), std::string("0a1b\nx")}) {
    write_bytes(model + "/refs/main", name);
    EXPECT_NE(refusal("a/b").find("/refs/main: '"), std::string::npos) << refusal("a/b");
    EXPECT_NE(refusal("a/b").find("' is not the name of a snapshot"), std::string::npos) << refusal("a/b");
  }
  write_bytes(model + "/refs/main", std::string(5000, 'a'));
  EXPECT_NE(refusal("a/b").find("/refs/main"), std::string::npos);
  write_bytes(model + "/refs/main", "4e5f");
  EXPECT_EQ(refusal("a/b"),
            model + ": refs/main names the snapshot 4e5f, which is not there: download the model again");
  fs::remove(model + "/refs/main");
  fs::create_symlink("gone", model + "/refs/main");
  EXPECT_NE(refusal("a/b").find("/refs/main: "), std::string::npos) << refusal("a/b");
  fs::remove(model + "/refs/main");
  fs::create_directory(model + "/refs/main");
  EXPECT_NE(refusal("a/b").find("/refs/main: "), std::string::npos) << refusal("a/b");
}

TEST_F(HubCache, Snapshot_WithALinkThatLeadsNowhere_IsRefused) {
  fs::remove(model + "/blobs/config");
  EXPECT_EQ(refusal("a/b"),
            snapshot("2c3d") + "/config.json: is a link to a file that is not there: download the model again");
}

TEST_F(HubCache, Snapshot_OfAGgufModelInParts_IsItsFirstPart) {
  fs::remove(snapshot("2c3d") + "/config.json");
  for (const char* part : {"1", "2"}) {
    write_bytes(snapshot("2c3d") + "/m-0000" + std::string(part) + "-of-00002.gguf", "GGUF");
  }
  EXPECT_EQ(given_path("a/b"), snapshot("2c3d") + "/m-00001-of-00002.gguf");
}

TEST_F(HubCache, Snapshot_OfOneGgufFile_IsThatFile) {
  fs::remove(snapshot("2c3d") + "/config.json");
  write_bytes(snapshot("2c3d") + "/model.Q4_1.gguf", "GGUF");
  write_bytes(snapshot("2c3d") + "/README.md", "x");
  EXPECT_EQ(given_path("a/b"), snapshot("2c3d") + "/model.Q4_1.gguf");
  write_bytes(snapshot("2c3d") + "/model.F16.gguf", "GGUF");
  EXPECT_EQ(refusal("a/b"), snapshot("2c3d") + ": holds 2 GGUF files: give the path of one, such as " +
                                snapshot("2c3d") + "/model.F16.gguf");
}

TEST_F(HubCache, NoPath_Refused_IsReturnedAsItIs) {
  EXPECT_EQ(given_path_or_same("a/b"), snapshot("2c3d"));
  EXPECT_EQ(given_path_or_same("c/d"), "c/d");
}

}  // namespace
}  // namespace headgate::io
