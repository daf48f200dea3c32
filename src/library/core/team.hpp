// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <omp.h>

#include <cstdint>

namespace headgate {

/// The threads of a call. All threads run the same function and share the iterations of its loops. Every thread must
/// call the same members of Team in the same order.
///
/// A team of one thread does not use OpenMP, for two reasons. First, every barrier of a parallel region is a system
/// call. A few system calls take as long as a small problem. Second, a call on one thread may then run inside any
/// OpenMP loop, or in a callback of another call.
class Team {
 public:
  Team(int its_thread, bool is_alone) : thread_(its_thread), alone_(is_alone) {}

  /// Returns the number of this thread, counted from 0.
  int thread() const { return thread_; }

  /// Waits for all threads of the team.
  void wait() const {
    if (alone_) return;
#pragma omp barrier
  }

  /// Runs task() in one thread. The other threads wait for it.
  template <class Task>
  void once(const Task& task) const {
    if (alone_) return task();
#pragma omp single
    task();
  }

  /// Calls visit(n) for n < count with static scheduling: each thread takes one contiguous range of n, and ranges are
  /// in the order of threads. Ends with wait().
  template <class Visit>
  void in_parts(std::int64_t count, const Visit& visit) const {
    in_parts_nowait(count, visit);
    wait();
  }
  /// Does the same as in_parts(), but does not wait at the end.
  template <class Visit>
  void in_parts_nowait(std::int64_t count, const Visit& visit) const {
    if (alone_) return all(count, visit);
#pragma omp for schedule(static) nowait
    for (std::int64_t n = 0; n < count; ++n) visit(n);
  }

  /// Calls visit(n) for n < count with dynamic scheduling: each free thread takes the next `chunk` values of n. Ends
  /// with wait().
  template <class Visit>
  void in_turn(std::int64_t count, const Visit& visit, std::int64_t chunk = 1) const {
    in_turn_nowait(count, visit, chunk);
    wait();
  }
  /// Does the same as in_turn(), but does not wait at the end.
  template <class Visit>
  void in_turn_nowait(std::int64_t count, const Visit& visit, std::int64_t chunk = 1) const {
    if (alone_) return all(count, visit);
#pragma omp for schedule(dynamic, chunk) nowait
    for (std::int64_t n = 0; n < count; ++n) visit(n);
  }

  /// Calls visit(n) for n < count with guided scheduling: each free thread takes the next range of n. Ranges get
  /// shorter towards the end. Ends with wait().
  template <class Visit>
  void in_guided_ranges(std::int64_t count, const Visit& visit) const {
    if (alone_) return all(count, visit);
#pragma omp for schedule(guided)
    for (std::int64_t n = 0; n < count; ++n) visit(n);
  }

 private:
  template <class Visit>
  static void all(std::int64_t count, const Visit& visit) {
    for (std::int64_t n = 0; n < count; ++n) visit(n);
  }

  int thread_;
  bool alone_;
};

/// Returns how many of `threads` threads the system can start, at least 1. Without this check, the OpenMP runtime would
/// end the process if it could not start a thread. Starts threads to find out, but only if the team is larger than the
/// calling thread's previous team.
int startable_threads(int threads);

/// Runs body(team) in each thread of a team. The team has `threads` threads, or fewer if the system cannot start as
/// many.
template <class Body>
void run_team(int threads, const Body& body) {
  if (threads > 1) threads = startable_threads(threads);
  if (threads == 1) return body(Team(0, true));
#pragma omp parallel num_threads(threads) default(none) shared(body)
  body(Team(omp_get_thread_num(), false));
}

}  // namespace headgate
