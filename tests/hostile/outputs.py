# SPDX-License-Identifier: Apache-2.0
"""The table of outputs: each row is a command that writes a file, tried with every path that it must refuse."""

import dataclasses
import os
import shlex
import subprocess
from collections.abc import Iterator

import good_files as good_file
import path_kinds
from trial import Command, Expect, Limits, Machine, Trial, write_files


def trained_run(machine: Machine, name: str, options: str, inputs: dict[str, bytes] | None = None) -> dict[str, bytes]:
    """Makes the files of a short run with these options, and the files that it was trained on."""
    folder = machine.settings.work / name
    write_files(folder, {"book.txt": good_file.TEXT, **(inputs or {})})
    line = [machine.settings.headgate, *shlex.split(good_file.TRAIN), *shlex.split(options)]
    done = subprocess.run(line, cwd=folder, capture_output=True, timeout=600, check=False)
    if done.returncode != 0:
        raise SystemExit(f"hostile: headgate train failed: {done.stderr.decode(errors='replace')}")
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@dataclasses.dataclass(frozen=True)
class Output:
    """Describes a row: a command that writes to {}, by an option or as its argument."""

    name: str
    option: str
    line: str
    inputs: tuple[str, ...]  # files that the command reads
    files: str = "model"  # which good files
    directory: bool = False
    slow: bool = False  # a success takes seconds: only refusals are tried


ATTEND = "attend --q q.npy --k k.npy --v v.npy --gate z.npy --grad-out dy.npy"
ATTEND_INPUTS = ("q.npy", "k.npy", "v.npy", "z.npy", "dy.npy")
LINEAR = "linear --q q.npy --k k.npy --v v.npy --decay g.npy --state s0.npy --cu-seqlens c.npy"
LINEAR_INPUTS = ("q.npy", "k.npy", "v.npy", "g.npy", "s0.npy", "c.npy")
MODEL_INPUTS = (
    "m/config.json",
    "m/model.safetensors",
    "m/tokenizer.json",
    "m/tokenizer_config.json",
    "m/generation_config.json",
)
RUN_INPUTS = (
    "run/checkpoint/config.json",
    "run/checkpoint/model.safetensors",
    "run/checkpoint/trainer_state.json",
    "run/metrics.jsonl",
)
TABLE = (
    Output(
        "attend--out",
        "--out",
        "attend --q q.npy --k k.npy --v v.npy --gate z.npy --out {}",
        ATTEND_INPUTS[:4],
        "attend",
    ),
    Output(
        "attend--lse", "--lse", "attend --q q.npy --k k.npy --v v.npy --out y.npy --lse {}", ATTEND_INPUTS[:3], "attend"
    ),
    Output(
        "attend--weights",
        "--weights",
        "attend --q q.npy --k k.npy --v v.npy --out y.npy --weights {}",
        ATTEND_INPUTS[:3],
        "attend",
    ),
    Output(
        "attend--max-logit",
        "--max-logit",
        "attend --q q.npy --k k.npy --v v.npy --out y.npy --max-logit {}",
        ATTEND_INPUTS[:3],
        "attend",
    ),
    Output(
        "attend--stats",
        "--stats",
        "attend --q q.npy --k k.npy --v v.npy --out y.npy --stats {}",
        (),
        "attend",
        directory=True,
    ),
    Output("attend--grad-dir", "--grad-dir", ATTEND + " --out y.npy --grad-dir {}", (), "attend", directory=True),
    Output("linear--out", "--out", LINEAR + " --out {}", LINEAR_INPUTS, "linear"),
    Output("linear--out-state", "--out-state", LINEAR + " --out y.npy --out-state {}", LINEAR_INPUTS, "linear"),
    Output(
        "linear--out-snapshots",
        "--out-snapshots",
        LINEAR + " --out y.npy --snapshot-lengths ends.npy --out-snapshots {}",
        (*LINEAR_INPUTS, "ends.npy"),
        "linear",
    ),
    Output(
        "linear--grad-dir",
        "--grad-dir",
        LINEAR + " --grad-out dy.npy --out y.npy --grad-dir {}",
        (),
        "linear",
        directory=True,
    ),
    Output(
        "eval--logits", "--logits", "eval m --text book.txt --tokens 32 --logits {}", (*MODEL_INPUTS[:3], "book.txt")
    ),
    Output(
        "eval--logits-of-ids",
        "--logits",
        "eval m --token-ids ids.npy --tokens 32 --logits {}",
        (*MODEL_INPUTS[:2], "ids.npy"),
    ),
    Output(
        "eval--logits-of-run",
        "--logits",
        "eval run --text book.txt --tokens 32 --logits {}",
        (*RUN_INPUTS[:3], "book.txt"),
    ),
    Output(
        "eval--logits-of-gguf",
        "--logits",
        "eval m.gguf --text book.txt --tokens 32 --logits {}",
        ("m.gguf", "book.txt"),
    ),
    Output(
        "generate--logits",
        "--logits",
        "generate m --prompt-file book.txt --max-tokens 2 --logits {}",
        (*MODEL_INPUTS, "book.txt"),
        "long",
    ),
    Output(
        "generate--logits-of-gguf", "--logits", "generate m.gguf --prompt Hi --max-tokens 2 --logits {}", ("m.gguf",)
    ),
    Output("xray--out", "--out", "xray m --text book.txt --tokens 16 --out {}", (*MODEL_INPUTS[:3], "book.txt")),
    Output("xray--out-of-run", "--out", "xray run --text book.txt --tokens 16 --out {}", (*RUN_INPUTS[:3], "book.txt")),
    Output(
        "xray--json-out",
        "--json-out",
        "xray m --text book.txt --tokens 16 --json-out {}",
        (*MODEL_INPUTS[:3], "book.txt"),
    ),
    Output("compare--out", "--out", "compare run --out {}", ("run/metrics.jsonl",)),
    Output("compare--json-out", "--json-out", "compare run --json-out {}", ("run/metrics.jsonl",)),
    Output("convert-OUT", "OUT", "convert m {}", ("m",), directory=True),
    Output("convert-OUT-of-gguf", "OUT", "convert m.gguf {}", (), directory=True),
    Output("convert-OUT-of-run", "OUT", "convert run/checkpoint {}", ("run/checkpoint",), directory=True),
    Output("train--out", "--out", good_file.TRAIN.replace("--out run", "--out {}"), (), directory=True),
    Output("demo--out", "--out", "demo --only model --model m --data book.txt --out {}", (), directory=True),
    Output(
        "bench--json-out", "--json-out", "bench --quick --filter '^small/forward/T16$' --json-out {}", (), slow=True
    ),
)


def all_files(run: dict[str, bytes]) -> dict[str, dict[str, bytes]]:
    model = good_file.tokenized_model()
    more = {"m.gguf": good_file.gguf_file().bytes(), "ids.npy": good_file.npy((40,), list(range(40)), "<i4")}
    return {
        "attend": good_file.attend_files() | {"book.txt": good_file.TEXT},
        "linear": good_file.linear_files() | {"book.txt": good_file.TEXT},
        "model": model | run | more,
        "long": model | run | more | {"book.txt": b"The quick"},
    }


def refused(row: Output, files, argument: str, name: str, prepare=lambda folder: None, **more) -> Trial:
    names = tuple(text for text in (argument.strip("'"), row.option) if text)
    return Trial(
        f"output-{row.name}/{name}/{row.line.split()[0]}",
        files,
        Command(row.line.replace("{}", argument)),
        Expect.REFUSED,
        names,
        prepare=prepare,
        **more,
    )


def path_trials(row: Output, files: dict[str, bytes]) -> Iterator[Trial]:
    kinds = path_kinds.of_output_directory() if row.directory else path_kinds.of_output_file()
    for name, argument, place, nobody in kinds:
        trial = refused(
            row,
            files,
            argument,
            name,
            lambda folder, place=place: (folder.chmod(0o777), place(folder / "out")),
            limits=Limits(nobody=nobody),
        )
        # Nothing can be written in such a folder, and the message names the first file.
        yield dataclasses.replace(trial, names=(*trial.names, "y.npy")) if name == "unwritable-folder" else trial


def input_trials(row: Output, files: dict[str, bytes]) -> Iterator[Trial]:
    """Uses an input as the output, by its own name and by others."""
    for n, file in enumerate(row.inputs):
        yield refused(row, files, file, f"over-{file.replace('/', '-')}")
        yield refused(
            row,
            files,
            "out",
            f"link-to-{file.replace('/', '-')}",
            lambda folder, file=file: os.symlink(file, folder / "out"),
        )
        if n > 0:
            continue
        yield refused(row, files, f"./{file}", "over-input-by-dot")
        yield refused(
            row, files, f"{file.split('/')[0]}/../{file}" if "/" in file else f"../files/{file}", "over-input-by-parent"
        )
        yield refused(
            row, files, "here/" + file, "over-input-by-linked-folder", lambda folder: os.symlink(".", folder / "here")
        )
        if not row.directory:
            # The name that is replaced is not the one that is read.
            hard = refused(
                row,
                files,
                "out",
                "hard-link-to-input",
                lambda folder, file=file: os.link(folder / file, folder / "out"),
            )
            yield dataclasses.replace(
                hard, expect=Expect.EITHER, command=dataclasses.replace(hard.command, writes=("out",))
            )


def good_trials(row: Output, files: dict[str, bytes]) -> Iterator[Trial]:
    """Uses paths that may be written to."""

    def accepted(name: str, argument: str, writes: tuple[str, ...], place=lambda path: None) -> Trial:
        more = tuple(word for word in ("y.npy",) if word in row.line)
        command = Command(row.line.replace("{}", argument), writes + more)
        return Trial(
            f"output-{row.name}/{name}/{row.line.split()[0]}",
            files,
            command,
            Expect.ACCEPTED,
            (),
            prepare=lambda folder: place(folder / "out"),
        )

    yield accepted("new", "out", ("out",))
    yield accepted("longest-name", "n" * 255, ("n" * 255,))
    yield accepted("name-with-newline", "'a\nb'", ("a\nb",))
    yield accepted("name-with-dashes", "./--out", ("--out",))
    if row.directory:
        yield accepted("trailing-slash", "out/", ("out",))
    else:
        yield accepted("replaced", "out", ("out",), lambda path: path.write_bytes(b"before"))
        yield accepted("read-only-before", "out", ("out",), path_kinds.file_of_mode(b"before", 0o444))
        yield accepted(
            "through-link",
            "out",
            ("real",),
            lambda path: (path.with_name("real").write_bytes(b"x"), os.symlink("real", path)),
        )


def twice(files: dict[str, dict[str, bytes]]) -> Iterator[Trial]:
    """Uses one path for two outputs, and directories whose outputs would overwrite inputs."""
    attend = files["attend"] | {"dq.npy": files["attend"]["q.npy"], "entropy.npy": files["attend"]["v.npy"]}
    for name, line, option in (
        ("attend-out-and-lse", "attend --q q.npy --k k.npy --v v.npy --out y.npy --lse y.npy", "--lse"),
        (
            "attend-out-and-weights-by-link",
            "attend --q q.npy --k k.npy --v v.npy --out y.npy --weights here/y.npy",
            "--weights",
        ),
        ("attend-out-in-grad-dir", ATTEND + " --out new/dq.npy --grad-dir new", "--grad-dir"),
        (
            "attend-grad-dir-over-q",
            "attend --q dq.npy --k k.npy --v v.npy --grad-out dy.npy --out y.npy --grad-dir .",
            "--grad-dir",
        ),
        ("attend-stats-over-v", "attend --q q.npy --k k.npy --v entropy.npy --out y.npy --stats .", "--stats"),
    ):
        yield Trial(
            f"output-twice/{name}/attend",
            attend,
            Command(line),
            Expect.REFUSED,
            (option,),
            prepare=lambda folder: os.symlink(".", folder / "here"),
        )
    for name, line, option in (
        ("linear-out-and-out-state", LINEAR + " --out y.npy --out-state y.npy", "--out-state"),
        (
            "linear-grad-dir-over-k",
            "linear --q q.npy --k dk.npy --v v.npy --grad-out dy.npy --out y.npy --grad-dir .",
            "--grad-dir",
        ),
    ):
        yield Trial(
            f"output-twice/{name}/linear",
            files["linear"] | {"dk.npy": files["linear"]["k.npy"]},
            Command(line),
            Expect.REFUSED,
            (option,),
        )
    for verb, line in (
        ("xray", "xray m --text book.txt --tokens 16 --out page --json-out page"),
        ("compare", "compare run --out page --json-out ./page"),
    ):
        yield Trial(
            f"output-twice/{verb}-out-and-json-out/{verb}",
            files["model"],
            Command(line),
            Expect.REFUSED,
            ("--out", "--json-out"),
        )


def trials(run: dict[str, bytes]) -> Iterator[Trial]:
    files = all_files(run)
    for row in TABLE:
        yield from path_trials(row, files[row.files])
        yield from input_trials(row, files[row.files])
        if not row.slow:
            yield from good_trials(row, files[row.files])
    yield from twice(files)
    unrelated = Command("convert m out")
    yield Trial(
        "output-convert-OUT/directory-with-other-files/convert",
        files["model"],
        unrelated,
        Expect.REFUSED,
        ("out",),
        prepare=lambda folder: path_kinds.directory_with_file(folder / "out"),
    )
