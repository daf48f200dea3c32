// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "cli/console.hpp"
#include "cli/help.hpp"
#include "cli/verbs.hpp"
#include "headgate/version.h"

namespace headgate::cli {
namespace {

/// One line, whatever `what` holds: control characters would let a file's text take over the terminal.
int report(const std::string& who, std::string what) {
  for (char& c : what) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) c = ' ';
  }
  say(stderr, fmt::format("{}: {}\n", who, what));
  return kBadUsage;
}

std::vector<Verb> add_verbs(CLI::App& app) {
  // The order of the list in --help.
  return {
      add_explain(app), add_attend(app), add_train(app), add_eval(app),
      add_verify(app),  add_bench(app),  add_demo(app),  add_info(app),
  };
}

int run(int argc, char** argv) {
  CLI::App app{"Exact gated attention on plain CPUs: y = gate(z) * softmax(scale q k^T + bias, mask) v.", "headgate"};
  app.formatter(std::make_shared<HelpFormatter>());
  app.get_formatter()->label("Positionals", "Arguments");
  app.set_version_flag("--version", std::string("headgate ") + HEADGATE_VERSION, "Print the version and exit");
  app.footer(
      "`headgate VERB --help` tells more.\n\n"
      "Environment:\n"
      "  HEADGATE_ISA     vector target to use (`headgate info` lists them)\n"
      "  OMP_NUM_THREADS  threads to use where --threads is not given");

  std::string who = "headgate";
  try {
    const std::vector<Verb> verbs = add_verbs(app);
    for (const Verb& verb : verbs) verb.app->group("Verbs");
    app.require_subcommand(1);
    try {
      app.parse(argc, argv);
    } catch (const CLI::Success& request) {  // --help, --version
      std::ostringstream text;
      app.exit(request, text, text);
      fmt::print("{}", text.str());
      return kSuccess;
    } catch (const CLI::ParseError& error) {
      if (app.get_subcommands().empty() && argc < 2) return report(who, "a verb is missing (see headgate --help)");
      if (app.get_subcommands().empty()) return report(who, fmt::format("no verb '{}' (see headgate --help)", argv[1]));
      for (const CLI::App* verb : app.get_subcommands()) who = "headgate " + verb->get_name();
      return report(who, fmt::format("{} (see {} --help)", error.what(), who));
    }
    for (const Verb& verb : verbs) {
      if (!verb.app->parsed()) continue;
      who = "headgate " + verb.app->get_name();
      return verb.run();
    }
    return report(who, "no verb");
  } catch (const std::bad_alloc&) {
    return report(who, "not enough memory");
  } catch (const std::exception& error) {
    return report(who, error.what());
  } catch (...) {
    return report(who, "unexpected error");
  }
}

}  // namespace
}  // namespace headgate::cli

int main(int argc, char** argv) {
  const int status = headgate::cli::run(argc, argv);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return headgate::cli::report("headgate", "cannot write to standard output");
  }
  return status;
}
