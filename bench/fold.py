#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A block of boltz, openfold3, protenix and ESMFold, with its own attention and with fold.use_in's: errors and time.

Needs PyTorch, transformers (for ESMFold) and the Python package of headgate (build/python). Downloads the other
packages, with what their blocks import, to a folder. Blocks have the sizes of the published models and random weights.
Before a block is timed, its results and all gradients must agree with those of its own code. Each package and number of
threads has its own process. With one thread, times are CPU time, which other programs disturb little. With more
threads, they are elapsed time.
"""

import argparse
import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

try:
    import torch
except ImportError as error:
    sys.exit(f"fold.py: {error.name} is not installed")

from headgate.torch import fold
from headgate.torch.fold.packages import PACKAGES
from turns import seconds_in_turns, timed

SEQUENCE, PAIR = 384, 128  # features of the Pairformer of AlphaFold 3
DTYPES = ("float32", "bfloat16")
TOLERANCE = 1e-4
ROUNDING = 1e-5  # a gradient that is smaller than this, relative to the largest one, is only rounding errors


class Bench(NamedTuple):
    """Describes how to make a block of a package, and how to call it."""

    needs: tuple[str, ...]
    """Packages that pip must also download, since the package imports them."""
    block: Callable[[], torch.nn.Module]
    call: Callable[..., object]
    """Calls a block with s (B,N,C), z (B,N,N,C), the mask (B,N) and the mask of pairs (B,N,N)."""
    triangle: str
    """Name of the triangle attention's module in the block."""
    features: int = SEQUENCE


def boltz():
    from boltz.model.layers.pairformer import PairformerLayer

    return PairformerLayer(SEQUENCE, PAIR, dropout=0.0, v2=True)


def openfold3():
    from openfold3.core.model.latent.pairformer import PairFormerBlock

    return PairFormerBlock(
        c_s=SEQUENCE,
        c_z=PAIR,
        c_hidden_pair_bias=24,
        no_heads_pair_bias=16,
        c_hidden_mul=128,
        c_hidden_pair_att=32,
        no_heads_pair=4,
        transition_type="swiglu",
        transition_n=4,
        pair_dropout=0.0,
        fuse_projection_weights=False,
        inf=1e9,
    )


def protenix():
    from protenix.model.modules.pairformer import PairformerBlock

    return PairformerBlock(dropout=0.0)


def esmfold():
    from transformers.models.esm.modeling_esmfold import EsmFoldTriangularSelfAttentionBlock

    return EsmFoldTriangularSelfAttentionBlock(
        SimpleNamespace(
            sequence_state_dim=1024,
            pairwise_state_dim=128,
            sequence_head_width=32,
            pairwise_head_width=32,
            dropout=0.0,
        )
    )


BENCHES = {
    "boltz": Bench(
        ("einops", "scipy"), boltz, lambda block, s, z, mask, pairs: block(s, z, mask, pairs), "tri_att_start"
    ),
    "openfold3": Bench(
        (
            "absl-py",
            "biotite",
            "biotraj",
            "gemmi",
            "ml_collections",
            "msgpack",
            "networkx",
            "optree",
            "packaging",
            "scipy",
        ),
        openfold3,
        lambda block, s, z, mask, pairs: block(s, z, mask, pairs),
        "pair_stack.tri_att_start",
    ),
    "protenix": Bench(
        ("optree", "rdkit", "scipy"), protenix, lambda block, s, z, mask, pairs: block(s, z, pairs), "tri_att_start"
    ),
    "esmfold": Bench((), esmfold, lambda block, s, z, mask, pairs: block(s, z, mask=mask), "tri_att_start", 1024),
}


def download(name, folder):
    """Downloads a package and what its block imports. Returns the folder to import from, or None if none is needed."""
    if not BENCHES[name].needs:
        return None
    target = folder / name
    if not target.exists():
        package = PACKAGES[name]
        wanted = [f"{package.distribution}=={package.version}", *BENCHES[name].needs]
        making = folder / f"{name}.part"
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", making, *wanted], check=True
        )
        making.rename(target)
    return target


class Case:
    """A block, or its triangle attention, with random weights and inputs."""

    def __init__(self, name, part, tokens, dtype, hidden=0):
        bench = BENCHES[name]
        torch.manual_seed(0)
        block = bench.block()
        for parameter in block.parameters():
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.3)
        mask = torch.ones(1, tokens)
        mask[:, tokens - hidden :] = 0
        pairs = mask[:, :, None] * mask[:, None]
        s = torch.randn(1, tokens, bench.features, requires_grad=True)
        z = torch.randn(1, tokens, tokens, PAIR, requires_grad=True)
        if part == "block":
            self.call = functools.partial(bench.call, block, s, z, mask, pairs)
            self.learned = [s, z, *block.parameters()]
        else:
            module = block.get_submodule(bench.triangle)
            self.call = functools.partial(module, z, mask=pairs)
            self.learned = [z, *module.parameters()]
        self.weights = {3: mask[..., None], 4: pairs[..., None]}  # hides padding from the loss
        self.autocast = functools.partial(torch.autocast, "cpu", torch.bfloat16, enabled=dtype == "bfloat16")

    def results(self):
        with self.autocast():
            found = self.call()
        return [x.float() * self.weights[x.dim()] for x in (found if isinstance(found, tuple) else (found,))]

    def gradients(self):
        torch.manual_seed(1)
        loss = sum((x * torch.randn_like(x)).sum() for x in self.results())
        return torch.autograd.grad(loss, self.learned)

    def forward(self):
        with torch.no_grad(), self.autocast():
            self.call()


def largest_error(found, expected):
    """Returns the largest difference of an element, relative to the largest element of its tensor, or NaN if there is a
    NaN. Omits gradients that are only rounding errors, such as that of a bias that softmax cancels."""
    differences = torch.stack([(a - b).abs().max() for a, b in zip(found, expected, strict=True)])
    sizes = torch.stack([b.abs().max() for b in expected])
    is_rounding = (sizes <= ROUNDING * sizes.max()) & differences.isfinite()
    return (differences / sizes)[~is_rounding].max().item()


def check(name, dtype):
    """Returns the largest errors of results and of gradients, each with use_in and with the package's own code. Errors
    are differences from the package's code in float32. Ends the program if those with use_in are much larger."""
    errors = {what: torch.zeros(2) for what in ("results", "gradients")}
    # Protenix does not mask sequences, so padding would change the loss.
    for hidden in (0,) if name == "protenix" else (0, 5):
        reference, case = (Case(name, "block", 24, each, hidden) for each in ("float32", dtype))
        with fold.use_in(name) as served:
            found = {what: getattr(case, what)() for what in errors}
        if served.declined or not served.calls:
            sys.exit(f"fold.py: {name}: {served}: {dict(served.declined)}")
        for what, largest in errors.items():
            expected = getattr(reference, what)()
            new = [largest_error(tensors, expected) for tensors in (found[what], getattr(case, what)())]
            errors[what] = largest.maximum(torch.tensor(new))  # unlike Python's max(), keeps NaN
    errors = {what: largest.tolist() for what, largest in errors.items()}
    for what, (ours, own) in errors.items():
        if not ours <= TOLERANCE + 3 * own:
            sys.exit(f"fold.py: {name}: {what} differ by {ours:.2g}, those of its own code by {own:.2g}")
    return errors


def measure(name, part, tokens, dtype, rounds):
    """Times the package's code and use_in in turns: the forward pass alone, and with the backward pass."""
    case = Case(name, part, tokens, dtype)
    row = {}
    for what, call in (("forward", case.forward), ("backward", case.gradients)):

        def run(call, on):
            with fold.use_in(name) if on else contextlib.nullcontext():
                call()

        sides = [timed(functools.partial(run, call, on), torch.get_num_threads()) for on in (False, True)]
        own, ours = seconds_in_turns(sides, rounds)
        row[what] = {
            "seconds": statistics.median(ours),
            "own": statistics.median(own),
            "ratio": statistics.median(a / b for a, b in zip(own, ours, strict=True)),
        }
    return row


def work(arguments):
    """Measures one package. Prints a line of JSON for each row."""
    (name,) = arguments.packages
    for dtype in arguments.dtypes:
        print(json.dumps({"dtype": dtype, **check(name, dtype)}), flush=True)
        for tokens in arguments.tokens:
            for part in ("block", "triangle"):
                row = measure(name, part, tokens, dtype, arguments.rounds)
                print(json.dumps({"dtype": dtype, "tokens": tokens, "part": part, **row}), flush=True)


def report(name, threads, row):
    if "results" in row:
        errors = [f"{what} {ours:.1e} (own {own:.1e})" for what, (ours, own) in list(row.items())[1:]]
        print(f"{name}, {row['dtype']}: largest errors: {', '.join(errors)}", flush=True)
        return
    cells = [name, row["part"], row["tokens"], row["dtype"], threads]
    for what in ("forward", "backward"):
        cells += [f"{row[what]['own']:.3g}", f"{row[what]['ratio']:.2f}"]
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", nargs="+", choices=BENCHES, default=list(BENCHES))
    parser.add_argument("--tokens", nargs="*", type=int, default=[128, 256, 384], help="N; none: errors alone")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["float32"], help="bfloat16 is by autocast")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3, help="timed calls of each (default %(default)s)")
    parser.add_argument(
        "--folder", type=Path, default=Path("build/fold"), help="for the packages (default %(default)s)"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    if arguments.worker:
        work(arguments)
        return
    print("| package | part | N | dtype | threads | own forward, s | ratio | own with backward, s | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in arguments.packages:
        folder = download(name, arguments.folder)
        for threads in arguments.threads:
            path = os.pathsep.join(filter(None, [folder and str(folder), os.environ.get("PYTHONPATH")]))
            given = {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": path, "LAYERNORM_TYPE": "torch"}
            command = [sys.executable, "-W", "ignore", __file__, "--worker", "--packages", name]
            for option in ("tokens", "dtypes"):
                command += [f"--{option}", *map(str, getattr(arguments, option))]
            command += ["--rounds", str(arguments.rounds)]
            with subprocess.Popen(command, env=os.environ | given, stdout=subprocess.PIPE, text=True) as worker:
                for line in worker.stdout:
                    if line.startswith("{"):
                        report(name, threads, json.loads(line))
            if worker.returncode:
                sys.exit(f"fold.py: {name} ended with status {worker.returncode}")


if __name__ == "__main__":
    main()
