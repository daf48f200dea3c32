// SPDX-License-Identifier: Apache-2.0
#include "tool/cli/command_line.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "headgate/error.hpp"
#include "headgate/version.h"
#include "library/core/nearest_word.hpp"
#include "tool/cli/help.hpp"
#include "tool/cli/number.hpp"
#include "tool/console/console.hpp"

namespace headgate::cli {
namespace {

const CLI::Validator kNotEmpty([](const std::string& text) { return std::string(text.empty() ? "empty" : ""); }, "");

void assign(std::string& to, const std::string& text, const std::string& /*name*/) { to = text; }

template <typename N>
requires std::is_arithmetic_v<N>
void assign(N& to, const std::string& text, const std::string& name) {
  std::string complaint;
  const std::optional<N> number = read_number<N>(text, complaint);
  if (!number) throw CLI::ValidationError(name, complaint);
  to = *number;
}

template <typename T>
void assign(std::optional<T>& to, const std::string& text, const std::string& name) {
  assign(to.emplace(), text, name);
}

/// Returns the long name of an option: "--max-tokens" for "-n,--max-tokens".
std::string long_name(const std::string& name) { return name.substr(name.rfind(',') + 1); }

/// Formats "a", "b" and "c" as "a, b and c".
std::string with_and(const std::vector<std::string>& words) {
  std::string out = words.front();
  for (std::size_t i = 1; i < words.size(); ++i) out += (i + 1 < words.size() ? ", " : " and ") + words[i];
  return out;
}

/// Suggests a verb or an option for a word that is neither: "eval" for "evaluate".
struct Synonym {
  std::string_view word, verb;
};
constexpr std::array<Synonym, 12> kSynonyms{{{"evaluate", "eval"},
                                             {"evaluation", "eval"},
                                             {"perplexity", "eval"},
                                             {"version", "--version"},
                                             {"benchmark", "bench"},
                                             {"chat", "generate --chat"},
                                             {"complete", "generate"},
                                             {"run", "generate"},
                                             {"inspect", "xray"},
                                             {"finetune", "train --init"},
                                             {"check", "verify"},
                                             {"test", "verify"}}};

/// Returns the verb or option that kSynonyms suggests for `word`, or an empty string if there is none.
std::string_view verb_meant_by(std::string_view word) {
  while (word.starts_with('-')) word.remove_prefix(1);
  const auto* found =
      std::find_if(kSynonyms.begin(), kSynonyms.end(), [word](const Synonym& each) { return each.word == word; });
  return found == kSynonyms.end() ? std::string_view() : found->verb;
}

/// Returns the option of the subcommand `verb` that is spelled most like the mistyped option `word`.
/// Returns an empty string if no option is close.
std::string nearest_option(const std::string& word, const CLI::App& verb) {
  const std::size_t begin = word.find_first_not_of('-');
  if (begin == 0 || begin == std::string::npos) return "";
  std::vector<std::string_view> known;
  for (const CLI::Option* option : verb.get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames()) known.push_back(name);
  }
  const std::string_view typed = std::string_view{word}.substr(begin, word.find('=') - begin);
  const std::string_view nearest = nearest_word(typed, known);
  return nearest.empty() ? "" : "--" + std::string(nearest);
}

/// Returns the message to print for a parse error. If a value is missing, the message is "OPTION needs a value".
/// CLI11's own message would name the type of the value, but the options here have no type.
std::string words_of(const CLI::ParseError& error) {
  const std::string what = error.what();
  const bool lacks_value =
      dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr && what.find(" required ") != std::string::npos;
  return lacks_value ? what.substr(0, what.find(':')) + " needs a value" : what;
}

}  // namespace

Option& Option::required() {
  option_->required();
  return *this;
}

Option& Option::needs(const Option& other) {
  option_->needs(other.option_);
  return *this;
}

Option& Option::excludes(const Option& other) {
  option_->excludes(other.option_);
  return *this;
}

Option& Option::one_of(const std::vector<std::string>& words) {
  const auto complaint = [words](const std::string& value) {
    if (std::find(words.begin(), words.end(), value) != words.end()) return std::string();
    return word_complaint(value, {words.begin(), words.end()});
  };
  option_->check(CLI::Validator(complaint, ""));
  return suggests(words);
}

Option& Option::suggests(const std::vector<std::string>& words) {
  (*value_words_)[option_] = words;
  return *this;
}

Option& Option::existing_file() {
  option_->check(CLI::ExistingFile);
  return *this;
}

Option& Option::checked(std::string (*complaint)(const std::string& value)) {
  option_->check(CLI::Validator(complaint, ""));
  return *this;
}

Option& Option::hidden() {
  option_->group("");
  return *this;
}

Option& Option::optional() {
  option_->required(false);
  return *this;
}

Option& Option::integer_range(std::int64_t least, std::int64_t most) {
  option_->check(CLI::Validator([=](const std::string& value) { return number_complaint(value, least, most); }, ""));
  return *this;
}

Option& Option::number_range(double least, double most) {
  option_->check(CLI::Validator([=](const std::string& value) { return number_complaint(value, least, most); }, ""));
  return *this;
}

void VerbOptions::footer(const std::string& text) { app_->footer(text); }

Option VerbOptions::taking(const std::string& name, const std::function<void(const std::string& value)>& take,
                           const std::string& type, const std::string& help) {
  // Reads the values from results(), as the user typed them. CLI11 may process values before it passes them to the
  // callback.
  const auto take_all = [app = app_, option = long_name(name), take](const CLI::results_t&) {
    const CLI::results_t& values = app->get_option(option)->results();
    std::for_each(values.begin(), values.end(), take);
    return true;
  };
  CLI::Option* option = app_->add_option(name, take_all, help);
  option->option_text(type)->group(group_)->check(kNotEmpty)->trigger_on_parse();
  return {option, value_words_};
}

Option VerbOptions::argument(const std::string& name, std::string& to, const std::string& help) {
  return {app_->add_option(name, to, help)->check(kNotEmpty)->required(), value_words_};
}

Option VerbOptions::arguments(const std::string& name, std::vector<std::string>& to, const std::string& help) {
  return {app_->add_option(name, to, help)->check(kNotEmpty)->required(), value_words_};
}

template <typename T>
Option VerbOptions::value(const std::string& name, T& to, const std::string& type, const std::string& help) {
  return taking(
      name, [option = long_name(name), &to](const std::string& value) { assign(to, value, option); }, type, help);
}

template Option VerbOptions::value(const std::string&, std::string&, const std::string&, const std::string&);
template Option VerbOptions::value(const std::string&, int&, const std::string&, const std::string&);
template Option VerbOptions::value(const std::string&, std::int64_t&, const std::string&, const std::string&);
template Option VerbOptions::value(const std::string&, std::uint64_t&, const std::string&, const std::string&);
template Option VerbOptions::value(const std::string&, double&, const std::string&, const std::string&);
template Option VerbOptions::value(const std::string&, std::optional<std::string>&, const std::string&,
                                   const std::string&);
template Option VerbOptions::value(const std::string&, std::optional<int>&, const std::string&, const std::string&);
template Option VerbOptions::value(const std::string&, std::optional<std::int64_t>&, const std::string&,
                                   const std::string&);
template Option VerbOptions::value(const std::string&, std::optional<std::uint64_t>&, const std::string&,
                                   const std::string&);
template Option VerbOptions::value(const std::string&, std::optional<double>&, const std::string&, const std::string&);

Option VerbOptions::values(const std::string& name, std::vector<std::string>& to, const std::string& type,
                           const std::string& help) {
  return taking(
      name, [&to](const std::string& value) { to.push_back(value); }, type, help);
}

Option VerbOptions::lists(const std::string& name, std::vector<std::string>& to, const std::string& type,
                          const std::string& help) {
  const Option option = values(name, to, type, help);
  // Limits the number of values. With a very large maximum, CLI11 would take only one value after each option name.
  // CLI11's allow_extra_args() needs no maximum, but it splits a value such as "[a,b]" into several values.
  constexpr int kMostValues = CLI::detail::expected_max_vector_size / 16 - 1;
  app_->get_option(name)->expected(1, kMostValues);
  return option;
}

Option VerbOptions::word(const std::string& name, const std::function<void(const std::string& value)>& take,
                         const std::string& type, const std::string& help) {
  const auto checked = [take](const std::string& value) {
    try {
      take(value);
    } catch (const Error& error) {
      throw CLI::ValidationError(error.what());
    }
  };
  return taking(name, checked, type, help);
}

Option VerbOptions::flag(const std::string& name, const std::function<void()>& set, const std::string& help) {
  return {app_->add_flag_callback(name, set, help)->group(group_), value_words_};
}

Option VerbOptions::flag(const std::string& name, bool& to, const std::string& help) {
  return {app_->add_flag(name, to, help)->group(group_), value_words_};
}

Option VerbOptions::declared(const std::string& name) const { return {app_->get_option(name), value_words_}; }

CommandLine::CommandLine(const std::string& description, const std::string& footer)
    : app_(std::make_unique<CLI::App>(description, "headgate")) {
  app_->formatter(std::make_shared<HelpFormatter>());
  app_->get_formatter()->label("Positionals", "Arguments");
  app_->set_version_flag("-V,--version", std::string("headgate ") + HEADGATE_VERSION, "Print the version and exit");
  app_->footer(footer);
  app_->require_subcommand(1);
}

CommandLine::~CommandLine() = default;

VerbOptions CommandLine::add_verb(const std::string& name, const std::string& description, const std::string& quiet) {
  CLI::App* verb = app_->add_subcommand(name, description);
  verb->group("Verbs");
  verb->add_flag_callback(quiet, console::be_quiet, "Print results and errors only: no notes, no progress");
  return {verb, value_words_};
}

std::string CommandLine::refusal_of_extras(const CLI::App& verb) const {
  const std::vector<std::string> extras = verb.remaining();
  std::vector<std::string> meant;
  for (const std::string& word : extras) {
    const std::string option = nearest_option(word, verb);
    if (!option.empty()) meant.push_back(option);
  }
  return fmt::format("unexpected argument{} {}{}", extras.size() == 1 ? "" : "s", fmt::join(extras, " "),
                     meant.empty() ? "" : fmt::format("; did you mean {}?", with_and(meant)));
}

std::string CommandLine::refusal_of_verb(const std::string& word) const {
  std::vector<std::string_view> verbs;
  for (const CLI::App* verb : app_->get_subcommands({})) verbs.push_back(verb->get_name());
  std::string_view meant = nearest_word(word, verbs);
  if (meant.empty()) meant = verb_meant_by(word);
  return fmt::format("no verb '{}'{}{}{}", word, meant.empty() ? "" : "; did you mean ", meant,
                     meant.empty() ? "" : "?");
}

Request CommandLine::parse(int argc, char** argv) {
  Request request;
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  if (words.empty()) {
    request.text = help("");
    return request;
  }
  try {
    app_->parse(std::vector<std::string>(words.rbegin(), words.rend()));
    request.verb = app_->get_subcommands().front()->get_name();
  } catch (const CLI::Success& asked) {  // --help, --version
    std::ostringstream text;
    app_->exit(asked, text, text);
    request.text = text.str();
  } catch (const CLI::ParseError& error) {
    if (app_->get_subcommands().empty() || app_->remaining_size() > 0) {
      request.refusal = refusal_of_verb(words.front()) + " (see headgate --help)";
    } else {
      // If there are unexpected arguments, reports them instead of the error of CLI11, for two reasons:
      // - A missing required option may be there with a typing error, as an unexpected argument.
      // - If CLI11 refuses a value, the unexpected arguments come before this value on the command line.
      const CLI::App& verb = *app_->get_subcommands().back();
      request.verb = verb.get_name();
      request.refusal =
          fmt::format("{} (see headgate {} --help)",
                      verb.remaining_size() > 0 ? refusal_of_extras(verb) : words_of(error), request.verb);
    }
  }
  return request;
}

}  // namespace headgate::cli
