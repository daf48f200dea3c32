// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "headgate/error.hpp"
#include "tool/cli/completion.hpp"
#include "tool/cli/enum_option.hpp"
#include "tool/cli/json_option.hpp"
#include "tool/cli/man.hpp"
#include "tool/cli/verbs.hpp"

// Declares the verbs help, completion and man, which describe the other verbs.
// These verbs read the options of all verbs from the CommandLine object, which must therefore outlive them.

namespace headgate::cli {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(OptionDescription, names, type, help, group, positional, required, several, words)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(VerbDescription, name, summary, description, options, footer)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ToolDescription, version, exit_status, tool, verbs)

namespace {

struct ManOptions {
  std::string verb;
  bool list = false;
  bool json = false;
};

int run_man(const CommandLine& line, const ManOptions& o) {
  const ToolDescription tool = line.describe();
  if (o.list) {
    fmt::print("headgate\n");
    for (const VerbDescription& verb : tool.verbs) fmt::print("headgate-{}\n", verb.name);
    return kSuccess;
  }
  if (o.json) {
    fmt::print("{}", json_text(nlohmann::json(tool)));
    return kSuccess;
  }
  if (o.verb.empty()) {
    fmt::print("{}", tool_page(tool));
    return kSuccess;
  }
  line.help(o.verb);  // throws Error if there is no such verb
  const auto verb = std::find_if(tool.verbs.begin(), tool.verbs.end(),
                                 [&o](const VerbDescription& each) { return each.name == o.verb; });
  fmt::print("{}", verb_page(tool, *verb));
  return kSuccess;
}

}  // namespace

Verb add_help(CommandLine& line) {
  auto name = std::make_shared<std::string>();
  VerbOptions verb = line.add_verb("help", "Explain a verb, as `headgate VERB --help` does; without one, list them");
  verb.argument("VERB", *name, "The verb to explain").optional();
  verb.footer(
      "Example:\n"
      "  headgate help generate");
  return {"help", [name, &line] {
            fmt::print("{}", line.help(*name));
            return kSuccess;
          }};
}

Verb add_completion(CommandLine& line) {
  auto shell = std::make_shared<std::string>();
  VerbOptions verb = line.add_verb(
      "completion",
      "Print a script with which a shell completes verbs, options and their words\n\n"
      "Installed packages have these scripts in place: share/bash-completion/completions, share/zsh/site-functions and "
      "share/fish/vendor_completions.d.");
  verb.argument("SHELL", *shell, list_words<Shell>()).one_of(words_in<Words<Shell>>());
  verb.footer(
      "Examples:\n"
      "  eval \"$(headgate completion bash)\"\n"
      "  headgate completion zsh > ~/.zfunc/_headgate\n"
      "  headgate completion fish | source");
  return {"completion", [shell, &line] {
            fmt::print("{}", completion_script(line.describe(), *find_word<Shell>(*shell)));
            return kSuccess;
          }};
}

Verb add_man(CommandLine& line) {
  auto o = std::make_shared<ManOptions>();
  VerbOptions verb = line.add_verb("man",
                                   "Print a manual page: that of a verb, or that of the tool\n\n"
                                   "Installed packages have all pages in share/man/man1.");
  const Option page =
      verb.argument("VERB", o->verb, "The verb whose page is printed; without it, headgate(1)").optional();
  const Option list = verb.flag("--list", o->list, "Print the names of all pages and exit").excludes(page);
  verb.flag("--json", o->json, "Print all verbs with their options as JSON and exit").excludes(page).excludes(list);
  verb.footer(
      "Example:\n"
      "  headgate man generate | man -l -");
  return {"man", [o, &line] { return run_man(line, *o); }};
}

}  // namespace headgate::cli
