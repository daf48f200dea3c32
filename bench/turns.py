# SPDX-License-Identifier: Apache-2.0
"""Timing of compared calls, alternately."""

import time

PAUSE_SECONDS = 0.02  # OpenMP runtimes spin for some milliseconds after their work
WARM_UPS = 2


def timed(call, threads=None):
    """A call that returns the seconds it took: elapsed, or with one thread those of the processor, which other programs
    disturb little."""
    clock = time.process_time if threads == 1 else time.perf_counter

    def run():
        start = clock()
        call()
        return clock() - start

    return run


def seconds_in_turns(runs, rounds, pause=PAUSE_SECONDS):
    """For each of `runs`, calls that return seconds, a list with an entry a round.

    Each is called twice to warm up. In every round each is called once, after a pause, in seconds, in which the
    threads of the others go to sleep; the order is reversed from round to round.
    """
    seconds = [[] for _ in runs]
    for run in runs:
        for _ in range(WARM_UPS):
            run()
    order = list(range(len(runs)))
    for _ in range(rounds):
        for i in order:
            time.sleep(pause)
            seconds[i].append(runs[i]())
        order.reverse()
    return seconds
