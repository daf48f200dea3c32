// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <optional>
#include <sstream>

#include "cli/help.hpp"
#include "headgate/error.hpp"
#include "headgate/version.h"

namespace headgate::cli {
namespace {

const CLI::Validator kNotEmpty([](const std::string& text) { return std::string(text.empty() ? "empty" : ""); }, "");

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
  option_->check(CLI::IsMember(words));
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
  option_->check(CLI::Range(least, most));
  return *this;
}

Option& Option::number_range(double least, double most) {
  option_->check(CLI::Range(least, most));
  return *this;
}

void VerbOptions::footer(const std::string& text) { app_->footer(text); }

Option VerbOptions::finish(CLI::Option* option, const std::string& type) const {
  option->option_text(type)->group(group_)->check(kNotEmpty);
  return Option(option);
}

Option VerbOptions::argument(const std::string& name, std::string& to, const std::string& help) {
  return Option(app_->add_option(name, to, help)->required());
}

Option VerbOptions::arguments(const std::string& name, std::vector<std::string>& to, const std::string& help) {
  return Option(app_->add_option(name, to, help)->required());
}

template <typename T>
Option VerbOptions::value(const std::string& name, T& to, const std::string& type, const std::string& help) {
  return finish(app_->add_option(name, to, help)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast), type);
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
  return finish(app_->add_option(name, to, help)->allow_extra_args(false), type);
}

Option VerbOptions::lists(const std::string& name, std::vector<std::string>& to, const std::string& type,
                          const std::string& help) {
  return finish(app_->add_option(name, to, help), type);
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
  return finish(app_->add_option_function<std::string>(name, checked, help)
                    ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast),
                type);
}

Option VerbOptions::flag(const std::string& name, const std::function<void()>& set, const std::string& help) {
  return Option(app_->add_flag_callback(name, set, help)->group(group_));
}

Option VerbOptions::flag(const std::string& name, bool& to, const std::string& help) {
  return Option(app_->add_flag(name, to, help)->group(group_));
}

Option VerbOptions::declared(const std::string& name) const { return Option(app_->get_option(name)); }

CommandLine::CommandLine(const std::string& description, const std::string& footer)
    : app_(std::make_unique<CLI::App>(description, "headgate")) {
  app_->formatter(std::make_shared<HelpFormatter>());
  app_->get_formatter()->label("Positionals", "Arguments");
  app_->set_version_flag("--version", std::string("headgate ") + HEADGATE_VERSION, "Print the version and exit");
  app_->footer(footer);
  app_->require_subcommand(1);
}

CommandLine::~CommandLine() = default;

VerbOptions CommandLine::add_verb(const std::string& name, const std::string& description) {
  CLI::App* verb = app_->add_subcommand(name, description);
  verb->group("Verbs");
  return VerbOptions(verb);
}

Request CommandLine::parse(int argc, char** argv) {
  Request request;
  try {
    app_->parse(argc, argv);
    request.verb = app_->get_subcommands().front()->get_name();
  } catch (const CLI::Success& asked) {  // --help, --version
    std::ostringstream text;
    app_->exit(asked, text, text);
    request.text = text.str();
  } catch (const CLI::ParseError& error) {
    if (!app_->get_subcommands().empty()) {
      request.verb = app_->get_subcommands().back()->get_name();
      request.refusal = fmt::format("{} (see headgate {} --help)", error.what(), request.verb);
    } else if (argc < 2) {
      request.refusal = "a verb is missing (see headgate --help)";
    } else {
      request.refusal = fmt::format("no verb '{}' (see headgate --help)", argv[1]);
    }
  }
  return request;
}

}  // namespace headgate::cli
