// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "headgate/error.hpp"
#include "headgate/version.h"
#include "tool/cli/command_line.hpp"
#include "tool/cli/description.hpp"
#include "tool/cli/help.hpp"

namespace headgate::cli {
namespace {

/// Returns whether `type`, the name of an option's value in --help, stands for a path.
/// Such a name contains a dot ("Q.npy") or is one of kPaths ("MODEL"). Ignores a final "...".
bool names_path(std::string_view type) {
  constexpr std::array<std::string_view, 6> kPaths{"FILE", "DIR", "PATH", "MODEL", "RUN", "OUT"};
  if (type.ends_with("...")) type.remove_suffix(3);
  return type.find('.') != std::string_view::npos || std::find(kPaths.begin(), kPaths.end(), type) != kPaths.end();
}

OptionDescription describe_option(const CLI::Option& option, const ValueWords& value_words) {
  OptionDescription out;
  out.positional = option.get_positional();
  if (out.positional) {
    out.names = {option.get_name(true, false)};
    out.type = out.names.front();
    out.several = option.get_items_expected_max() > 1;
  } else {
    for (const std::string& name : option.get_snames()) out.names.push_back('-' + name);
    for (const std::string& name : option.get_lnames()) out.names.push_back("--" + name);
    if (option.get_type_size() != 0) out.type = option.get_option_text();
  }
  out.help = option.get_description();
  out.group = option.get_group();
  out.required = option.get_required();
  if (const auto words = value_words.find(&option); words != value_words.end()) out.words = words->second;
  return out;
}

VerbDescription describe_verb(const CLI::App& app, const ValueWords& value_words) {
  VerbDescription out;
  if (app.get_parent() != nullptr) out.name = app.get_name();
  const std::string text = app.get_description();
  out.summary = first_paragraph(text);
  out.description = text.substr(std::min(text.size(), out.summary.size() + 2));
  out.footer = app.get_footer();
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_group().empty()) out.options.push_back(describe_option(*option, value_words));
  }
  return out;
}

}  // namespace

ValueKind OptionDescription::kind() const {
  if (type.empty()) return ValueKind::none;
  if (!words.empty()) return ValueKind::words;
  return names_path(type) ? ValueKind::path : ValueKind::text;
}

ToolDescription CommandLine::describe() const {
  ToolDescription out;
  out.version = HEADGATE_VERSION;
  out.exit_status = kExitStatus;
  out.tool = describe_verb(*app_, value_words_);
  for (const CLI::App* verb : app_->get_subcommands([](const CLI::App* app) { return !app->get_group().empty(); })) {
    out.verbs.push_back(describe_verb(*verb, value_words_));
  }
  // Offers the names of all verbs as completions for an argument named VERB.
  for (VerbDescription& verb : out.verbs) {
    for (OptionDescription& option : verb.options) {
      if (!option.positional || option.type != "VERB") continue;
      for (const VerbDescription& each : out.verbs) option.words.push_back(each.name);
    }
  }
  return out;
}

std::string CommandLine::help(const std::string& verb) const {
  // Calls the formatter directly. App::help() would describe the verb on the parsed command line, not `verb`.
  const auto formatted = [this](const CLI::App& app, const std::string& name) {
    return app_->get_formatter()->make_help(&app, name, CLI::AppFormatMode::Normal);
  };
  if (verb.empty()) return formatted(*app_, "headgate");
  const std::vector<const CLI::App*> verbs = static_cast<const CLI::App&>(*app_).get_subcommands({});
  const auto found =
      std::find_if(verbs.begin(), verbs.end(), [&](const CLI::App* app) { return app->get_name() == verb; });
  if (found == verbs.end()) throw Error(refusal_of_verb(verb));
  return formatted(**found, "headgate " + verb);
}

}  // namespace headgate::cli
