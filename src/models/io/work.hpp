// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>

// Long work that functions do for a caller reports how far it is, without an argument of its own in each of them.

namespace headgate::io {

/// Receives what is done, "reading ", to what path or an empty one, and the fraction of it that is done; 1 ends it.
using WorkReporter = std::function<void(std::string_view what, const std::string& path, double done)>;

/// While an object exists, report_work of this thread calls `reporter`. The latest object counts.
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
