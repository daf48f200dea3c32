// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "models/generate/conversation.hpp"

namespace headgate::cli {

struct ChatLoopOptions {
  std::string model;  ///< path of the model, as the user gave it
  int threads = 0;
  bool json = false;
  bool figures = false;  ///< print the figures of each answer on stderr
};

/// Runs a conversation over standard input, one question a line, and returns the exit status. On a terminal SIGINT ends
/// the current answer; otherwise a signal ends the conversation. If standard input is not a terminal, throws the Errors
/// of Conversation::ask().
int run_chat(generate::Conversation& conversation, const ChatLoopOptions& options);

/// Returns the help text of the chat commands, such as /clear.
std::string chat_commands_help();

}  // namespace headgate::cli
