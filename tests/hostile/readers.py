# SPDX-License-Identifier: Apache-2.0
"""The table of readers: each row has a good file, its mutations and the commands that read it."""

import dataclasses
import functools
import itertools
import json
import math
import os
import pathlib
import re
import shlex
import struct
from collections.abc import Callable, Iterable, Iterator

import format_mutations
import good_files as good_file
import mutations
import path_kinds
from mutations import RAW, Variant
from trial import CHECK_FAILED, Command, Expect, Limits, Trial

CONVERT = Command("convert m out", ("out",))
EVAL = Command("eval m --text book.txt --tokens 32 --json")
XRAY = Command("xray m --text book.txt --tokens 16 --out page.html", ("page.html",))
GENERATE = Command("generate m --prompt Hi --max-tokens 3")
CHAT = Command("generate m --chat --prompt Hi --max-tokens 3")
TOKENIZE = Command("tokenize m --text book.txt")
RESUME = Command("train --resume --out run --steps 6", ("run",))
RESUME_BY_LINK = Command(RESUME.line, ("run", "metrics.jsonl.other"))  # the log is written through a link
EVAL_RUN = Command("eval run --text book.txt --tokens 32 --json")
EXPLAIN = Command("explain problem.json")
COMPARE = Command("compare run")
XRAY_FROM = Command("xray --from report.json --out page.html", ("page.html",))

# `generate` has one model and one prompt, and its messages say so.
IN_WORDS = ("the model", "the prompt")

# A parsed JSON value takes 16 bytes and its allocation about 32; `[],` is three bytes of text.
JSON_GROWTH = 40.0


@dataclasses.dataclass(frozen=True)
class Reader:
    """Describes a row: `variants` are mutations of `file`, one of the good `files`."""

    name: str
    files: dict[str, bytes]
    file: str
    commands: tuple[Command, ...]
    variants: Callable[[bytes], Iterable[Variant]]
    names: tuple[str, ...] = ()  # what a refusal may mention in place of the file
    stream: bool = False  # takes pipes
    optional: bool = False  # does without the file
    growth: float = 2.0
    without: tuple[str, ...] = ()  # variants that do not apply
    paths: bool = True  # whether other things than files are put in its place

    @property
    def good(self) -> bytes:
        return self.files[self.file]

    def trial(self, variant: Variant, command: Command) -> Trial:
        # A model with strange numbers is read, and its figures may then not be finite.
        figures = command.verb in ("eval", "xray", "train")
        files = {name: content for name, content in self.files.items() if name != self.file}
        return Trial(
            name=f"{self.name}/{variant.name}/{label(command, self.commands)}",
            files=files,
            command=command,
            expect=variant.expect,
            names=(self.file, *self.names),
            prepare=lambda folder: place(folder, self.file, variant),
            limits=Limits(nobody=variant.nobody),
            growth=self.growth,
            good=self.good_trial(command),
            also_statuses=(CHECK_FAILED,) if figures and variant.expect != Expect.REFUSED else (),
        )

    def good_trial(self, command: Command) -> Trial:
        name = f"{self.name}/good/{label(command, self.commands)}"
        return Trial(name=name, files=self.files, command=command, expect=Expect.ACCEPTED, names=())

    def fixed_trials(self) -> Iterator[Trial]:
        for command in self.commands:
            yield self.good_trial(command)
            if self.stream:
                yield self.late_writer(command)
        paths = path_kinds.of_input_path(self.good, self.stream, self.optional) if self.paths else ()
        for turn, variant in enumerate(itertools.chain(self.variants(self.good), paths)):
            if variant.name in self.without:
                continue
            commands = self.commands[turn % len(self.commands) :][:1] if variant.in_turn else self.commands
            for command in commands:
                yield self.trial(variant, command)

    def late_writer(self, command: Command) -> Trial:
        """Makes a pipe whose writer comes after the reader."""
        out = self.trial(Variant("fifo-with-a-late-writer", os.mkfifo, Expect.ACCEPTED), command)
        write = path_kinds.write_late(self.good)
        out.meanwhile = lambda process, folder: write(process, folder, self.file)
        return out


def label(command: Command, among: tuple[Command, ...]) -> str:
    same = [other for other in among if other.verb == command.verb]
    return command.verb if len(same) == 1 else f"{command.verb}-{same.index(command) + 1}"


def place(folder: pathlib.Path, file: str, variant: Variant) -> None:
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    variant.place(path)
    if variant.nobody:
        folder.chmod(0o777)


# --- rows ------------------------------------------------------------------------------------------------------------

ATTEND = (
    "attend --q q.npy --k k.npy --v v.npy --gate z.npy --bias bias.npy --mask mask.npy --key-lengths lengths.npy "
    "--query-offsets offsets.npy --alibi alibi.npy --sinks sinks.npy --grad-out dy.npy --grad-dir gradients --out y.npy "
    "--lse lse.npy --weights weights.npy --max-logit logits.npy --stats statistics --top-k 2 --window-share 1 --rows 0,2"
)
ATTEND_PACKED = "attend --q q.npy --k k.npy --v v.npy --cu-seqlens-q cq.npy --cu-seqlens-k ck.npy --out y.npy"
ATTEND_PAGED = (
    "attend --q q.npy --k k.npy --v v.npy --block-table table.npy --key-lengths lengths.npy --k-scale ks.npy "
    "--v-scale vs.npy --k-first kf.npy --v-first vf.npy --out y.npy"
)
LINEAR = (
    "linear --q q.npy --k k.npy --v v.npy --decay g.npy --beta beta.npy --state s0.npy --cu-seqlens c.npy "
    "--l2-norm 1e-6 --grad-out dy.npy --grad-out-state ds.npy --grad-dir gradients --out y.npy --out-state s.npy"
)
LINEAR_SNAPSHOTS = (
    "linear --q q.npy --k k.npy --v v.npy --cu-seqlens c.npy --snapshot-lengths ends.npy --out y.npy "
    "--out-snapshots snapshots.npy"
)
LINEAR_OUTPUTS = ("y.npy", "s.npy", "snapshots.npy", "gradients")
ATTEND_OUTPUTS = ("y.npy", "lse.npy", "weights.npy", "logits.npy", "statistics", "gradients")


def integers_of_npy(good: bytes) -> Iterator[Variant]:
    """Yields arrays of integers with one element out of every range."""
    dictionary, data = format_mutations.npy_parts(good)
    size = 8 if "<i8" in dictionary else 4
    front = good[: len(good) - len(data)]
    for at in (0, len(data) - size):
        for name, value in {
            "minus-one": -1,
            "largest": 2 ** (8 * size - 1) - 1,
            "smallest": -(2 ** (8 * size - 1)),
            "million": 10**6,
        }.items():
            yield Variant(
                f"element-{at // size}-{name}",
                front + data[:at] + value.to_bytes(size, "little", signed=True) + data[at + size :],
            )
    yield Variant("reversed", front + b"".join(data[at : at + size] for at in reversed(range(0, len(data), size))))


def attend_rows() -> Iterator[Reader]:
    for name, line, files, outputs in (
        ("plain", ATTEND, good_file.attend_files(), ATTEND_OUTPUTS),
        ("packed", ATTEND_PACKED, good_file.packed_files(), ATTEND_OUTPUTS),
        ("paged", ATTEND_PAGED, good_file.paged_files(), ATTEND_OUTPUTS),
        ("linear", LINEAR, good_file.linear_files(), LINEAR_OUTPUTS),
        ("snapshots", LINEAR_SNAPSHOTS, good_file.linear_files(), LINEAR_OUTPUTS),
    ):
        options = re.findall(r"(--[\w-]+) (\S+\.npy)", line)
        for option, file in options:
            if file not in files or (name in ("packed", "paged") and file == "v.npy"):
                continue
            plain_name = option[2:].replace("-", "_")
            whole = "<i" in format_mutations.npy_parts(files[file])[0]

            def variants(good: bytes, whole=whole) -> Iterator[Variant]:
                yield from format_mutations.of_npy(good)
                if whole:
                    yield from integers_of_npy(good)

            yield Reader(
                f"npy-{name}{option[1:]}", files, file, (Command(line, outputs),), variants, (option, plain_name)
            )


def model_rows() -> Iterator[Reader]:
    files = good_file.model()
    yield Reader(
        "safetensors",
        files,
        "m/model.safetensors",
        (CONVERT, EVAL, XRAY, GENERATE),
        format_mutations.of_safetensors,
        ("m:", "m/config.json", *IN_WORDS),
    )
    sharded = good_file.sharded_model()
    for n, shard in enumerate(good_file.SHARDS):
        yield Reader(
            f"shard-{n + 1}",
            sharded,
            f"m/{shard}",
            (CONVERT,),
            format_mutations.of_safetensors,
            ("m/model.safetensors",),
        )
    yield Reader(
        "index-json",
        sharded,
        "m/model.safetensors.index.json",
        (CONVERT, EVAL),
        of_index,
        ("m/model", "m/"),
        growth=JSON_GROWTH,
    )
    for family in good_file.FAMILIES:
        yield Reader(
            f"config-{family}",
            good_file.model(family),
            "m/config.json",
            (CONVERT, EVAL),
            mutations.of_json,
            ("m:", "m/model.safetensors", "config.json"),
            growth=JSON_GROWTH,
        )
    gpt_oss = good_file.gpt_oss_model()
    yield Reader("config-gpt-oss", gpt_oss, "m/config.json", (CONVERT, EVAL), mutations.of_json,
                 ("m:", "m/model.safetensors", "config.json"), growth=JSON_GROWTH)  # fmt: skip
    yield Reader("mxfp4", gpt_oss, "m/model.safetensors", (CONVERT, EVAL), of_mxfp4)
    yield Reader(
        "config-of-training",
        good_file.model("headgate"),
        "m/config.json",
        (Command("train --config m/config.json --data book.txt --out run --steps 1 --batch 1 --threads 1", ("run",)),),
        mutations.of_json,
        ("--config",),
        growth=JSON_GROWTH,
    )
    ids = files | {"ids.npy": good_file.npy((40,), [n * 7 % 256 for n in range(40)], "<i4")}

    def of_ids(good: bytes) -> Iterator[Variant]:
        yield from format_mutations.of_npy(good)
        yield from integers_of_npy(good)

    yield Reader(
        "token-ids",
        ids,
        "ids.npy",
        (Command("eval m --token-ids ids.npy --tokens 32 --json"),),
        of_ids,
        ("--token-ids", "token id"),
    )


def of_mxfp4(good: bytes) -> Iterator[Variant]:
    """Yields tensors of blocks and scales that do not belong together, and numbers that f32 cannot hold."""
    yield from format_mutations.of_safetensors(good)
    header, data = format_mutations.safetensors_parts(good)
    blocks = next(name for name in header if name.endswith("_blocks"))
    scales = blocks.removesuffix("_blocks") + "_scales"
    for name, changes in {
        "renamed-scales": {scales + "x": header[scales], scales: None},
        "renamed-blocks": {blocks + "x": header[blocks], blocks: None},
        "flat-blocks": {blocks: {**header[blocks], "shape": [math.prod(header[blocks]["shape"])]}},
        "flat-scales": {scales: {**header[scales], "shape": [math.prod(header[scales]["shape"])]}},
        "boolean-scales": {scales: {**header[scales], "dtype": "BOOL"}},
        "blocks-of-8": {blocks: {**header[blocks], "shape": [*header[blocks]["shape"][:2], 2, 8]}},
    }.items():
        new = {key: value for key, value in {**header, **changes}.items() if value is not None}
        yield Variant(name, good_file.safetensors_bytes(json.dumps(new), data), Expect.REFUSED)
    begin, end = header[scales]["data_offsets"]
    yield Variant("scales-infinite", good.replace(data, data[:begin] + b"\xff" * (end - begin) + data[end:]),
                  Expect.REFUSED)  # fmt: skip


def of_index(good: bytes) -> Iterator[Variant]:
    """Yields indices whose file names lead elsewhere, and mutations of the JSON."""
    yield from mutations.of_json(good)
    index = json.loads(good)
    for name, target in {
        "dots": "../m/x.safetensors",
        "absolute": "/etc/passwd",
        "nul": "a\0.safetensors",
        "newline": "a\nb.safetensors",
        "escape": "\x1b[31m.safetensors",
        "itself": "model.safetensors.index.json",
        "long": "n" * 300 + ".safetensors",
        "missing": "none.safetensors",
        "device": "/dev/zero",
        "empty": "",
        "only-suffix": ".safetensors",
    }.items():
        for which in ("first", "all"):
            names = {
                tensor: file if n and which == "first" else target
                for n, (tensor, file) in enumerate(index["weight_map"].items())
            }
            yield Variant(f"file-{name}-{which}", json.dumps({"weight_map": names}).encode(), Expect.REFUSED)
    many = {f"t{n}": f"s{n}.safetensors" for n in range(5000)}
    yield Variant("5000-files", json.dumps({"weight_map": many}).encode(), Expect.REFUSED)


def gguf_rows() -> Iterator[Reader]:
    def commands_on(file: str, *commands: Command) -> tuple[Command, ...]:
        return tuple(Command(re.sub(r"\bm\b", file, command.line, count=1), command.writes) for command in commands)

    for architecture in ("llama", "qwen2", "qwen3"):
        gguf = good_file.gguf_file(architecture)
        files = {"m.gguf": gguf.bytes(), "book.txt": good_file.TEXT}
        whole = architecture == "llama"
        commands = commands_on("m.gguf", CONVERT, EVAL, CHAT) if whole else commands_on("m.gguf", CONVERT)
        variants = format_mutations.of_gguf if whole else format_mutations.gguf_values
        yield Reader(f"gguf-{architecture}", files, "m.gguf", commands, lambda good, f=variants, g=gguf: f(g), IN_WORDS)
        if whole:
            yield Reader(
                "gguf-vocabulary",
                files,
                "m.gguf",
                commands_on("m.gguf", TOKENIZE),
                lambda good, g=gguf: of_vocabulary(g),
            )
    gguf = good_file.quantised_gguf()
    files = {"m.gguf": gguf.bytes(), "book.txt": good_file.TEXT}
    yield Reader(
        "gguf-quantised",
        files,
        "m.gguf",
        commands_on("m.gguf", CONVERT, EVAL),
        lambda good: format_mutations.of_blocks(gguf),
        paths=False,
    )


def of_vocabulary(gguf) -> Iterator[Variant]:
    """Yields headers with any tensors: a tokenizer reads the whole header but no tensor."""
    for variant in itertools.chain(
        format_mutations.gguf_headers(gguf), format_mutations.gguf_values(gguf), format_mutations.gguf_tensors(gguf)
    ):
        fewer_tensors = variant.name in ("tensor-count-zero", "tensor-count-1")
        of_model = (
            fewer_tensors
            or variant.name == "unknown-key"
            or not variant.name.startswith(("value-", "key-", "tensor-count", "version", "magic"))
        )
        yield dataclasses.replace(variant, expect=Expect.EITHER) if of_model else variant


def tokenizer_rows() -> Iterator[Reader]:
    files = good_file.tokenized_model()

    def of_tokenizer(good: bytes) -> Iterator[Variant]:
        yield from mutations.of_json(good, 2)
        document = json.loads(good)
        for key in ("vocab", "merges"):
            for name, value in mutations.HOSTILE_VALUES.items():
                changed = mutations.replaced(document, ("model", key), value)
                yield Variant(f"model.{key}-{name}", mutations.json_source(changed))
        for name, merges in {
            "cycle": ["a b", "b a"],
            "unknown": ["\u0394 \u0394"],
            "twice": ["t h", "t h"],
            "three": ["a b c"],
            "empty": [" "],
            "pairs": [["t", "h"]],
            "numbers": [[1, 2]],
        }.items():
            yield Variant(
                f"merges-{name}", json.dumps(mutations.replaced(document, ("model", "merges"), merges)).encode()
            )
        for name, pattern in {
            "backtracking": "(a+)+$|(a|aa)+b",
            "open": "(",
            "nested": "(" * 5000 + ")" * 5000,
            "empty": "",
            "reference": "(?<n>a)\\k<n>",
            "recursion": "(?R)",
            "repeat": "a{1,65535}{1,65535}",
            "verb": "(*LIMIT_MATCH=1)a",
            "lookbehind": "(?<=a.*)b",
            "everything": "[\\s\\S]",
        }.items():
            step = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            steps = {"type": "Sequence", "pretokenizers": [step, document["pre_tokenizer"]]}
            yield Variant(f"pattern-{name}", json.dumps({**document, "pre_tokenizer": steps}).encode())
        huge = {**document["added_tokens"][0], "id": 2**31 - 2, "content": "<huge>"}
        yield Variant("huge-id", json.dumps({**document, "added_tokens": [huge]}).encode())

    yield Reader(
        "tokenizer-json",
        files,
        "m/tokenizer.json",
        (TOKENIZE, EVAL, GENERATE),
        of_tokenizer,
        ("m:", "m/"),
        optional=True,
        growth=JSON_GROWTH,
    )
    # convert copies these files as they are, so that it reads each of them as bytes.
    for file in ("tokenizer_config.json", "generation_config.json"):
        yield Reader(
            file.replace(".", "-").replace("_", "-"),
            files,
            f"m/{file}",
            (CHAT,),
            mutations.of_json,
            ("chat template", "chat_template"),
            optional=True,
            growth=JSON_GROWTH,
        )
    with_template = files | {"m/chat_template.jinja": good_file.CHATML.encode()}
    yield Reader(
        "chat-template",
        with_template,
        "m/chat_template.jinja",
        (CHAT, CONVERT),
        of_template,
        ("chat template", "chat_template"),
        optional=True,
    )


def of_template(good: bytes) -> Iterator[Variant]:
    for variant in mutations.of_text(good, Expect.EITHER):
        yield dataclasses.replace(variant, expect=Expect.EITHER)
    yield Variant("deep-braces", b"{{" * 100000)
    yield Variant("open-string", good.replace(b"'", b'"', 1))


def run_rows(run: dict[str, bytes]) -> Iterator[Reader]:
    """Yields rows of a run that headgate train wrote."""
    state = "run/checkpoint/trainer_state.json"
    yield Reader(
        "trainer-state",
        run,
        state,
        (RESUME, EVAL_RUN),
        lambda good: mutations.of_json(good, 1),
        ("run/checkpoint", "run:"),
        optional=True,
        growth=JSON_GROWTH,
    )
    yield Reader(
        "checkpoint-config",
        run,
        "run/checkpoint/config.json",
        (RESUME, EVAL_RUN),
        lambda good: mutations.of_json(good, 1),
        ("run:", "run/checkpoint"),
        optional=True,
        growth=JSON_GROWTH,
    )
    for file in ("model", "optimizer"):
        commands = (RESUME, EVAL_RUN) if file == "model" else (RESUME,)
        yield Reader(
            f"checkpoint-{file}",
            run,
            f"run/checkpoint/{file}.safetensors",
            commands,
            format_mutations.of_safetensors,
            ("run/checkpoint",),
        )
    yield Reader("metrics-jsonl", run, "run/metrics.jsonl", (COMPARE,), of_metrics, ("run:",), growth=JSON_GROWTH)
    yield Reader(
        "metrics-of-resumed",
        run,
        "run/metrics.jsonl",
        (RESUME_BY_LINK,),
        of_metrics,
        ("run:",),
        growth=JSON_GROWTH,
        optional=True,
        without=("proc-mem",),
    )  # which opens for writing, so that training runs and cannot log


def token_run_rows(run: dict[str, bytes]) -> Iterator[Reader]:
    """Yields the row of the ids beside a run with a tokenizer. Training encodes its text again if they do not fit."""
    yield Reader(
        "run-token-ids", run, "run/token_ids.bin", (RESUME,), of_token_file, ("run:", "book.txt"), optional=True
    )


def of_token_file(good: bytes) -> Iterator[Variant]:
    """Yields files with changed fields, under the old checksum and under their own."""
    header, trailer = 48, 24
    fields = {"magic": (0, 16), "tokenizer": (16, 16), "text": (32, 8), "id-bytes": (40, 4), "vocab": (44, 4)}
    fields |= {"first-id": (header, 2), "last-id": (len(good) - trailer - 4, 2), "left-out": (len(good) - trailer, 8)}
    for field, (at, size) in fields.items():
        for value, content in {"zero": b"\0" * size, "ones": b"\xff" * size, "one": b"\1".ljust(size, b"\0")}.items():
            changed = good[:at] + content + good[at + size :]
            yield Variant(f"{field}-{value}", changed, Expect.ACCEPTED)
            yield Variant(f"{field}-{value}-summed", with_token_checksum(changed), Expect.ACCEPTED)
    for count in (0, 1, 2):
        few = good[: header + 4 * count] + good[-trailer:]
        yield Variant(f"{count}-tokens-summed", with_token_checksum(few), Expect.REFUSED)
    yield from mutations.truncations(good, [0, 16, header, len(good) - trailer, len(good) - 16, len(good) - 1],
                                     Expect.ACCEPTED)  # fmt: skip
    yield Variant("hole-of-a-terabyte", lambda path: format_mutations.sparse(path, good, 1 << 40), Expect.ACCEPTED)


def with_token_checksum(content: bytes) -> bytes:
    """Replaces the checksum at the end of a file of token ids by that of its content (Checksum of safetensors.hpp)."""
    content, mask = content[:-16], 2**64 - 1
    state = 0x9E3779B97F4A7C15
    whole = len(content) // 8 * 8
    words = [word for (word,) in struct.iter_unpack("<Q", content[:whole])]
    for word in [*words, int.from_bytes(content[whole:], "little"), len(content)]:
        state = ((state ^ word) * 0xBF58476D1CE4E5B9) & mask
        state = (state << 29 | state >> 35) & mask
    return content + f"{state:016x}".encode()


def of_metrics(good: bytes) -> Iterator[Variant]:
    """Yields metrics in which every line is a JSON object; the last one may be cut off, as by a killed run."""
    lines = good.splitlines(keepends=True)
    for variant in mutations.json_syntax(lines[0]):
        expect = Expect.EITHER if variant.name in ("white-space", "trailing-comma", "empty") else variant.expect
        if callable(variant.put) or expect is Expect.ACCEPTED:
            continue
        yield Variant(f"line-{variant.name}", variant.put.rstrip(b"\n") + b"\n" + b"".join(lines[1:]), Expect.EITHER)
    for variant in mutations.json_values(lines[1], 2):
        yield Variant(f"line-2-{variant.name}", lines[0] + variant.put + b"\n" + b"".join(lines[2:]), in_turn=True)
    yield from mutations.truncations(
        good, [len(b"".join(lines[:n])) for n in range(1, len(lines))] + [1, 5, 30], Expect.EITHER
    )
    yield Variant("line-of-17-MiB", lines[0][:-2] + b',"x":"' + b"y" * (17 << 20) + b'"}\n')
    yield Variant("last-line-of-17-MiB", good + b'{"step":' + b" " * (17 << 20))
    yield Variant("no-newline-at-all", b"x" * (20 << 20), Expect.REFUSED)
    yield Variant("steps-backwards", b"".join(reversed(lines)))
    yield Variant("blank-lines", good.replace(b"\n", b"\n\n"))
    yield Variant("carriage-returns", good.replace(b"\n", b"\r\n"))
    yield Variant("hole-of-a-terabyte", lambda path: format_mutations.sparse(path, good, 1 << 40), Expect.REFUSED)


def text_rows() -> Iterator[Reader]:
    files = good_file.tokenized_model()
    of_data = functools.partial(mutations.of_text, invalid=Expect.REFUSED)
    byte_model = good_file.model()
    # Models of bytes and those with a tokenizer read texts in different ways.
    yield Reader(
        "text-of-bytes",
        byte_model,
        "book.txt",
        (EVAL, XRAY, Command(good_file.TRAIN, ("run",))),
        of_long_enough(of_data),
        ("--data", "--text"),
    )
    yield Reader("text-of-tokens", files, "book.txt", (EVAL, XRAY), of_long_enough(of_data), ("--text",))

    def of_stream(good: bytes) -> Iterator[Variant]:
        yield from (
            dataclasses.replace(variant, expect=Expect.EITHER) for variant in mutations.of_text(good, Expect.EITHER)
        )
        yield Variant("hole-of-3-GiB", lambda path: format_mutations.sparse(path, good, 3 << 30), Expect.REFUSED)
        yield Variant("64-MiB", lambda path: path.write_bytes(good * ((64 << 20) // len(good))))

    yield Reader("text-to-tokenize", files, "book.txt", (TOKENIZE,), of_stream, ("--text",), stream=True)

    def of_prompt(good: bytes) -> Iterator[Variant]:
        yield from (
            dataclasses.replace(variant, expect=Expect.EITHER) for variant in mutations.of_text(good, Expect.EITHER)
        )
        yield Variant("hole-of-3-GiB", lambda path: format_mutations.sparse(path, good, 3 << 30), Expect.REFUSED)

    prompt = files | {"prompt.txt": b"The quick"}
    yield Reader(
        "prompt",
        prompt,
        "prompt.txt",
        (Command("generate m --prompt-file prompt.txt --max-tokens 3"),),
        of_prompt,
        ("--prompt-file", "the prompt"),
        stream=True,
    )


def of_long_enough(variants):
    """Expects that texts shorter than a sequence may be refused."""

    def out(good: bytes) -> Iterator[Variant]:
        for variant in variants(good):
            short = not callable(variant.put) and len(variant.put) < 100
            yield dataclasses.replace(variant, expect=Expect.EITHER) if short else variant

    return out


def problem_rows() -> Iterator[Reader]:
    files = {"problem.json": json.dumps(good_file.PROBLEM).encode()}
    yield Reader(
        "problem",
        files,
        "problem.json",
        (EXPLAIN, Command("explain --json problem.json")),
        mutations.of_json,
        stream=True,
        growth=JSON_GROWTH,
    )


def report_rows() -> Iterator[Reader]:
    def variants(good: bytes) -> Iterator[Variant]:
        yield from mutations.of_json(good)
        document = json.loads(good)
        for path in (("models", 0), ("models", 0, "heads", 1, 1)):
            part = functools.reduce(lambda value, key: value[key], path, document)
            for variant in mutations.json_values(json.dumps(part).encode()):
                source = RAW + variant.put.decode("utf-8", "surrogateescape")
                put = mutations.json_source(mutations.replaced(document, path, source))
                yield Variant(f"{'.'.join(map(str, path))}.{variant.name}", put, in_turn=True)
        many = {f"k{n}": 0 for n in range(100000)}
        for path in (("models", 0, "figures"), ("models", 0, "heads", 0, 0, "unknown")):
            yield Variant(f"many-keys-{path[-1]}", json.dumps(mutations.replaced(document, path, many)).encode())

    yield Reader(
        "saved-report",
        {"report.json": json.dumps(good_file.xray_report()).encode()},
        "report.json",
        (XRAY_FROM, Command("xray --from report.json --json")),
        variants,
        stream=True,
        growth=JSON_GROWTH,
        without=("dev-zero", "dev-full"),  # endless: 1 GiB is read, the largest size of a report
    )


def all_readers(run: dict[str, bytes], token_run: dict[str, bytes]) -> list[Reader]:
    return [
        *attend_rows(),
        *model_rows(),
        *gguf_rows(),
        *tokenizer_rows(),
        *run_rows(run),
        *token_run_rows(token_run),
        *text_rows(),
        *problem_rows(),
        *report_rows(),
    ]


# --- paths in arguments ----------------------------------------------------------------------------------------------


def argument_trials(run: dict[str, bytes]) -> Iterator[Trial]:
    """Yields texts in place of a path, for each argument that is read."""
    files = (
        good_file.tokenized_model()
        | run
        | good_file.attend_files()
        | {"problem.json": json.dumps(good_file.PROBLEM).encode()}
    )
    for option, line in {
        "attend--q": "attend --q {} --k k.npy --v v.npy --out y.npy",
        "linear--state": "linear --q q.npy --k k.npy --v v.npy --state {} --out y.npy",
        "eval-MODEL": "eval {} --text book.txt",
        "eval--text": "eval m --text {}",
        "eval--against": "eval m --text book.txt --against {}",
        "eval--token-ids": "eval m --token-ids {}",
        "xray-MODEL": "xray {} --text book.txt",
        "xray--text": "xray m --text {}",
        "xray--from": "xray --from {}",
        "generate-MODEL": "generate {} --prompt Hi",
        "generate--prompt-file": "generate m --prompt-file {}",
        "tokenize-MODEL": "tokenize {} --text book.txt",
        "tokenize--text": "tokenize m --text {}",
        "convert-MODEL": "convert {} out",
        "compare-RUN": "compare {}",
        "explain-FILE": "explain {}",
        "train--data": "train --data {} --out new",
        "train--config": "train --config {} --data book.txt --out new",
        "train--resume--out": "train --resume --out {}",
        "demo--data": "demo --only text --data {}",
        "demo--model": "demo --only model --model {} --data book.txt",
        "demo--examples": "demo --only worked --examples {}",
    }.items():
        for name, text in path_kinds.hostile_names("book.txt"):
            if name == "dash" and option in ("tokenize--text", "generate--prompt-file"):
                continue
            command = Command(line.format(shlex.quote(text)))
            yield Trial(f"argument-{option}/{name}/{command.verb}", files, command, Expect.REFUSED, shown(text, option))


def shown(text: str, option: str) -> tuple[str, ...]:
    """Returns how a message may show an argument: as it is, with unprintable characters replaced, its beginning, or its
    name.
    """
    raw = text.encode("utf-8", "surrogateescape")
    escaped = "".join(chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}" for byte in raw)
    spaced = "".join(c if c.isprintable() else " " for c in text)
    name = "--" + option.rsplit("--", 1)[1] if "--" in option else option.rsplit("-", 1)[1]
    forms = [text, escaped, spaced, text[:40], name]
    return tuple(form for form in forms if form)
