// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

// Handles signals. Only the tool does this: no library of this project changes the handling of a signal.

namespace headgate::cli {

/// Makes signals that end the process or report an exceeded resource limit remove the unfinished files of src/models/io
/// first. A signal that the parent process ignores (nohup) stays ignored.
void remove_unfinished_files_on_signals();

/// Ignores SIGXFSZ, so that a write beyond the file size limit (ulimit -f) fails with an error instead of ending the
/// process. The verb reports that error.
void report_files_too_large();

/// Handles SIGBUS, which the kernel raises if a mapped file is read after another process has shortened it. The handler
/// prints "WHO: PATH: became shorter …", removes unfinished files and exits with kLostFileStatus. `who` must stay
/// valid.
void report_lost_files(const char* who);

/// Ignores SIGPIPE, so that a write to a closed pipe fails with an error instead of ending the process. Opens closed
/// standard streams as /dev/null, so that files opened later do not get their descriptors. Verbs call this function if
/// their work must not be lost because of their output. Without the call, a verb ends silently once its output pipe is
/// closed.
void survive_lost_output();

/// Records SIGINT, SIGTERM and SIGHUP while the object exists, instead of ending the process. A second SIGINT or
/// SIGTERM ends the process, unless it is a copy of the first: `timeout`, mpirun and a closing terminal signal both the
/// process and its group. A signal less than a second after the first counts as a copy; a second Ctrl-C never does.
class SignalWatch {
 public:
  /// `acknowledgement`: a line that the handler of the first signal writes to stderr; empty for none.
  explicit SignalWatch(std::string acknowledgement = "");
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  /// Restores the previous signal handlers.
  ~SignalWatch();

  /// Returns the signal that was received, or 0.
  static int received();

 private:
  std::string acknowledgement_;
};

inline constexpr int kLostFileStatus = 2;  ///< exit status after SIGBUS, the same as after other file errors
inline constexpr int kSignalStatus = 128;  ///< exit status after a signal, minus the signal's number, as in shells

}  // namespace headgate::cli
