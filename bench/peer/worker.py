# SPDX-License-Identifier: Apache-2.0
"""Runs a peer in its own process (Worker), and talks to that process (WorkerProcess).

Several peers in one process would disturb each other. They have different OpenMP runtimes, thread pools that spin after
their work, and settings that are read when a library is loaded. In its own process, a peer has its own environment,
sleeps while it reads from a pipe, and does not stop the others if it crashes.

    worker.py NAME THREADS      reads lines of JSON, and answers each with a line of JSON:
    {"release": true}                     -> {}; returns the memory of the previous case to the system
    {"prepare": case, "results": FILE}    -> {"way": name of the fastest way}; writes its results to FILE (.npz)
    {"turn": seconds}                     -> {"seconds": the median of calls that together take about that long}
The answer is {"refused": why} if the peer does not compute the case. The first line is {"version": …} or
{"missing": why}.
"""

import contextlib
import ctypes
import dataclasses
import gc
import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from .cases import Case, Refused, Way, inputs_of

PEERS = {
    "headgate": "headgate_attention:Exact",
    "headgate-native16": "headgate_attention:Native16",
    "headgate-jax": "headgate_jax:HeadgateJax",
    "torch-flash": "torch_sdpa:Flash",
    "torch-folded": "torch_sdpa:FlashFolded",
    "torch-math": "torch_sdpa:Math",
    "flex": "torch_flex:Flex",
    "onnxruntime": "onnx_runtime:OnnxRuntime",
    "openvino": "open_vino:OpenVino",
    "jax": "jax_xla:Jax",
    "ggml": "ggml_ops:Ggml",
    "transformers": "transformers_delta:Transformers",
    "vllm-cpu": "vllm_cpu:VllmCpu",
    "zentorch": "zen_torch:Zentorch",
}
"""Maps names of peers to "module:class" in this folder.

The constructor of a class takes the number of threads, and raises ImportError if its package is missing. An object has
`version`, and ways(case, inputs), which returns its Ways by name or raises Refused. The attributes `linear`, `pair` and
`listed` are true if it computes the delta rule, takes a learned bias, and takes lists of keys.
"""

TRIAL_SECONDS = 0.05

ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""Environment that keeps freed memory in the process of every peer. Otherwise peers that allocate results in each call
(headgate, PyTorch, JAX) would map large ones anew each time, and peers that reuse memory would not."""


def _seconds(way: Way) -> float:
    start = time.perf_counter()
    way.run()
    return time.perf_counter() - start


def _median_within(way: Way, budget: float) -> float:
    """Returns the median seconds of the calls that fit into `budget` seconds, at least one."""
    seconds = [_seconds(way)]
    left = budget - seconds[-1]
    while left >= seconds[-1]:
        seconds.append(_seconds(way))
        left -= seconds[-1]
    return statistics.median(seconds)


def load_peer(name: str, threads: int) -> Any:
    """Returns the peer `name` of PEERS. If `name` is the path of a Python file, returns an object of its class Peer."""
    if name not in PEERS:
        spec = importlib.util.spec_from_file_location(Path(name).stem, name)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.Peer(threads)
    module, attribute = PEERS[name].split(":")
    return getattr(importlib.import_module(f".{module}", __package__), attribute)(threads)


def one_line(error: BaseException) -> str:
    """Returns the message of an exception, shortened to one line."""
    text = " ".join(str(error).split())
    return (text[:197] + "…" if len(text) > 198 else text) or type(error).__name__


class Worker:
    def __init__(self, peer: Any):
        self.peer = peer
        self.way: Way | None = None

    def prepare(self, case: Case, results: str) -> dict[str, Any]:
        """Prepares a case, chooses the fastest of the peer's ways, and writes its results to the file `results`."""
        if case.is_pair and not getattr(self.peer, "pair", False):
            raise Refused("no learned bias")
        if case.is_listed and not getattr(self.peer, "listed", False):
            raise Refused("no lists of keys")
        if case.is_linear and not getattr(self.peer, "linear", False):
            raise Refused("no gated delta rule")
        ways = self.peer.ways(case, inputs_of(case))
        seconds, failures = {}, []
        for name, way in ways.items():
            try:
                way.run()  # the first call compiles
                way.run()
                seconds[name] = _median_within(way, TRIAL_SECONDS) if len(ways) > 1 else 0.0
            except Exception as error:
                failures.append(f"{name}: {one_line(error)}")
        if not seconds:
            raise Refused("; ".join(failures))
        best = min(seconds, key=seconds.get)
        self.way = ways[best]
        arrays = self.way.read(self.way.run())
        np.savez(results, *(np.asarray(array, dtype=np.float32) for array in arrays))
        return {"way": best}

    def release(self) -> dict[str, Any]:
        self.way = None
        gc.collect()
        gc.freeze()  # later collections skip what the case imported
        ctypes.CDLL(None).malloc_trim(0)
        return {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "release" in request:
            return self.release()
        if "turn" in request:
            return {"seconds": _median_within(self.way, request["turn"])}
        try:
            return self.prepare(Case(**request["prepare"]), request["results"])
        except Refused as refusal:
            return {"refused": str(refusal)}
        except Exception as error:
            return {"refused": one_line(error)}


def main() -> None:
    name, threads = sys.argv[1], int(sys.argv[2])
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # sends what frameworks print to stderr, so that stdout has only the replies
    try:
        peer = load_peer(name, threads)
    except (ImportError, OSError) as error:
        print(json.dumps({"missing": one_line(error)}), file=replies)
        return
    print(json.dumps({"version": peer.version}), file=replies)
    gc.collect()
    gc.freeze()  # ignores the objects of imported frameworks, with which every collection would take 0.1 s
    worker = Worker(peer)
    for line in sys.stdin:
        print(json.dumps(worker.answer(json.loads(line))), file=replies)


class WorkerProcess:
    """A worker's process, seen from the program that times it. `missing` says why the peer cannot run, or is None."""

    def __init__(self, name: str, threads: int, cpus: set[int], packages: list[Path]):
        self.name = Path(name).stem if name not in PEERS else name
        self.log = tempfile.TemporaryFile()
        bench = Path(__file__).resolve().parent.parent
        path = [str(bench), *map(str, packages), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            **ALLOCATOR,
            "OMP_NUM_THREADS": str(threads),
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
        }
        # Allows as many cores as threads, so that pools whose size cannot be set, such as XLA's, have the same size.
        chosen = set(sorted(cpus)[:threads])
        self._start = lambda: subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.worker", name, str(threads)],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            preexec_fn=lambda: os.sched_setaffinity(0, chosen),
        )
        self.process = self._start()
        greeting = self._reply()
        self.version = greeting.get("version", "")
        self.missing = greeting.get("missing") or greeting.get("refused")

    def _reply(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        status = self.process.wait()
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        return {"refused": f"its process ended with status {status}" + (f": {lines[-1][:160]}" if lines else "")}

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # _reply reports how the process ended
        return self._reply()

    def release(self) -> None:
        """Frees the memory of the previous case. Restarts the process if that case ended it."""
        self._ask({"release": True})
        if self.process.poll() is not None:
            self.process = self._start()
            self._reply()

    def prepare(self, case: Case, results: Path) -> str:
        """Prepares a case. Returns the name of the peer's fastest way, whose results are in the file `results`."""
        reply = self._ask({"prepare": dataclasses.asdict(case), "results": str(results)})
        if "refused" in reply:
            raise Refused(reply["refused"])
        return reply["way"]

    def turn(self, budget: float) -> float:
        reply = self._ask({"turn": budget})
        if "refused" in reply:
            raise Refused(reply["refused"])
        return reply["seconds"]

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


if __name__ == "__main__":
    main()
