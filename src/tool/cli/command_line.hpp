// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "tool/cli/description.hpp"

// Declares and parses options with CLI11. CLI11's headers take seconds to compile, so only command_line.cc, describe.cc
// and help.cc include them.

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's name
class App;
class Option;
}  // namespace CLI

namespace headgate::cli {

/// Maps an option to the words that shells offer as its values.
using ValueWords = std::map<const CLI::Option*, std::vector<std::string>>;

/// A declared option. The member functions add rules to it, such as a range of values.
class Option {
 public:
  Option(CLI::Option* option, ValueWords& value_words) : option_(option), value_words_(&value_words) {}

  Option& required();
  /// Refuses the option without `other`.
  Option& needs(const Option& other);
  /// Refuses the option together with `other`.
  Option& excludes(const Option& other);
  Option& one_of(const std::vector<std::string>& words);
  /// Sets the words that shells offer as values; other values stay allowed.
  Option& suggests(const std::vector<std::string>& words);
  Option& existing_file();
  /// Refuses a value if complaint(value) returns an error message. An empty string accepts the value.
  Option& checked(std::string (*complaint)(const std::string& value));
  /// Leaves the option out of --help.
  Option& hidden();
  /// Makes an argument optional; arguments are required otherwise.
  Option& optional();

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
  ValueWords* value_words_;
};

/// Declares the options of one verb. An option's name may have a short one before it: "-n,--max-tokens".
class VerbOptions {
 public:
  VerbOptions(CLI::App* app, ValueWords& value_words) : app_(app), value_words_(value_words) {}

  /// Sets the text below the options in --help.
  void footer(const std::string& text);
  /// Sets the heading in --help of the options declared from here on.
  void group(const std::string& name) { group_ = name; }

  /// Declares a required positional argument.
  Option argument(const std::string& name, std::string& to, const std::string& help);
  /// Declares positional arguments: one or more values, required unless optional() is called.
  Option arguments(const std::string& name, std::vector<std::string>& to, const std::string& help);
  /// Declares an option with a value, shown as `--name TYPE`. If it is repeated, the last value counts. Refuses an
  /// empty value, which an unset shell variable gives, and numbers out of T's range. T: std::string, int, std::int64_t,
  /// std::uint64_t, double, or std::optional of one of these, which stays empty without the option.
  template <typename T>
  Option value(const std::string& name, T& to, const std::string& type, const std::string& help);
  /// Declares an option that may be repeated; all values are kept.
  Option values(const std::string& name, std::vector<std::string>& to, const std::string& type,
                const std::string& help);
  /// Declares an option that takes one or more values and may be repeated; all values are kept.
  Option lists(const std::string& name, std::vector<std::string>& to, const std::string& type, const std::string& help);
  /// Declares an option and passes its value to take(value). If take() throws Error, the value is refused.
  Option word(const std::string& name, const std::function<void(const std::string& value)>& take,
              const std::string& type, const std::string& help);
  Option flag(const std::string& name, bool& to, const std::string& help);
  /// Declares a flag that calls set() when it is given.
  Option flag(const std::string& name, const std::function<void()>& set, const std::string& help);
  /// Returns the option `name`, which must have been declared.
  Option declared(const std::string& name) const;

 private:
  /// Declares an option whose values are checked during parsing, so that the error message names the first wrong value
  /// on the command line.
  Option taking(const std::string& name, const std::function<void(const std::string& value)>& take,
                const std::string& type, const std::string& help);

  CLI::App* app_;
  ValueWords& value_words_;
  std::string group_ = "Options";
};

/// Holds the result of parsing the command line. At least one of `verb`, `text` and `refusal` is not empty.
struct Request {
  std::string verb;     ///< verb to run
  std::string text;     ///< text to print: --help or --version
  std::string refusal;  ///< error message on the arguments; `verb` is then the verb, if one was named
};

/// Parses `headgate VERB …`.
class CommandLine {
 public:
  CommandLine(const std::string& description, const std::string& footer);
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;
  ~CommandLine();

  /// Adds a verb. --help lists the verbs in the order of these calls, with the first paragraph of each description.
  /// `quiet`: names of the option that suppresses notes and progress. A verb with an option --q has no -q: users
  /// confuse the two, and CLI11 2.4 and later refuses such names.
  VerbOptions add_verb(const std::string& name, const std::string& description,
                       const std::string& quiet = "-q,--quiet");
  Request parse(int argc, char** argv);

  /// Describes all verbs and options that --help shows.
  ToolDescription describe() const;
  /// Returns the text of `headgate VERB --help`, or of `headgate --help` if `verb` is empty. Throws Error if there is
  /// no such verb.
  std::string help(const std::string& verb) const;

 private:
  std::string refusal_of_extras(const CLI::App& verb) const;
  std::string refusal_of_verb(const std::string& word) const;

  std::unique_ptr<CLI::App> app_;
  ValueWords value_words_;
};

}  // namespace headgate::cli
