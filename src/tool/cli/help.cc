// SPDX-License-Identifier: Apache-2.0
#include "tool/cli/help.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tool/console/table.hpp"

namespace headgate::cli {
namespace {

constexpr std::size_t kWidth = 80;
constexpr std::size_t kColumn = 24;  ///< column at which --help prints the explanation of an option or verb

/// Wraps `text` at kWidth columns and indents every line except the first by `indent` spaces.
/// The caller has already printed `indent` columns before the first line.
/// Keeps newlines. Does not wrap lines that begin with a space.
std::string wrapped(const std::string& text, std::size_t indent) {
  std::string out;
  std::istringstream lines(text);
  std::string line;
  for (bool first = true; std::getline(lines, line); first = false) {
    if (!first) out += '\n' + std::string(line.empty() ? 0 : indent, ' ');
    out += line.starts_with(' ') ? line : console::wrapped_words(line, kWidth, indent, indent);
  }
  return out;
}

std::string entry(const std::string& name, const std::string& explanation) {
  std::string out = "  " + name;
  if (explanation.empty()) return out + '\n';
  if (out.size() + 2 > kColumn) {
    out += '\n' + std::string(kColumn, ' ');
  } else {
    out.resize(kColumn, ' ');
  }
  return out + wrapped(explanation, kColumn) + '\n';
}

}  // namespace

const char* const kExitStatus =
    "Exit status:\n"
    "  0  success\n"
    "  1  a check failed\n"
    "  2  bad usage, bad input, or a file that cannot be read or written\n";

std::string first_paragraph(const std::string& text) { return text.substr(0, text.find("\n\n")); }

std::string HelpFormatter::make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const {
  std::string out = make_usage(app, std::move(name)) + '\n' + wrapped(app->get_description(), 0) + '\n';
  out += make_subcommands(app, mode) + make_positionals(app);
  const std::vector<std::string> groups = app->get_groups();
  for (const bool general : {false, true}) {  // the group "Options", which holds --help and --version, comes last
    for (const std::string& group : groups) {
      if (group.empty() || general != (group == "Options")) continue;
      const auto options = app->get_options(
          [&group](const CLI::Option* option) { return option->get_group() == group && option->nonpositional(); });
      if (!options.empty()) out += make_group(group, false, options);
    }
  }
  if (!app->get_footer().empty()) out += '\n' + app->get_footer() + '\n';
  return out + '\n' + kExitStatus;
}

std::string HelpFormatter::make_usage(const CLI::App* app, std::string name) const {
  std::string line = name;
  if (app->get_parent() == nullptr) line += " VERB";
  for (const CLI::Option* option : app->get_options()) {
    if (option->nonpositional() && option->get_required()) {
      line += ' ' + option->get_name(false, false) + make_option_opts(option);
    }
  }
  line += " [OPTION]...";
  for (const CLI::Option* option : app->get_options()) {
    if (!option->get_positional()) continue;
    const std::string words = option->get_name(true, false) + (option->get_items_expected_max() > 1 ? "..." : "");
    line += option->get_required() ? ' ' + words : " [" + words + ']';
  }
  return "Usage: " + wrapped(line, 7) + '\n';
}

std::string HelpFormatter::make_subcommand(const CLI::App* sub) const {
  return entry(sub->get_name(), first_paragraph(sub->get_description()));
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  const std::string name = is_positional ? option->get_name(true, false)
                                         : CLI::detail::find_and_replace(option->get_name(false, true), ",", ", ") +
                                               make_option_opts(option);
  return entry(name, option->get_description());
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  if (option->get_type_size() == 0) return {};
  const std::string& text = option->get_option_text();
  return ' ' + (text.empty() ? option->get_type_name() : text);
}

}  // namespace headgate::cli
