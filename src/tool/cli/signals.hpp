// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

// Handles signals. Only the tool does this: no library of this project changes the handling of a signal.

namespace headgate::cli {

/// After this call, signals that end the process or report an exceeded resource limit first remove the unfinished files
/// of src/models/io. A signal that the parent process ignores (nohup) stays ignored.
void remove_unfinished_files_on_signals();

/// After this call, writing beyond the limit of a file's size (ulimit -f) is an error of the write, which a verb
/// reports, instead of a signal that ends the process.
void report_files_too_large();

/// Reading a mapped file that another process has shortened raises SIGBUS. After this call, the process then prints
/// "WHO: PATH: became shorter …", removes its unfinished files and exits with kLostFileStatus. `who` must stay valid.
void report_lost_files(const char* who);

/// After this call, writing to a closed pipe is an error of the write instead of a signal that ends the process, and
/// files opened later never get the descriptor of a closed standard stream. For work that must not be lost because of
/// its output. Without this call, a verb ends silently once its output pipe is closed.
void survive_lost_output();

/// While an object exists, SIGINT, SIGTERM and SIGHUP are recorded instead of ending the process. Another SIGINT or
/// SIGTERM ends it, unless it is a copy of the first: `timeout`, mpirun and a closing terminal signal both the process
/// and its group. A signal less than a second after the first counts as a copy; a second Ctrl-C never does.
class SignalWatch {
 public:
  /// `acknowledgement`: a line that the handler of the first signal writes to stderr; empty for none.
  explicit SignalWatch(std::string acknowledgement = "");
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  /// Restores the previous handling.
  ~SignalWatch();

  /// Returns the signal that was received, or 0.
  static int received();

 private:
  std::string acknowledgement_;
};

inline constexpr int kLostFileStatus = 2;  ///< that of all errors of files
inline constexpr int kSignalStatus = 128;  ///< exit status after a signal is this plus its number, as in shells

}  // namespace headgate::cli
