// SPDX-License-Identifier: Apache-2.0
#include "models/io/work.hpp"

#include <utility>

namespace headgate::io {
namespace {

thread_local const WorkReporter* g_reporter = nullptr;

}  // namespace

ReportedWork::ReportedWork(WorkReporter reporter) : reporter_(std::move(reporter)), before_(g_reporter) {
  g_reporter = &reporter_;
}

ReportedWork::~ReportedWork() { g_reporter = before_; }

void report_work(std::string_view what, const std::string& path, double done) {
  if (g_reporter != nullptr) (*g_reporter)(what, path, done);
}

}  // namespace headgate::io
