// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace headgate::cli {

/// Lists the statuses with which the tool ends.
extern const char* const kExitStatus;

/// Returns the text before the first empty line.
std::string first_paragraph(const std::string& text);

/// Formats `--help` in the usual order: usage with the required options, description, options by group with the type of
/// their value, footer (examples), exit status; wrapped at 80 columns. The first paragraph of a verb's description is
/// its line in the list of verbs.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
  std::string make_usage(const CLI::App* app, std::string name) const override;
  std::string make_subcommand(const CLI::App* sub) const override;
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
};

}  // namespace headgate::cli
