# SPDX-License-Identifier: Apache-2.0
"""Threads, the interpreter's lock, forked processes and PyTorch's own threads."""

import multiprocessing
import os
import signal
import sys
import threading
import time

import torch

import headgate
from support import problem


def test_calls_in_several_threads_give_the_same_bits():
    problems = [problem(T=64, S=64, dtype=torch.float32, seed=n) for n in range(4)]
    expected = [headgate.attention(*inputs) for inputs in problems]
    wrong = []

    def work(n):
        for _ in range(20):
            if not torch.equal(headgate.attention(*problems[n], threads=2), expected[n]):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_interpreter_during_a_call_runs():
    inputs = problem(B=1, Hq=8, Hkv=8, T=2048, S=2048, D=64, Dv=64, dtype=torch.float32)
    started, ended = threading.Event(), threading.Event()

    def work():
        started.set()
        headgate.attention(*inputs, threads=1)
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    turns = 0
    while not ended.is_set():  # a call that held the lock would let no turn begin before its end
        turns += 1
        time.sleep(0.001)
    thread.join()
    assert turns > 3


def run_in_child(function):
    """Returns the exit status of a forked child that calls `function`: 0 if it returns True."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # one that hangs is ended
        try:
            os._exit(0 if function() else 1)
        except BaseException:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_batch_while_another_thread_grows_the_cache_owns_its_memory():
    ones = torch.ones(1, 1, 64, 64)

    def reads_ones():
        sys.setswitchinterval(1e-6)
        wrong, ended = [], threading.Event()
        for _ in range(4):
            cache = headgate.KvCache(1, 64, 64, page=64, pages=64)
            sequence = cache.add_sequence()
            cache.append([sequence], ones, ones)
            ended.clear()

            def work(cache=cache, sequence=sequence):
                while not ended.is_set():
                    batch = cache.batch([sequence])
                    wrong.append(not (batch["k"][batch["block_table"][0, 0]] == 1).all())

            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads:
                thread.start()
            for more in range(1, 21):
                cache.grow(64 + 8 * more)
            ended.set()
            for thread in threads:
                thread.join()
        return not any(wrong)

    assert run_in_child(reads_ones) == 0  # in a child, because reading freed memory may end the process


def test_call_in_forked_children_gives_the_same_bits():
    inputs = problem(T=128, S=128, dtype=torch.float32)
    expected = headgate.attention(*inputs, threads=4).numpy().copy()
    saved = headgate.attention_forward(*inputs)

    def same():
        y = headgate.attention(*inputs, threads=2)
        headgate.attention_backward(saved.y, *inputs, y=saved.y, lse=saved.lse, threads=3)
        headgate.attention_statistics(saved.lse, *inputs[:2], threads=2)
        return (y.numpy() == expected).all()

    assert run_in_child(same) == 0
    assert run_in_child(lambda: run_in_child(same) == 0) == 0
    assert same()


class Items(torch.utils.data.Dataset):
    """Computes attention in the worker that loads an item."""

    def __len__(self):
        return 6

    def __getitem__(self, n):
        return headgate.attention(*problem(T=32, S=32, dtype=torch.float32, seed=n), threads=2)


def test_call_in_data_loader_workers_gives_the_same_bits():
    headgate.attention(*problem(T=32, S=32), threads=2)
    loader = torch.utils.data.DataLoader(
        Items(), batch_size=None, num_workers=2, timeout=60, multiprocessing_context=multiprocessing.get_context("fork")
    )
    for n, y in enumerate(loader):
        assert torch.equal(y, Items()[n])


def test_call_beside_threads_of_pytorch_gives_the_same_bits():
    torch.set_num_threads(2)
    inputs = problem(T=128, S=128, dtype=torch.float32)
    x = torch.randn(512, 512)
    product, expected = x @ x, headgate.attention(*inputs, threads=2)
    for _ in range(10):
        assert torch.equal(x @ x, product)
        assert torch.equal(headgate.attention(*inputs, threads=2), expected)


def test_targets():
    before = headgate.active_target()
    assert before in headgate.supported_targets() and set(headgate.supported_targets()) <= set(
        headgate.compiled_targets()
    )
    headgate.set_target(headgate.supported_targets()[-1])
    assert headgate.active_target() == headgate.supported_targets()[-1]
    headgate.set_target("")
    assert headgate.active_target() == before
    assert 1 <= headgate.default_threads() <= headgate.max_threads()
