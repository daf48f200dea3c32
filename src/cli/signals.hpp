// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the process does on signals. Only the tool decides that: no library of this project changes a signal's handling.

namespace headgate::cli {

/// From here on, signals that ask the process to end, or tell that it exceeded a limit of its resources, remove the
/// unfinished files of src/io before they end it. A signal that the parent process ignores (nohup) stays ignored.
void remove_unfinished_files_on_signals();

/// From here on, a reader of the output that is gone and a file that may not grow are errors of the write instead of
/// signals that end the process, and no file that is opened later takes the number of a standard stream that was
/// closed. For work that must not be lost because of its output.
void survive_lost_output();

/// While it lives, SIGINT, SIGTERM and SIGHUP are noted instead of ending the process. Another SIGINT or SIGTERM a
/// second later ends it; within the second it is taken for a copy of the first, as `timeout` and a shell whose terminal
/// closes send to the process and to its group.
class SignalWatch {
 public:
  SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  /// Signals do again what they did before.
  ~SignalWatch();

  /// The signal that came, 0 if none did.
  static int received();
};

inline constexpr int kSignalStatus = 128;  ///< of a process that a signal ended: this plus its number, as in shells

}  // namespace headgate::cli
