// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>

// Reports the progress of long operations to a callback, which each thread sets for itself. Functions that do such work
// thus need no parameter for the callback.

namespace headgate::io {

/// Callback for progress. The arguments are:
/// - what: the kind of work, such as "reading "
/// - path: the path of the file, or an empty string
/// - done: the fraction of the work that is done; 1 ends the work
using WorkReporter = std::function<void(std::string_view what, const std::string& path, double done)>;

/// Makes report_work() call `reporter` in this thread during the object's lifetime. If several objects exist,
/// report_work() calls the reporter of the newest one.
class ReportedWork {
 public:
  explicit ReportedWork(WorkReporter reporter);
  ReportedWork(const ReportedWork&) = delete;
  ReportedWork& operator=(const ReportedWork&) = delete;
  ~ReportedWork();

 private:
  WorkReporter reporter_;
  const WorkReporter* before_;
};

/// Calls the reporter of this thread, if one is set.
void report_work(std::string_view what, const std::string& path, double done);

}  // namespace headgate::io
