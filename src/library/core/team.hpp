// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <omp.h>

namespace headgate {

/// body(thread) in each thread of a team, 0 ≤ thread < threads. Worksharing constructs and barriers in it bind to the
/// team. One thread that is in no team yet runs it without one: every barrier of a team, even of a team of one, is a
/// system call, and a small problem takes no longer than a few of them.
template <class Body>
void run_team(int threads, const Body& body) {
  if (threads == 1 && omp_get_level() == 0) return body(0);
#pragma omp parallel num_threads(threads) default(none) shared(body)
  body(omp_get_thread_num());
}

}  // namespace headgate
