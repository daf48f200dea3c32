// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <exception>
#include <random>
#include <string>

#include "fuzz/targets.hpp"
#include "support/test_runs.hpp"

namespace headgate::fuzz {
namespace {

class Mutator {
 public:
  Mutator(std::uint32_t seed, const Target& target) : random_(seed), target_(target), seeds_(target.seeds()) {}

  /// Returns a seed with one to six changes.
  std::string next() {
    std::string bytes = seeds_[below(seeds_.size())];
    for (std::size_t n = 1 + below(6); n > 0; --n) change(bytes);
    return bytes;
  }

 private:
  std::size_t below(std::size_t n) { return n == 0 ? 0 : random_() % n; }
  std::size_t place(const std::string& bytes) { return below(bytes.size() + 1); }

  std::string number() {
    constexpr std::array<const char*, 12> kNumbers{"0",
                                                   "1",
                                                   "-1",
                                                   "2147483648",
                                                   "4294967296",
                                                   "9223372036854775807",
                                                   "9223372036854775808",
                                                   "18446744073709551615",
                                                   "1e18",
                                                   "0.5",
                                                   "1e-320",
                                                   "65536"};
    return kNumbers[below(kNumbers.size())];
  }

  void change(std::string& bytes) {
    const std::size_t at = place(bytes);
    const std::size_t length = std::min(below(24), bytes.size() - at);
    switch (below(9)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<char>(random_());
        break;
      case 2: bytes.insert(at, target_.words[below(target_.words.size())]); break;
      case 3: bytes.erase(at, length); break;
      case 4: bytes.insert(at, bytes.substr(place(bytes), length)); break;
      case 5: bytes.resize(at); break;
      case 6: replace_number(bytes, at); break;
      case 7: overwrite_length(bytes); break;
      default: bytes.replace(at, length, target_.words[below(target_.words.size())]); break;
    }
  }

  /// Replaces the first run of digits at or after `at`.
  void replace_number(std::string& bytes, std::size_t at) {
    const std::size_t begin = bytes.find_first_of("0123456789", at);
    if (begin == std::string::npos) return;
    const std::size_t end = std::min(bytes.find_first_not_of("0123456789", begin), bytes.size());
    bytes.replace(begin, end - begin, number());
  }

  /// Overwrites a binary length near the front, where headers begin.
  void overwrite_length(std::string& bytes) {
    const std::uint64_t claim = below(2) == 0 ? below(400) : (std::uint64_t{random_()} << below(40));
    const std::size_t at = below(12);
    if (bytes.size() >= at + sizeof(claim)) std::memcpy(bytes.data() + at, &claim, 1 + below(sizeof(claim)));
  }

  std::mt19937 random_;
  const Target& target_;
  std::vector<std::string> seeds_;
};

std::string escaped(const std::string& bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F) {
      out += c;
    } else {
      out += std::string("\\x") + kDigits[byte >> 4] + kDigits[byte & 15];
    }
  }
  return out;
}

class Mutation : public ::testing::TestWithParam<std::size_t> {};

TEST_P(Mutation, Parser_MutatedFile_IsReadOrRefusedOnOneLine) {
  const std::size_t rounds = 250 * test_runs().value_or(80);
  const Target& target = targets()[GetParam()];
  const auto run = [&target](const std::string& bytes) {
    try {
      target.run(bytes);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what() << "\nfrom: " << escaped(bytes);
    }
  };
  for (const std::string& seed : target.seeds()) run(seed);
  Mutator mutator(20251106, target);
  for (std::size_t round = 0; round < rounds && !HasFailure(); ++round) run(mutator.next());
}

INSTANTIATE_TEST_SUITE_P(Parsers, Mutation, ::testing::Range(std::size_t{0}, targets().size()),
                         [](const auto& parameter) { return std::string(targets()[parameter.param].name); });

}  // namespace
}  // namespace headgate::fuzz
