// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>

// Reports the progress of long operations to a thread-local callback, so that functions need no parameter for it.

namespace headgate::io {

/// Callback for progress. Receives the kind of work, such as "reading ", the path of its file (may be empty) and the
/// fraction done. A fraction of 1 ends the work.
using WorkReporter = std::function<void(std::string_view what, const std::string& path, double done)>;

/// Makes report_work() call `reporter` in this thread while the object exists. If several objects exist, the newest one
/// applies.
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

/// Calls this thread's reporter, if there is one.
void report_work(std::string_view what, const std::string& path, double done);

}  // namespace headgate::io
