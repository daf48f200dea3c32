// SPDX-License-Identifier: Apache-2.0
#include "tool/cli/old_words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace headgate::cli {
namespace {

void add_note(std::vector<std::string>& notes, const std::string& note) {
  if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
}

/// Replaces `old_name` by `name` if `word` is `old_name` or `old_name=VALUE`. Otherwise returns false.
bool rename(std::string& word, const std::string& old_name, const std::string& name) {
  if (word != old_name && !word.starts_with(old_name + '=')) return false;
  word.replace(0, old_name.size(), name);
  return true;
}

/// Returns whether `word`, which follows `flag`, is the flag's file rather than an option or an argument of the verb.
bool is_file(const std::string& word, const FlagWithFile& flag) {
  return !word.empty() && !word.starts_with('-') && !flag.is_argument(word);
}

}  // namespace

std::vector<std::string> OldWords::translated(const std::vector<std::string>& words,
                                              std::vector<std::string>& notes) const {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--") {  // only positional arguments follow
      out.insert(out.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
      break;
    }
    std::string word = words[i];
    for (const RenamedOption& option : renamed) {
      if (!rename(word, option.old_name, option.name)) continue;
      add_note(notes, fmt::format("{} is now {}", option.old_name, option.name));
      break;
    }
    for (const FlagWithFile& flag : with_file) {
      const bool file_follows = word == flag.flag && i + 1 < words.size() && is_file(words[i + 1], flag);
      if (!file_follows && !word.starts_with(flag.flag + '=')) continue;
      rename(word, flag.flag, flag.option);
      add_note(notes, fmt::format("{} FILE is now {} FILE", flag.flag, flag.option));
      break;
    }
    out.push_back(std::move(word));
  }
  return out;
}

}  // namespace headgate::cli
