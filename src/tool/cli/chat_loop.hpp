// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "models/generate/conversation.hpp"

namespace headgate::cli {

struct ChatLoopOptions {
  std::string model;  ///< as it was given
  int threads = 0;
  bool json = false;
  bool figures = false;  ///< print the figures of each answer on stderr
};

/// Converses over standard input, a turn a line, and returns the exit status. On a terminal SIGINT ends the answer;
/// elsewhere a signal ends the conversation. Throws Error as Conversation::ask does where standard input is no
/// terminal.
int run_chat(generate::Conversation& conversation, const ChatLoopOptions& options);

/// Returns the lines that are commands and what they do, for --help.
std::string chat_commands_help();

}  // namespace headgate::cli
