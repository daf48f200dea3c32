// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace headgate::cli {

/// `--help` in the usual shape: usage with the required options, the description, options by group with the file or
/// number they take, the footer (examples), exit status; words wrapped at 80 columns.
/// The first paragraph of a verb's description is its line in the list of verbs.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
  std::string make_usage(const CLI::App* app, std::string name) const override;
  std::string make_subcommand(const CLI::App* sub) const override;
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
};

}  // namespace headgate::cli
