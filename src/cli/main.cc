// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "cli/verbs.hpp"
#include "headgate/version.h"

namespace headgate::cli {
namespace {

int fail(const std::string& who, std::string what) {
  for (char& c : what) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  fmt::print(stderr, "{}: {}\n", who, what);
  return kBadUsage;
}

int run(int argc, char** argv) {
  CLI::App app{"Exact gated attention on CPUs.", "headgate"};
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("headgate ") + HEADGATE_VERSION);

  const std::vector<Verb> verbs = {};

  std::string who = "headgate";
  try {
    try {
      app.parse(argc, argv);
    } catch (const CLI::Success& e) {  // --help, --version
      return app.exit(e);
    }
    for (const Verb& verb : verbs) {
      if (!verb.app->parsed()) continue;
      who = "headgate " + verb.app->get_name();
      return verb.run();
    }
  } catch (const std::exception& e) {
    return fail(who, e.what());
  }
  return kBadUsage;
}

}  // namespace
}  // namespace headgate::cli

int main(int argc, char** argv) { return headgate::cli::run(argc, argv); }
