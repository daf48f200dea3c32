#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the suite detects each kind of misbehaviour, with small programs in place of headgate."""

import collections
import pathlib
import signal
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parent))

import good_files as good_file
import readers
from interruptions import Judge, Sender
from trial import Command, Expect, Limits, Machine, Settings, Trial

REFUSAL = "echo 'headgate verb: in.txt: not a file of any kind' >&2; exit 2"


class JudgeTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="headgate-judge-")
        self.addCleanup(self.folder.cleanup)

    def faults(self, script: str, expect: Expect = Expect.REFUSED, writes: tuple[str, ...] = (), **more) -> str:
        """Returns what the suite says about a program with this text."""
        program = pathlib.Path(self.folder.name) / "program"
        program.write_text("#!/bin/sh\n" + script + "\n", encoding="utf-8")
        program.chmod(0o755)
        machine = Machine(Settings(str(program), pathlib.Path(self.folder.name) / "work", timeout=2.0, slack=32 << 20))
        trial = Trial(
            "row/variant/verb", {"in.txt": b"text"}, Command("verb in.txt", writes), expect, ("in.txt",), **more
        )
        return "; ".join(machine.run(trial)[0])

    def test_refusal_on_one_line_that_names_the_file_is_right(self):
        self.assertEqual(self.faults(REFUSAL), "")

    def test_success_permitted_is_right(self):
        self.assertEqual(self.faults("exit 0", Expect.EITHER), "")
        self.assertEqual(self.faults("echo made > out", Expect.ACCEPTED, ("out",)), "")

    def test_success_where_refusal_is_due_is_a_fault(self):
        self.assertIn("ended with status 0, but must be refused", self.faults("exit 0"))

    def test_other_statuses_are_faults(self):
        self.assertIn("ended with status 3", self.faults("exit 3", Expect.EITHER))
        self.assertIn("ended with status 1", self.faults("exit 1", Expect.EITHER))

    def test_death_by_signal_is_a_fault(self):
        for name in ("SEGV", "ABRT", "BUS", "FPE", "ILL", "XFSZ"):
            self.assertIn(f"died of SIG{name}", self.faults(f"kill -{name} $$", Expect.EITHER))

    def test_hang_is_ended_and_a_fault(self):
        self.assertIn("did not end within 2 s", self.faults("exec sleep 60", Expect.EITHER))

    def test_messages_not_one_line_about_the_file_are_faults(self):
        for script, fault in {
            "exit 2": "without a whole line",
            "printf 'headgate: in.txt' >&2; exit 2": "without a whole line",
            "echo 'headgate: in.txt is bad' >&2; echo more >&2; exit 2": "2 lines",
            "echo 'headgate: something is wrong' >&2; exit 2": "names none of in.txt",
            "echo 'in.txt: bad' >&2; exit 2": "does not begin with headgate",
            "printf 'headgate: in.txt \\033[31m\\n' >&2; exit 2": "not printable",
            "printf 'headgate: in.txt \\377\\n' >&2; exit 2": "not UTF-8",
        }.items():
            self.assertIn(fault, self.faults(script), script)

    def test_sanitizer_report_is_a_fault(self):
        self.assertIn(
            "sanitizer",
            self.faults("echo '==1==ERROR: AddressSanitizer: heap-use-after-free' >&2; exit 0", Expect.EITHER),
        )
        self.assertIn(
            "sanitizer",
            self.faults("echo 'a.cc:1:2: runtime error: signed integer overflow' >&2; exit 0", Expect.EITHER),
        )

    def test_inputs_changed_are_faults(self):
        self.assertIn("'in.txt' is changed", self.faults("echo more >> in.txt; " + REFUSAL))
        self.assertIn("'in.txt' is gone", self.faults("rm in.txt; " + REFUSAL))
        self.assertIn(
            "'in.txt' is changed", self.faults("rm in.txt; ln -s /dev/null in.txt; exit 0", Expect.EITHER, ("out",))
        )

    def test_files_left_behind_are_faults(self):
        self.assertIn("'.out.tmp' is left behind", self.faults("echo part > .out.tmp; " + REFUSAL))
        self.assertIn("'out' is left behind", self.faults("echo part > out; " + REFUSAL, writes=("out",)))
        self.assertIn("'other' is left behind", self.faults("echo x > out; echo x > other", Expect.ACCEPTED, ("out",)))

    def test_memory_beyond_the_bound_is_a_fault(self):
        hungry = f"exec {sys.executable} -c 'text = b\"x\" * (160 << 20)'"
        good = Trial("row/good/verb", {}, Command("verb"), Expect.ACCEPTED, ())
        self.assertIn(
            "MiB of memory, more than", self.faults(f"[ -e in.txt ] || exit 0; {hungry}", Expect.EITHER, good=good)
        )
        self.assertEqual(self.faults("exit 0", Expect.EITHER, good=good), "")

    def test_limits_reach_the_program(self):
        self.assertEqual(
            self.faults(
                "[ $(ulimit -v) = 400000 ] || exit 9", Expect.ACCEPTED, limits=Limits(address_space=400000 * 1024)
            ),
            "",
        )
        self.assertIn(
            "SIGXFSZ",
            self.faults(
                "ulimit -c 0; head -c 5000 /dev/zero > out; kill -XFSZ $$",
                Expect.EITHER,
                ("out",),
                limits=Limits(file_size=512),
            ),
        )

    def test_parts_left_by_a_signal_are_faults(self):
        program = pathlib.Path(self.folder.name) / "program"
        script = (
            "#!/bin/sh\ntrap 'exit 143' TERM\nmkdir .out.new\n[ -e slow ] && { sleep 1.5 & wait; }\nmv .out.new out\n"
        )
        program.write_text(script, encoding="utf-8")
        program.chmod(0o755)
        machine = Machine(Settings(str(program), pathlib.Path(self.folder.name) / "work"))
        sender = Sender(machine, {}, Command("verb", ("out",)), signal.SIGTERM, 0.0, seconds=0.5)
        trial = Trial(
            "signal/0/verb",
            {"slow": b""},
            sender.command,
            Expect.EITHER,
            (),
            meanwhile=sender,
            also_statuses=(143,),
            judge=Judge(machine, sender, "verb"),
            unchecked=("out",),
        )
        self.assertIn("'.out.new' is left behind", "; ".join(machine.run(trial)[0]))


class TableTest(unittest.TestCase):
    RUN = {
        "run/checkpoint/trainer_state.json": b'{"a": 1}',
        "run/checkpoint/config.json": b'{"a": 1}',
        "run/checkpoint/model.safetensors": good_file.model()["m/model.safetensors"],
        "run/checkpoint/optimizer.safetensors": good_file.model()["m/model.safetensors"],
        "run/metrics.jsonl": b'{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n',
        "book.txt": good_file.TEXT,
    }
    TOKEN_RUN = RUN | {"run/token_ids.bin": bytes(range(120))}

    def test_names_are_unique(self):
        names = [trial.name for row in readers.all_readers(self.RUN, self.TOKEN_RUN) for trial in row.fixed_trials()]
        self.assertGreater(len(names), 5000)
        self.assertEqual([name for name, count in collections.Counter(names).items() if count > 1], [])

    def test_variants_differ_from_the_good_file(self):
        for row in readers.all_readers(self.RUN, self.TOKEN_RUN):
            same = [v.name for v in row.variants(row.good) if v.put == row.good and v.expect is Expect.REFUSED]
            self.assertEqual(same, [], row.name)


if __name__ == "__main__":
    unittest.main()
