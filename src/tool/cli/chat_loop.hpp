// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "models/generate/conversation.hpp"

namespace headgate::cli {

struct ChatLoopOptions {
  std::string model;  ///< path of the model as given on the command line
  int threads = 0;
  bool json = false;
  bool figures = false;  ///< whether to print token counts and speed on stderr after each answer
};

/// Runs a conversation over standard input, one question per line, and returns the exit status.
/// If standard input is a terminal:
/// - SIGINT during an answer ends only this answer. Other signals end the conversation.
/// - If Conversation::ask() throws an Error, prints the message and continues.
/// Otherwise:
/// - Every signal ends the conversation.
/// - If Conversation::ask() throws an Error, rethrows it.
int run_chat(generate::Conversation& conversation, const ChatLoopOptions& options);

/// Returns the help text of the chat commands, such as /clear.
std::string chat_commands_help();

}  // namespace headgate::cli
