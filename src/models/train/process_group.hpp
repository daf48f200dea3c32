// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

namespace headgate::train {

/// The processes that train one run together, numbered by rank from 0 on. Each of them calls the same functions in the
/// same order, and waits in each until all have called it.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// x(n) = its sum over the processes, added in the order of their ranks: the same bits in each of them.
  virtual void sum(float* x, std::int64_t n) = 0;
  /// What each process gave, by rank.
  virtual std::vector<double> gather(double x) = 0;
  /// Ends all processes at once, for an error that the others do not know of.
  [[noreturn]] virtual void end_all(int status) = 0;

  /// Whether this is the process that reports and writes.
  bool leads() const { return rank() == 0; }
  /// The sum over the processes, added in the order of their ranks.
  double sum(double x) {
    if (size() == 1) return x;
    double total = 0.0;
    for (const double each : gather(x)) total += each;
    return total;
  }
  bool any(bool x) { return sum(x ? 1.0 : 0.0) > 0.0; }
};

/// The group of a process that trains alone.
ProcessGroup& alone();

/// Thrown instead of waiting on for processes that are not going to answer.
class GroupLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The group in which a launcher of MPI processes (mpirun) started this one; null if none did. `signalled`: whether the
/// process has been told to end; once it has, no call of the group waits longer than a launcher leaves it to live, and
/// throws GroupLost. Throws Error in a build without MPI.
std::unique_ptr<ProcessGroup> launched_group(std::function<bool()> signalled);

/// The number of processes that the launcher's environment tells of, and 1 without a launcher.
int launched_processes();

}  // namespace headgate::train
