// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <omp.h>

#include <cstdint>

namespace headgate {

/// The threads of a call. Each runs the same function, and they share out the loops in it: every thread of a team has
/// to make the same calls of these members in the same order.
///
/// A team of one uses nothing of OpenMP: in a parallel region every barrier is a system call, and a small problem takes
/// no longer than a few of them. So a call may be made from anywhere, a caller's own loops of OpenMP and a progress
/// callback of another call included.
class Team {
 public:
  Team(int its_thread, bool is_alone) : thread_(its_thread), alone_(is_alone) {}

  /// The number of this thread, from 0.
  int thread() const { return thread_; }

  /// Waits for all threads of the team.
  void wait() const {
    if (alone_) return;
#pragma omp barrier
  }

  /// task() in one thread, for which the others wait.
  template <class Task>
  void once(const Task& task) const {
    if (alone_) return task();
#pragma omp single
    task();
  }

  /// visit(n) for n < count: thread t takes the t-th part of the range. Ends as wait() does.
  template <class Visit>
  void in_parts(std::int64_t count, const Visit& visit) const {
    in_parts_on(count, visit);
    wait();
  }
  /// The same, without waiting at the end.
  template <class Visit>
  void in_parts_on(std::int64_t count, const Visit& visit) const {
    if (alone_) return all(count, visit);
#pragma omp for schedule(static) nowait
    for (std::int64_t n = 0; n < count; ++n) visit(n);
  }

  /// visit(n) for n < count: a thread that is free takes the next `chunk` of them. Ends as wait() does.
  template <class Visit>
  void in_turn(std::int64_t count, const Visit& visit, std::int64_t chunk = 1) const {
    in_turn_on(count, visit, chunk);
    wait();
  }
  /// The same, without waiting at the end.
  template <class Visit>
  void in_turn_on(std::int64_t count, const Visit& visit, std::int64_t chunk = 1) const {
    if (alone_) return all(count, visit);
#pragma omp for schedule(dynamic, chunk) nowait
    for (std::int64_t n = 0; n < count; ++n) visit(n);
  }

  /// visit(n) for n < count in ever shorter stretches. Ends as wait() does.
  template <class Visit>
  void in_stretches(std::int64_t count, const Visit& visit) const {
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

/// How many threads a team of `threads` can have: fewer where the system has none left to give, at least 1. OpenMP's
/// runtime would end the process there. Creates threads only where the team is larger than the calling thread's last
/// one.
int startable_threads(int threads);

/// body(team) in each thread of a team of at most `threads`.
template <class Body>
void run_team(int threads, const Body& body) {
  if (threads > 1) threads = startable_threads(threads);
  if (threads == 1) return body(Team(0, true));
#pragma omp parallel num_threads(threads) default(none) shared(body)
  body(Team(omp_get_thread_num(), false));
}

}  // namespace headgate
