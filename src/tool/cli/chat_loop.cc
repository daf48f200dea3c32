// SPDX-License-Identifier: Apache-2.0
#include "tool/cli/chat_loop.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "headgate/error.hpp"
#include "models/io/file_error.hpp"
#include "tool/cli/generate_report.hpp"
#include "tool/cli/json_option.hpp"
#include "tool/cli/output_files.hpp"
#include "tool/cli/signals.hpp"
#include "tool/cli/verbs.hpp"
#include "tool/console/console.hpp"
#include "tool/console/progress.hpp"

namespace headgate::cli {
namespace {

using console::say;
using generate::Generated;
using generate::StopReason;

enum class Command { clear, help, quit, undo };

struct CommandRow {
  Command command;
  std::string_view word, help;
};

constexpr std::array<CommandRow, 4> kCommands{{
    {Command::clear, "/clear", "forgets all turns"},
    {Command::help, "/help", "lists these commands"},
    {Command::quit, "/quit", "ends, as Ctrl-D does"},
    {Command::undo, "/undo", "forgets the last turn"},
}};

std::optional<Command> command_of(std::string_view line) {
  const auto row =
      std::find_if(kCommands.begin(), kCommands.end(), [line](const CommandRow& each) { return each.word == line; });
  return row == kCommands.end() ? std::nullopt : std::optional<Command>(row->command);
}

/// Reads a question from standard input. A backslash at the end of a line continues the question on the next line.
/// Returns nothing at the end of the input.
/// Throws UsageError if the question has more than 2^26 bytes.
/// Throws io::FileError if standard input cannot be read, for instance if it is a directory.
std::optional<std::string> read_question() {
  constexpr std::size_t kMost = std::size_t{1} << 26;
  std::string out;
  int c = 0;
  while ((c = std::getchar()) != EOF) {
    if (c == '\n') {
      if (out.ends_with('\r')) out.pop_back();  // lines of Windows end with \r\n
      if (!out.ends_with('\\')) return out;
      out.back() = '\n';
      continue;
    }
    out += static_cast<char>(c);
    if (out.size() > kMost) throw UsageError(fmt::format("a question on standard input has more than {} bytes", kMost));
  }
  if (std::ferror(stdin) != 0) io::fail("standard input", "cannot be read: {}", std::strerror(errno));
  return out.empty() ? std::nullopt : std::optional<std::string>(out);
}

class Loop {
 public:
  Loop(generate::Conversation& conversation, const ChatLoopOptions& options)
      : conversation_(conversation), options_(options) {}

  int run() {
    if (terminal_ && !console::is_quiet()) {
      say(stderr,
          "Ctrl-C ends an answer, Ctrl-D the conversation. A backslash at its end continues a line. Commands:\n" +
              chat_commands_help());
    }
    for (;;) {
      prompt();
      const std::optional<std::string> question = read_question();
      if (!question) break;
      const std::optional<Command> command = command_of(*question);
      if (command == Command::quit) return kSuccess;
      if (command == Command::clear) {
        conversation_.clear();
      } else if (command == Command::undo) {
        if (!conversation_.undo()) say(stderr, "headgate generate: there is no turn to undo\n");
      } else if (command == Command::help) {
        say(stderr, chat_commands_help());
      } else if (!question->empty() && !answer(*question)) {
        return output_.reader_left ? kSuccess : kSignalStatus + SignalWatch::received();
      }
    }
    if (terminal_) say(stderr, "\n");
    return kSuccess;
  }

 private:
  void prompt() const {
    if (terminal_) say(stderr, "> ");
  }

  /// Passes `question` to the model and prints the answer. Returns false if the conversation must end.
  bool answer(const std::string& question) {
    const SignalWatch watch;
    try {
      ask(question);
    } catch (const Error& error) {
      if (!terminal_) throw;
      say(stderr, fmt::format("headgate generate: {}; /clear forgets all turns\n", error.what()));
    }
    const int signal_number = SignalWatch::received();
    return !output_.reader_left && (signal_number == 0 || (terminal_ && signal_number == SIGINT));
  }

  void ask(const std::string& question) {
    output_.text.clear();
    generate::GenerateHooks hooks;
    hooks.text = text_hook(output_);
    const Generated result = conversation_.ask(question, hooks);
    say_left_out(conversation_.left_out());
    GenerateFigures figures = figures_of(result);
    if ((options_.json || options_.figures) && SignalWatch::received() == 0) {
      if (machine_gbps_ == 0.0) machine_gbps_ = measure_machine_gbps(options_.threads);
      figures.machine_gbps = machine_gbps_;
    }
    print_end(result, figures);
  }

  void print_end(const Generated& result, const GenerateFigures& figures) {
    console::ProgressBar::clear_line();  // removes the progress bar of an interrupted question
    if (options_.json) {
      const auto object = generated_json(options_.model, conversation_.asked_ids(), result, figures, output_.text);
      output_.reader_left = !say(stdout, json_line(object));
    } else {
      output_.reader_left = !say(stdout, terminal_ ? "\n\n" : "\n") || output_.reader_left;
    }
    if (options_.figures) say(stderr, figures_text(result, figures, conversation_.tokenizer()));
    if (result.stop == StopReason::capacity) {
      say(stderr, "headgate generate: the conversation fills the model's positions; /clear forgets all turns\n");
    }
  }

  generate::Conversation& conversation_;
  const ChatLoopOptions& options_;
  const bool terminal_ = ::isatty(STDIN_FILENO) == 1;
  TextOutput output_{.json = options_.json};
  double machine_gbps_ = 0.0;
};

}  // namespace

std::string chat_commands_help() {
  std::string out;
  for (const CommandRow& row : kCommands) out += fmt::format("  {:<7} {}\n", row.word, row.help);
  return out;
}

int run_chat(generate::Conversation& conversation, const ChatLoopOptions& options) {
  return Loop(conversation, options).run();
}

}  // namespace headgate::cli
