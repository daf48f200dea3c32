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

// Declares and parses options with CLI11.
// CLI11's headers take seconds to compile, so only command_line.cc, describe.cc and help.cc include them.

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's name
class App;
class Option;
}  // namespace CLI

namespace headgate::cli {

/// Maps an option to the values that shell completion offers for it.
using ValueWords = std::map<const CLI::Option*, std::vector<std::string>>;

/// A declared option. The member functions add constraints to it, such as a range of values.
class Option {
 public:
  Option(CLI::Option* option, ValueWords& value_words) : option_(option), value_words_(&value_words) {}

  Option& required();
  /// Makes it an error to give this option without `other`.
  Option& needs(const Option& other);
  /// Makes it an error to give this option together with `other`.
  Option& excludes(const Option& other);
  Option& one_of(const std::vector<std::string>& words);
  /// Sets the values that shell completion offers. Other values stay allowed.
  Option& suggests(const std::vector<std::string>& words);
  Option& existing_file();
  /// Sets a function that checks a value: it returns an error message, or an empty string if the value is valid.
  Option& checked(std::string (*complaint)(const std::string& value));
  /// Hides the option from --help.
  Option& hidden();
  /// Makes a positional argument optional. Without this call, positional arguments are required.
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

/// Declares the options of one verb (subcommand). A name may list a short form before the long one: "-n,--max-tokens".
class VerbOptions {
 public:
  VerbOptions(CLI::App* app, ValueWords& value_words) : app_(app), value_words_(value_words) {}

  /// Sets the text that --help prints below the options.
  void footer(const std::string& text);
  /// Starts a group of options in --help. Options declared after this call are listed under the heading `name`.
  void group(const std::string& name) { group_ = name; }

  /// Declares a required positional argument.
  Option argument(const std::string& name, std::string& to, const std::string& help);
  /// Declares a positional argument that takes one or more values. It is required unless optional() is called.
  Option arguments(const std::string& name, std::vector<std::string>& to, const std::string& help);
  /// Declares an option that takes one value, shown as `--name TYPE`. If the option is repeated, the last value counts.
  /// Refuses an empty value, because an unset shell variable expands to one. Refuses numbers outside the range of T.
  /// T: std::string, int, std::int64_t, std::uint64_t, double, or a std::optional of one of these.
  /// A std::optional stays empty if the option is not given.
  template <typename T>
  Option value(const std::string& name, T& to, const std::string& type, const std::string& help);
  /// Declares an option that takes one value and may be repeated. Collects all values in `to`.
  Option values(const std::string& name, std::vector<std::string>& to, const std::string& type,
                const std::string& help);
  /// Declares an option that takes one or more values and may be repeated. Collects all values in `to`.
  Option lists(const std::string& name, std::vector<std::string>& to, const std::string& type, const std::string& help);
  /// Declares an option and passes its value to take(value). If take() throws Error, the value is refused.
  Option word(const std::string& name, const std::function<void(const std::string& value)>& take,
              const std::string& type, const std::string& help);
  Option flag(const std::string& name, bool& to, const std::string& help);
  /// Declares a flag. Parsing calls set() if the flag is given.
  Option flag(const std::string& name, const std::function<void()>& set, const std::string& help);
  /// Returns the option `name`. Requires that it has been declared.
  Option declared(const std::string& name) const;

 private:
  /// Declares an option. Parsing calls take(value) for each value, in the order of the command line.
  /// An error message therefore names the first wrong value.
  Option taking(const std::string& name, const std::function<void(const std::string& value)>& take,
                const std::string& type, const std::string& help);

  CLI::App* app_;
  ValueWords& value_words_;
  std::string group_ = "Options";
};

/// The result of parsing the command line: a verb to run, a text to print, or an error message in `refusal`.
struct Request {
  std::string verb;     ///< verb to run
  std::string text;     ///< text to print for --help or --version
  std::string refusal;  ///< error message for invalid arguments; `verb` then holds the verb, if one was given
};

/// Parses `headgate VERB …`.
class CommandLine {
 public:
  CommandLine(const std::string& description, const std::string& footer);
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;
  ~CommandLine();

  /// Adds a verb (subcommand). --help lists the verbs in the order in which they were added.
  /// The first paragraph of `description` is the summary that --help shows in the list of verbs.
  /// `quiet` has the names of the option that suppresses notes and progress.
  /// A verb with an option --q must pass "--quiet" without "-q", because users would confuse -q with --q.
  /// CLI11 2.4 and later refuses to declare both -q and --q.
  VerbOptions add_verb(const std::string& name, const std::string& description,
                       const std::string& quiet = "-q,--quiet");
  Request parse(int argc, char** argv);

  /// Describes all verbs and options except hidden ones.
  ToolDescription describe() const;
  /// Returns the output of `headgate VERB --help`, or of `headgate --help` if `verb` is empty.
  /// Throws Error if there is no such verb.
  std::string help(const std::string& verb) const;

 private:
  std::string refusal_of_extras(const CLI::App& verb) const;
  std::string refusal_of_verb(const std::string& word) const;

  std::unique_ptr<CLI::App> app_;
  ValueWords value_words_;
};

}  // namespace headgate::cli
