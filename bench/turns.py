# SPDX-License-Identifier: Apache-2.0
"""Times calls in turns, to compare them."""

import time

PAUSE_SECONDS = 0.02  # OpenMP runtimes spin for some milliseconds after their work
WARM_UPS = 2


def timed(call, threads=None):
    """Wraps `call` to return its seconds. With one thread, they are CPU time, which other programs disturb little.
    Otherwise they are elapsed time."""
    clock = time.process_time if threads == 1 else time.perf_counter

    def run():
        start = clock()
        call()
        return clock() - start

    return run


def seconds_in_turns(runs, rounds, pause=PAUSE_SECONDS):
    """Returns, for each call in `runs`, a list of the seconds that it returned in every round.

    Warms up each call twice. In every round, calls each one once, after a pause in which the threads of the others go
    to sleep. The order is reversed in every other round.
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
