// SPDX-License-Identifier: Apache-2.0
#include "tool/cli/completion.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

namespace headgate::cli {
namespace {

/// Inserts a backslash before each character of `text` that occurs in `special`.
std::string escaped(const std::string& text, std::string_view special) {
  std::string out;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

/// Returns the positional argument that shells complete: the last one of the verb. Returns null if the verb has none.
const OptionDescription* argument_of(const VerbDescription& verb) {
  const OptionDescription* found = nullptr;
  for (const OptionDescription& option : verb.options) {
    if (option.positional) found = &option;
  }
  return found;
}

std::vector<std::string> option_names(const VerbDescription& verb) {
  std::vector<std::string> out;
  for (const OptionDescription& option : verb.options) {
    if (!option.positional) out.insert(out.end(), option.names.begin(), option.names.end());
  }
  return out;
}

std::vector<std::string> verb_names(const ToolDescription& tool) {
  std::vector<std::string> out;
  for (const VerbDescription& verb : tool.verbs) out.push_back(verb.name);
  return out;
}

std::string header(const ToolDescription& tool, const std::string& shell, const std::string& use) {
  return fmt::format("# Completes headgate {} in {}; made by `headgate completion {}`.\n# {}\n", tool.version, shell,
                     shell, use);
}

// bash

/// Returns bash assignments that tell the completion script how to complete an option's value.
/// The results are "kind=words words='…'", "kind=path", or "kind=text" for no completion.
std::string bash_value(const OptionDescription& option) {
  switch (option.kind()) {
    case ValueKind::words: return fmt::format("kind=words words='{}'", fmt::join(option.words, " "));
    case ValueKind::path: return "kind=path";
    case ValueKind::none:
    case ValueKind::text: break;
  }
  return "kind=text";
}

std::string bash_verb(const VerbDescription& verb) {
  std::string out = fmt::format("    {})\n      options='{}'\n", verb.name.empty() ? "''" : verb.name,
                                fmt::join(option_names(verb), " "));
  std::string cases;
  for (const OptionDescription& option : verb.options) {
    if (option.positional || option.kind() == ValueKind::none) continue;
    cases += fmt::format("        {}) {} ;;\n", fmt::join(option.names, "|"), bash_value(option));
  }
  if (const OptionDescription* argument = argument_of(verb)) {
    cases += fmt::format("        *) kind=argument; [[ $current == -* ]] || {} ;;\n", bash_value(*argument));
  }
  if (!cases.empty()) out += "      case $previous in\n" + cases + "      esac\n";
  return out + "      ;;\n";
}

std::string bash_script(const ToolDescription& tool) {
  std::string out = header(tool, "bash", "Use: eval \"$(headgate completion bash)\"");
  out += R"(_headgate() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} verb='' kind='' words='' options=''
  # --name=value is three words.
  if [[ $current == = ]]; then
    current=''
  elif [[ $previous == = ]]; then
    previous=${COMP_WORDS[COMP_CWORD-2]}
  fi
  ((COMP_CWORD > 1)) && verb=${COMP_WORDS[1]}
  COMPREPLY=()
  case $verb in
)";
  out += bash_verb(tool.tool);
  for (const VerbDescription& verb : tool.verbs) out += bash_verb(verb);
  out += fmt::format(R"(  esac
  if [[ -z $verb && $current != -* ]]; then kind=words words='{}'; fi
  case $kind in
    text) ;;
    words) mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current") ;;
    path)
      mapfile -t COMPREPLY < <(compgen -f -- "$current")
      compopt -o filenames 2>/dev/null
      ;;
    *) mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current") ;;
  esac
}}
complete -F _headgate headgate
)",
                     fmt::join(verb_names(tool), " "));
  return out;
}

// zsh

std::string zsh_quoted(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return fmt::format("'{}'", out);
}

/// Returns ":TYPE:ACTION", the end of a zsh _arguments specification.
/// zsh shows TYPE to the user. ACTION is the list of words to offer, "_files" for paths, or " " for nothing.
std::string zsh_value(const OptionDescription& option) {
  std::string action = " ";
  if (option.kind() == ValueKind::words) action = fmt::format("({})", fmt::join(option.words, " "));
  if (option.kind() == ValueKind::path) action = "_files";
  return fmt::format(":{}:{}", escaped(option.type, ":\\"), action);
}

std::string zsh_verb(const VerbDescription& verb) {
  std::string out = fmt::format("    {})\n      _arguments -s -S", verb.name);
  for (const OptionDescription& option : verb.options) {
    if (option.positional) continue;
    const std::string value = option.kind() == ValueKind::none ? "" : zsh_value(option);
    for (const std::string& name : option.names) {
      const std::string equals = value.empty() || !name.starts_with("--") ? "" : "=";
      out += " \\\n        " +
             zsh_quoted(fmt::format("*{}{}[{}]{}", name, equals, escaped(first_clause(option.help), "[]:\\"), value));
    }
  }
  if (const OptionDescription* argument = argument_of(verb))
    out += " \\\n        " + zsh_quoted(fmt::format("*{}", zsh_value(*argument)));
  return out + "\n      ;;\n";
}

std::string zsh_script(const ToolDescription& tool) {
  std::string out = "#compdef headgate\n";
  out += header(tool, "zsh", "Use: save it as _headgate in a directory of $fpath.");
  out += "_headgate() {\n  local -a verbs\n  verbs=(\n";
  for (const VerbDescription& verb : tool.verbs) {
    out += "    " + zsh_quoted(fmt::format("{}:{}", verb.name, escaped(verb.summary, "\\"))) + "\n";
  }
  out += "  )\n  if ((CURRENT == 2)); then\n    if [[ $PREFIX == -* ]]; then\n      compadd -- ";
  out += fmt::format("{}\n", fmt::join(option_names(tool.tool), " "));
  out += "    else\n      _describe verb verbs\n    fi\n    return\n  fi\n";
  out += "  local verb=$words[2]\n  shift words\n  ((CURRENT--))\n  case $verb in\n";
  for (const VerbDescription& verb : tool.verbs) out += zsh_verb(verb);
  out += "  esac\n}\nif [[ $funcstack[1] == _headgate ]]; then _headgate \"$@\"; else compdef _headgate headgate; fi\n";
  return out;
}

// fish

std::string fish_quoted(const std::string& text) { return fmt::format("'{}'", escaped(text, "\\'")); }

std::string fish_option(const std::string& condition, const OptionDescription& option) {
  std::string out = "complete -c headgate -n " + fish_quoted(condition);
  for (const std::string& name : option.names) {
    out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  }
  switch (option.kind()) {
    case ValueKind::none: break;
    case ValueKind::words:
      out += fmt::format(" -x -a {}", fish_quoted(fmt::format("{}", fmt::join(option.words, " "))));
      break;
    case ValueKind::path: out += " -r -F"; break;
    case ValueKind::text: out += " -x"; break;
  }
  return out + " -d " + fish_quoted(first_clause(option.help)) + '\n';
}

std::string fish_verb(const VerbDescription& verb) {
  const std::string condition = "__headgate_verb_is " + verb.name;
  std::string out;
  for (const OptionDescription& option : verb.options) {
    if (!option.positional) out += fish_option(condition, option);
  }
  const OptionDescription* argument = argument_of(verb);
  if (argument == nullptr) return out;
  const std::string complete = "complete -c headgate -n " + fish_quoted(condition);
  if (argument->kind() == ValueKind::path) out += complete + " -F\n";
  if (argument->kind() == ValueKind::words) {
    out += complete + " -a " + fish_quoted(fmt::format("{}", fmt::join(argument->words, " "))) + '\n';
  }
  return out;
}

std::string fish_script(const ToolDescription& tool) {
  std::string out = header(tool, "fish", "Use: headgate completion fish | source");
  out +=
      "function __headgate_verb_is\n  set -l words (commandline -opc)\n"
      "  test (count $words) -gt 1; and test \"$words[2]\" = \"$argv[1]\"\nend\n"
      "function __headgate_no_verb\n  test (count (commandline -opc)) -eq 1\nend\n"
      "complete -c headgate -f\n";
  for (const OptionDescription& option : tool.tool.options) out += fish_option("__headgate_no_verb", option);
  for (const VerbDescription& verb : tool.verbs) {
    out +=
        fmt::format("complete -c headgate -n __headgate_no_verb -a {} -d {}\n", verb.name, fish_quoted(verb.summary));
  }
  for (const VerbDescription& verb : tool.verbs) out += fish_verb(verb);
  return out;
}

}  // namespace

std::string first_clause(const std::string& help) {
  std::size_t end = help.size();
  for (const char* stop : {". ", "; ", ": ", " (", "\n"}) end = std::min(end, help.find(stop));
  std::string out = help.substr(0, end);
  if (out.ends_with('.')) out.pop_back();
  return out;
}

std::string completion_script(const ToolDescription& tool, Shell shell) {
  switch (shell) {
    case Shell::bash: return bash_script(tool);
    case Shell::zsh: return zsh_script(tool);
    case Shell::fish: return fish_script(tool);
  }
  return "";
}

}  // namespace headgate::cli
