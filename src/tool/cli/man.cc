// SPDX-License-Identifier: Apache-2.0
#include "tool/cli/man.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <sstream>
#include <string_view>
#include <vector>

#include "models/tokenize/utf8.hpp"

namespace headgate::cli {
namespace {

/// Escapes non-ASCII characters, and ASCII characters that roff interprets or typesets differently.
std::string roff(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const auto point = tokenize::first_code_point(text);
    const std::size_t bytes = std::max<std::size_t>(point.bytes, 1);
    const char c = text.front();
    if (bytes > 1) {
      out += fmt::format("\\[u{:04X}]", static_cast<unsigned>(point.value));
    } else if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if (c == '\'') {
      out += "\\(aq";
    } else if (c == '`') {
      out += "\\(ga";
    } else if (c == '^') {
      out += "\\(ha";
    } else if (c == '~') {
      out += "\\(ti";
    } else {
      out += c;
    }
    text.remove_prefix(bytes);
  }
  return out;
}

/// Formats one line of text. Escapes a leading "." or "'", because roff would read the line as a request.
std::string text_line(std::string_view text) {
  const bool request = text.starts_with('.') || text.starts_with('\'');
  return (request ? "\\&" : "") + roff(text) + '\n';
}

std::string bold(std::string_view text) { return "\\fB" + roff(text) + "\\fR"; }
std::string italic(std::string_view text) { return "\\fI" + roff(text) + "\\fR"; }

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

/// Formats paragraphs in roff. Lines that begin with a space keep their line breaks; roff fills all other lines.
std::string paragraphs(const std::string& text) {
  std::string out;
  bool as_is = false, gap = true;
  for (const std::string& line : lines_of(text)) {
    if (line.empty()) {
      gap = true;
      continue;
    }
    const bool indented = line.starts_with(' ');
    if (as_is && !indented) out += ".EE\n";
    if (gap && !out.empty()) out += as_is && indented ? "\n" : ".PP\n";
    if (!as_is && indented) out += ".EX\n";
    as_is = indented;
    gap = false;
    out += text_line(indented && line.starts_with("  ") ? line.substr(2) : line);
  }
  return as_is ? out + ".EE\n" : out;
}

/// Formats the footer of --help in roff. The first line of a paragraph becomes a section heading if it ends in a colon
/// and the next line is indented.
/// Text before the first heading goes into a section NOTES.
std::string footer_sections(const std::string& footer) {
  std::string out, open;
  bool notes = false;
  const auto close = [&] {
    if (!open.empty()) out += paragraphs(open);
    open.clear();
  };
  const std::vector<std::string> lines = lines_of(footer);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const bool heads = lines[i].ends_with(':') && !lines[i].starts_with(' ') && i + 1 < lines.size() &&
                       lines[i + 1].starts_with(' ') && (i == 0 || lines[i - 1].empty());
    if (heads) {
      close();
      out += ".SH " + roff(upper(lines[i].substr(0, lines[i].size() - 1))) + '\n';
      notes = true;  // the text below belongs to this heading, so that no section NOTES is needed
      continue;
    }
    if (!notes && !lines[i].empty()) {
      out += ".SH NOTES\n";
      notes = true;
    }
    open += lines[i] + '\n';
  }
  close();
  return out;
}

std::string option_entry(const OptionDescription& option) {
  std::string tag;
  if (option.positional) {
    tag = italic(option.type) + (option.several ? "..." : "");
  } else {
    for (const std::string& name : option.names) tag += (tag.empty() ? "" : ", ") + bold(name);
    if (!option.type.empty()) tag += ' ' + italic(option.type);
  }
  std::string help;
  for (const std::string& line : lines_of(option.help)) help += line.empty() ? std::string(".IP\n") : text_line(line);
  return ".TP\n" + tag + '\n' + help;
}

std::string options_section(const VerbDescription& verb) {
  std::string arguments, options;
  std::vector<std::string> groups;
  for (const OptionDescription& option : verb.options) {
    if (option.positional) {
      arguments += option_entry(option);
    } else if (std::find(groups.begin(), groups.end(), option.group) == groups.end()) {
      groups.push_back(option.group);
    }
  }
  // Moves the group "Options", which holds --help, to the end, as --help itself does.
  std::stable_partition(groups.begin(), groups.end(), [](const std::string& group) { return group != "Options"; });
  for (const std::string& group : groups) {
    if (groups.size() > 1) options += ".SS " + roff(group) + '\n';
    for (const OptionDescription& option : verb.options) {
      if (!option.positional && option.group == group) options += option_entry(option);
    }
  }
  return (arguments.empty() ? "" : ".SH ARGUMENTS\n" + arguments) + ".SH OPTIONS\n" + options;
}

std::string synopsis(const VerbDescription& verb) {
  std::string out = ".SH SYNOPSIS\n" + bold("headgate " + verb.name);
  for (const OptionDescription& option : verb.options) {
    if (option.positional || !option.required) continue;
    out += ' ' + bold(option.long_name()) + ' ' + italic(option.type);
  }
  out += " [" + italic("OPTION") + "]...";
  for (const OptionDescription& option : verb.options) {
    if (!option.positional) continue;
    const std::string name = italic(option.type) + (option.several ? "..." : "");
    out += option.required ? ' ' + name : " [" + name + "]";
  }
  return out + '\n';
}

std::string title(const ToolDescription& tool, const std::string& name, const std::string& summary) {
  return fmt::format(".TH {} 1 \"\" \"headgate {}\" \"Headgate\"\n.SH NAME\n{} \\- {}\n", roff(upper(name)),
                     tool.version, roff(name), roff(summary));
}

std::string exit_status(const ToolDescription& tool) {
  std::string out = ".SH EXIT STATUS\n";
  const std::vector<std::string> lines = lines_of(tool.exit_status);
  for (std::size_t i = 1; i < lines.size(); ++i) {  // starts at 1, because line 0 is the heading
    const std::size_t number = lines[i].find_first_not_of(' '), text = lines[i].find("  ", number);
    out += ".TP\n" + roff(lines[i].substr(number, text - number)) + '\n' + text_line(lines[i].substr(text + 2));
  }
  return out;
}

}  // namespace

std::string tool_page(const ToolDescription& tool) {
  std::string out = title(tool, "headgate", "gated attention on CPUs: kernels, models and their tools");
  out += ".SH SYNOPSIS\n" + bold("headgate") + ' ' + italic("VERB") + " [" + italic("OPTION") + "]...\n";
  out += ".SH DESCRIPTION\n" + text_line(tool.tool.summary) + ".SH VERBS\n";
  for (const VerbDescription& verb : tool.verbs) {
    out += ".TP\n.BR " + roff("headgate-" + verb.name) + " (1)\n" + text_line(verb.summary);
  }
  return out + options_section(tool.tool) + footer_sections(tool.tool.footer) + exit_status(tool);
}

std::string verb_page(const ToolDescription& tool, const VerbDescription& verb) {
  std::string out = title(tool, "headgate-" + verb.name, verb.summary) + synopsis(verb);
  out += ".SH DESCRIPTION\n" + paragraphs(verb.description.empty() ? verb.summary + "." : verb.description);
  out += options_section(verb) + footer_sections(verb.footer) + exit_status(tool);
  return out + ".SH SEE ALSO\n.BR headgate (1)\n";
}

}  // namespace headgate::cli
