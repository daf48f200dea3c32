// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

// Declaring and parsing options. CLI11 does both; its headers take seconds to compile, so they stay behind
// command_line.cc and help.cc.

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's name
class App;
class Option;
}  // namespace CLI

namespace headgate::cli {

/// A declared option, for rules that few options have.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option& required();
  /// Refused without the other option, or with it.
  Option& needs(const Option& other);
  Option& excludes(const Option& other);
  Option& one_of(const std::vector<std::string>& words);
  Option& existing_file();
  /// Refused with what `complaint` says of the value, unless that is empty.
  Option& checked(std::string (*complaint)(const std::string& value));
  /// Not in --help.
  Option& hidden();

  template <typename N>
  requires std::is_arithmetic_v<N> Option& range(N least, N most) {
    if constexpr (std::integral<N>) {
      return integer_range(least, most);
    } else {
      return number_range(least, most);
    }
  }

 private:
  Option& integer_range(std::int64_t least, std::int64_t most);
  Option& number_range(double least, double most);

  CLI::Option* option_;
};

/// The options of one verb.
class VerbOptions {
 public:
  explicit VerbOptions(CLI::App* app) : app_(app) {}

  /// Text below the options in --help.
  void footer(const std::string& text);
  /// The heading in --help of the options declared from here on.
  void group(const std::string& name) { group_ = name; }

  /// A required argument without a name in front.
  Option argument(const std::string& name, std::string& to, const std::string& help);
  /// One or more of them.
  Option arguments(const std::string& name, std::vector<std::string>& to, const std::string& help);
  /// An option with a value, shown as `--name TYPE`; given twice, the last one holds. An empty word is refused: it is
  /// what a shell variable that is not set leaves. T: std::string, int, std::int64_t, std::uint64_t, double, or
  /// std::optional of one, empty while the option is absent.
  template <typename T>
  Option value(const std::string& name, T& to, const std::string& type, const std::string& help);
  /// An option that takes a value each time it is given, and keeps them all.
  Option values(const std::string& name, std::vector<std::string>& to, const std::string& type,
                const std::string& help);
  /// The same, with one or more values each time.
  Option lists(const std::string& name, std::vector<std::string>& to, const std::string& type, const std::string& help);
  /// An option whose value take(value) reads; the Error that it throws refuses the value.
  Option word(const std::string& name, const std::function<void(const std::string& value)>& take,
              const std::string& type, const std::string& help);
  Option flag(const std::string& name, bool& to, const std::string& help);
  /// set() is called where the flag is given.
  Option flag(const std::string& name, const std::function<void()>& set, const std::string& help);
  /// One declared before.
  Option declared(const std::string& name) const;

 private:
  Option finish(CLI::Option* option, const std::string& type) const;

  CLI::App* app_;
  std::string group_ = "Options";
};

/// What the arguments of the process ask for: one of the three is not empty.
struct Request {
  std::string verb;     ///< to be run
  std::string text;     ///< to be printed: --help or --version
  std::string refusal;  ///< what is wrong with the arguments; `verb` names the verb that refuses, if any
};

/// `headgate VERB …`.
class CommandLine {
 public:
  CommandLine(const std::string& description, const std::string& footer);
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;
  ~CommandLine();

  /// Verbs are listed in the order in which they are added; the first paragraph of the description is the verb's line.
  VerbOptions add_verb(const std::string& name, const std::string& description);
  Request parse(int argc, char** argv);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace headgate::cli
