// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace headgate::cli {

/// Lists the exit statuses of the tool, as text for --help.
extern const char* const kExitStatus;

/// Returns the first paragraph of `text`: the text before the first empty line.
std::string first_paragraph(const std::string& text);

/// Formats the output of `--help`, wrapped at 80 columns.
/// Sections, in order: usage, description, verbs, arguments, options by group, footer (examples), exit status.
/// The list of verbs shows the first paragraph of each verb's description.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
  std::string make_usage(const CLI::App* app, std::string name) const override;
  std::string make_subcommand(const CLI::App* sub) const override;
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
};

}  // namespace headgate::cli
