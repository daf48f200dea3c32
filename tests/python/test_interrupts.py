# SPDX-License-Identifier: Apache-2.0
"""Signals while a call computes: a handler that raises ends the call, one that does not is only run."""

import os
import signal
import subprocess
import threading
import time

import numpy as np
import pytest

import headgate

TOOL = os.environ["HEADGATE_TOOL"]
LENGTH = 8192  # queries and keys of a call that takes a second or more


def long_problem(T=LENGTH):
    return [np.full((1, 4, T, 64), 0.01, np.float32) for _ in range(3)]


def after(seconds, signal_number=signal.SIGINT):
    """Sends this process a signal, as Ctrl-C does, and returns when."""
    sent = []

    def send():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal_number)

    timer = threading.Timer(seconds, send)
    timer.start()
    return sent


def reaction(call, seconds=0.3):
    """Returns how long after Ctrl-C the call raises KeyboardInterrupt."""
    sent = after(seconds)
    with pytest.raises(KeyboardInterrupt):
        call()
    return time.monotonic() - sent[0]


@pytest.fixture(scope="module")
def duration():
    """Returns the duration of a forward pass."""
    inputs = long_problem()
    start = time.monotonic()
    headgate.attention(*inputs, threads=1)
    return time.monotonic() - start


@pytest.mark.parametrize("threads", (1, 2))
def test_attention_at_ctrl_c_ends(duration, threads):
    inputs = long_problem(2 * LENGTH)  # four times as long
    assert reaction(lambda: headgate.attention(*inputs, threads=threads)) < duration
    y = headgate.attention(*(x[:, :, :64] for x in inputs))
    assert np.allclose(y, 0.01)


def test_backward_and_statistics_at_ctrl_c_end(duration):
    inputs = long_problem()
    saved = headgate.attention_forward(*inputs)
    more = long_problem(2 * LENGTH)
    lse = np.zeros((1, 4, 2 * LENGTH), np.float32)
    # Two threads: with more, the calls could end before the signal comes.
    assert reaction(lambda: headgate.attention_backward(more[0], *more, y=more[0], lse=lse, threads=2)) < duration
    assert reaction(lambda: headgate.attention_statistics(lse, *more, threads=2)) < duration
    again = headgate.attention_forward(*inputs)
    assert np.array_equal(again.y, saved.y)


def test_handler_that_returns_does_not_end_the_call(duration):
    inputs = long_problem()
    expected = headgate.attention(*inputs)
    ran = []
    before = signal.signal(signal.SIGUSR1, lambda *_: ran.append(headgate.attention(*(x[:, :, :9] for x in inputs))))
    try:
        sent = after(0.15, signal.SIGUSR1)
        y = headgate.attention(*inputs, threads=1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(ran) == 1 and len(sent) == 1 and np.array_equal(y, expected)


def test_call_of_another_thread_is_not_ended():
    inputs = long_problem()
    found = []
    thread = threading.Thread(target=lambda: found.append(headgate.attention(*inputs)))
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        after(0.1)
        while thread.is_alive():
            time.sleep(0.01)
        time.sleep(1)
    thread.join()
    assert np.array_equal(found[0], headgate.attention(*inputs))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Makes a model whose evaluation takes long, and its text."""
    where = tmp_path_factory.mktemp("interrupts")
    text = where / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 4000)
    command = [TOOL, "train", "--data", text, "--out", where / "run", "--layers", 8, "--dim", 256, "--seq-len", 512,
               "--batch", 1, "--steps", 1, "--eval-tokens", 512, "--threads", 1]  # fmt: skip
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    return headgate.load(where / "run"), text


def test_eval_and_xray_at_ctrl_c_end(model):
    loaded, text = model
    start = time.monotonic()
    loaded.eval(text, tokens=8192, threads=1)
    part = time.monotonic() - start
    assert reaction(lambda: loaded.eval(text, threads=1)) < part
    assert reaction(lambda: loaded.xray(text, override="heads", threads=1)) < part
    assert loaded.eval(text, tokens=512).tokens == 512
