// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

namespace headgate::train {

/// The processes that train one run together. Ranks begin at 0. All processes call the same functions in the same
/// order, and a function returns when all have called it.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Replaces x(n) by its sum over the processes, added in the order of their ranks. The sum is bitwise identical in
  /// all processes.
  virtual void sum(float* x, std::int64_t n) = 0;
  /// Returns the value `x` of each process, in the order of the ranks.
  virtual std::vector<double> gather(double x) = 0;
  /// Ends all processes at once, after an error that only this process has.
  [[noreturn]] virtual void end_all(int status) = 0;

  /// Returns whether this process has rank 0, which reports and writes.
  bool leads() const { return rank() == 0; }
  /// Returns the sum of x over the processes, added in the order of their ranks.
  double sum(double x) {
    if (size() == 1) return x;
    double total = 0.0;
    for (const double each : gather(x)) total += each;
    return total;
  }
  bool any(bool x) { return sum(x ? 1.0 : 0.0) > 0.0; }
};

/// Returns the group of a process that trains alone.
ProcessGroup& alone();

/// Thrown if other processes do not respond, so that this process does not wait forever.
class GroupLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Returns the group of processes that an MPI launcher (mpirun) started, or null without a launcher. Throws Error in a
/// build without MPI.
///
/// signalled() returns whether a signal has told this process to end. From then on, functions of the group wait only
/// for a short time and then throw GroupLost. The process can thus end before the launcher kills it.
std::unique_ptr<ProcessGroup> launched_group(std::function<bool()> signalled);

/// Returns the number of processes according to the launcher's environment variables; 1 without a launcher.
int launched_processes();

}  // namespace headgate::train
