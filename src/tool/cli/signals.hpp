// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

// Installs signal handlers. Only the command-line tool does so; the libraries never change how signals are handled.

namespace headgate::cli {

/// Installs handlers for the signals that end the process or report an exceeded resource limit.
/// A handler removes output files that are not yet complete (see src/models/io). It then lets the signal end the
/// process.
/// A signal that the parent process ignores, as nohup does, stays ignored.
void remove_unfinished_files_on_signals();

/// Ignores SIGXFSZ. A write beyond the file size limit (ulimit -f) then fails with an error, which the verb reports.
/// Otherwise the signal would end the process.
void report_files_too_large();

/// Installs a handler for SIGBUS.
/// A thread gets this signal if it reads beyond the end of a memory-mapped file that another process has shortened.
/// The handler prints "WHO: PATH: became shorter …", removes unfinished files and exits with kLostFileStatus.
/// `who` must stay valid until the process ends.
void report_lost_files(const char* who);

/// Lets a verb finish its work after its output pipe has been closed.
/// Ignores SIGPIPE, which would end the process at the next write. The write fails with an error instead.
/// Opens closed standard streams as /dev/null. Otherwise, files opened later would get the descriptors of these
/// streams.
void survive_lost_output();

/// Records SIGINT, SIGTERM and SIGHUP while the object exists.
/// - The first signal does not end the process.
/// - A second SIGINT or SIGTERM ends the process, except for a copy of the first signal.
/// - A copy is a signal that arrives within a second of the first. A second Ctrl-C is never a copy.
/// Copies occur because `timeout`, mpirun and a closing terminal signal both the process and its process group.
class SignalWatch {
 public:
  /// `acknowledgement`: a line that is written to stderr when the first signal arrives; empty for none.
  explicit SignalWatch(std::string acknowledgement = "");
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  /// Restores the previous signal handlers.
  ~SignalWatch();

  /// Returns the number of the first signal received, or 0 if there was none.
  static int received();

 private:
  std::string acknowledgement_;
};

inline constexpr int kLostFileStatus = 2;  ///< exit status after SIGBUS; equals the status after other file errors
inline constexpr int kSignalStatus = 128;  ///< a signal N gives the exit status 128 + N, as in shells

}  // namespace headgate::cli
