# SPDX-License-Identifier: Apache-2.0
"""Figures of watch() in training: transformers' Trainer, a probe, compiled models."""

import json
import math
import subprocess
from decimal import Decimal
from fractions import Fraction

import numpy
import pytest
import torch
import transformers

import headgate
import models
import tool_runs
from headgate.torch import watch
from headgate.torch.transformers import WatchCallback
from headgate.torch.watch.figures import BY_KEY
from headgate.torch.watch.log import EVALUATION_FIGURES, STEP_FIGURES, RunLog


class Reporter(transformers.TrainerCallback):
    """Stands for TensorBoard's callback, which Trainer calls before those of users."""

    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **_):
        self.logs.append((state.global_step, dict(logs)))


def trainer_of(tmp_path, model, logging_steps=5, eval_steps=None, **options):
    data = [{"input_ids": ids, "labels": ids} for ids in models.tokens(16, 12)]
    arguments = transformers.TrainingArguments(
        output_dir=tmp_path,
        max_steps=5,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        logging_steps=logging_steps,
        eval_strategy="no" if eval_steps is None else "steps",
        eval_steps=eval_steps,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        seed=1,
    )
    if eval_steps is not None:
        options.setdefault("eval_dataset", data[:2])
    return transformers.Trainer(model=model, args=arguments, train_dataset=data, **options)


def trained(tmp_path, *callbacks, add_to=None, **options):
    model = models.model("llama", "sdpa")
    trainer = trainer_of(tmp_path, model, callbacks=list(callbacks), **options)
    if add_to is not None:
        add_to.add_to(trainer)
    trainer.train()
    return trainer, model


def test_callback_reports_watched_steps_to_reporters_and_history(tmp_path):
    reporter, callback = Reporter(), WatchCallback(every=2)
    trainer, model = trained(tmp_path, reporter, add_to=callback)
    reported = {step: logs for step, logs in reporter.logs if "watch/sink_rate" in logs}
    assert list(reported) == [1, 3, 5]
    history = {row["step"]: row for row in trainer.state.log_history if "watch/sink_rate" in row}
    assert list(history) == [1, 3, 5]
    key = "watch/first_token_attention"
    assert all(history[step][key] == reported[step][key] for step in history)
    counted = callback.seen._sums["model.layers.0.self_attn"].counts["first_token_attention"]
    assert counted.tolist() == [2 * 2 * 11] * 4  # both micro-batches
    _, plain = trained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters()))


def test_callback_among_callbacks_writes_history(tmp_path):
    trainer, _ = trained(tmp_path, WatchCallback(["attention_entropy"], every=4, by_layer=True))
    rows = [row for row in trainer.state.log_history if "watch/attention_entropy" in row]
    assert [row["step"] for row in rows] == [1, 5]
    assert "watch/attention_entropy/model.layers.1.self_attn" in rows[0]


def test_callback_probe_gives_figures_of_its_batch(tmp_path):
    batch = {"input_ids": models.tokens(1, 20)}
    trainer, model = trained(tmp_path, WatchCallback(every=4, probe=batch))
    rows = [row for row in trainer.state.log_history if "watch/sink_rate" in row]
    assert [row["step"] for row in rows] == [1, 5] and model.training
    with torch.no_grad(), watch(model.eval()) as seen:
        model(**batch)
    assert rows[-1]["watch/first_token_attention"] == seen.scalars()["first_token_attention"]


def test_probe_of_compiled_model_equals_eager():
    model, ids = models.model("llama", "sdpa").eval(), models.tokens(1, 12)
    with torch.no_grad(), watch(model) as seen:
        model(ids)
    compiled = torch.compile(model, backend="eager")
    compiled(ids)
    assert watch(compiled).probe(input_ids=ids).scalars() == seen.scalars()


def test_callback_every_0_is_refused():
    with pytest.raises(ValueError, match="every is 0 but must be at least 1"):
        WatchCallback(every=0)


def compared(*directories):
    """What `headgate compare --json` says of directories."""
    words = [str(word) for word in (tool_runs.TOOL, "compare", *directories, "--json")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_log_of_a_loop_is_read_by_compare_and_runs(tmp_path):
    model, ids = models.model("qwen3-next", "sdpa"), models.tokens(2, 12)
    seen, rows = watch(model, "all"), []
    for step in range(1, 4):
        with seen:
            loss = model(ids, labels=ids).loss
        seen.log(tmp_path / "run", step, loss=loss, lr=0.1, tokens=24 * step, grad_norm=math.inf)
        rows.append({**seen.scalars(by_layer=False), "loss": loss.item(), "lr": 0.1})
    (run,) = compared(tmp_path / "run")["runs"]
    assert (run["steps"], run["tokens"], run["records"], run["notes"]) == (3, 72, 3, [])
    (same,) = headgate.runs(tmp_path)
    names = {"hidden_first_token": "hidden_first_token_share"}
    read = {names.get(key, key): [row[key] for row in rows] for key in rows[0]}
    ours = {"attention_entropy_of_keys", "mean_distance", "largest_logit", "largest_key", "largest_value"}
    ours |= {key for key in BY_KEY if key.endswith("_of_others")}
    ours |= {f"first_token_{of}_norm_ratio" for of in ("query", "key", "value")}
    places = {"massive_activation_token", "massive_activation_channel"}
    assert read.keys() - ours == same.curves.keys() - places - {"first_token_value_norm_ratio"}
    for key in read.keys() & same.curves.keys():
        assert same.curves[key].values.tolist() == pytest.approx(read[key]), key
        assert run["curves"][key]["values"] == pytest.approx(read[key], rel=1e-4), key
    largest = max(seen.layers, key=lambda row: row.get("massive_activation", 0))
    for place in places:
        assert same.curves[place].values[-1] == largest[place]


@pytest.mark.parametrize("reports", [False, True])
def test_log_of_a_trainer_is_read_by_compare(tmp_path, reports):
    callback = WatchCallback(every=2, log=tmp_path / "run")
    given = {"add_to": callback} if reports else {}
    trainer, _ = trained(tmp_path, *([] if reports else [callback]), logging_steps=1, eval_steps=4, **given)
    trainer.evaluate()
    (run,) = headgate.runs(tmp_path / "run")
    assert compared(tmp_path / "run")["runs"][0]["notes"] == []
    history = trainer.state.log_history
    losses = [row for row in history if "loss" in row]
    assert run.curves["loss"].steps.tolist() == [1, 2, 3, 4, 5]
    assert run.curves["loss"].values.tolist() == [row["loss"] for row in losses]
    assert run.curves["lr"].values.tolist() == [row["learning_rate"] for row in losses]
    watched = {row["step"]: row["watch/sink_rate"] for row in history if "watch/sink_rate" in row}
    assert dict(zip(run.curves["sink_rate"].steps.tolist(), run.curves["sink_rate"].values)) == watched
    evaluated = {row["step"]: row["eval_loss"] for row in history if "eval_loss" in row}
    assert 4 in evaluated
    assert dict(zip(run.curves["loss_nats"].steps.tolist(), run.curves["loss_nats"].values)) == evaluated


@pytest.mark.parametrize(
    "step, figures, message",
    [
        (0, {}, "step is 0 but must be a whole number from 1 on"),
        (1, {"accuracy": 1.0}, "'accuracy' is none of loss, "),
        (2**53 + 1, {}, "step is 9007199254740993 but must be a whole number from 1 on, at most 9007199254740992"),
        (True, {}, "step is True but must be a whole number"),
        (1, {"loss": "low"}, "loss is 'low' but must be a number"),
        (1, {"tokens": math.nan}, "tokens is nan but must be a whole number from 0 to 9007199254740992"),
        (1, {"tokens": -5}, "tokens is -5 but must be a whole number"),
    ],
)
def test_log_refuses_what_compare_would_not_read(step, figures, message, tmp_path):
    with pytest.raises(ValueError, match=f"watch: log: {message}"):
        watch(models.model("llama")).log(tmp_path, step, **figures)
    assert not (tmp_path / "metrics.jsonl").exists()


HOOKS = ("on_step_begin", "on_pre_optimizer_step", "on_optimizer_step", "on_substep_end", "on_step_end", "on_log",
         "on_evaluate", "on_prediction_step", "training_step")  # fmt: skip


@pytest.mark.parametrize("hook", HOOKS)
def test_log_of_an_interrupted_trainer_has_every_watched_step(hook, tmp_path):
    def interrupt(args, state, control, **_):
        if state.global_step >= 3:
            raise KeyboardInterrupt

    class Interrupting(transformers.TrainerCallback):
        pass

    setattr(Interrupting, hook, staticmethod(interrupt))
    trainer = trainer_of(tmp_path, models.model("llama", "sdpa"), logging_steps=1, eval_steps=1)
    WatchCallback(every=1, log=tmp_path / "run").add_to(trainer)
    trainer.add_callback(Interrupting())
    if hook == "training_step":
        step = trainer.training_step
        trainer.training_step = lambda *a, **k: interrupt(None, trainer.state, None) or step(*a, **k)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    history = trainer.state.log_history
    (run,) = headgate.runs(tmp_path / "run")
    assert compared(tmp_path / "run")["runs"][0]["notes"] == []
    for key, ours in (("watch/first_token_attention",) * 2, ("loss", "loss"), ("eval_loss", "loss_nats")):
        logged = {row["step"]: row[key] for row in history if key in row}
        curve = run.curves[ours.removeprefix("watch/")]
        assert dict(zip(curve.steps.tolist(), curve.values.tolist())) == logged and max(logged) >= 2


def test_callback_warns_that_losses_of_several_sets_are_not_recorded(tmp_path):
    data = [{"input_ids": ids, "labels": ids} for ids in models.tokens(2, 12)]
    callback = WatchCallback(every=2, log=tmp_path / "run")
    with pytest.warns(UserWarning) as caught:
        trained(tmp_path, add_to=callback, eval_steps=2, eval_dataset={"x": data, "y": data})
    said = [str(each.message) for each in caught if "WatchCallback" in str(each.message)]
    assert said == ["WatchCallback: log= records eval_loss alone, not eval_x_loss"]
    assert "loss_nats" not in headgate.runs(tmp_path / "run")[0].curves


def test_records_of_another_writer_are_kept(tmp_path):
    ours, theirs = RunLog(tmp_path), RunLog(tmp_path)
    ours.add(1, {"loss": 3.0})
    theirs.add(1, {"loss": 2.0})
    ours.add(1, {"lr": 0.1})
    ours.add(1, {"grad_norm": 1.0})
    lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [sorted(json.loads(line)) for line in lines] == [
        ["loss", "step"], ["loss", "step"], ["grad_norm", "loss", "lr", "step"]
    ]  # fmt: skip


ODD = (
    0, -5, 1.7, 24.0, True, None, "2.5", b"2", "", math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e300, 2**53, 2**53 + 1,
    2**60, 10**400, 3 + 0j, [1.0], object(), Fraction(1, 3), Decimal("NaN"), Decimal(7), numpy.int64(3), numpy.uint64(2**63),
    numpy.float32(0.1), numpy.bool_(True), numpy.array([1, 2]), numpy.array([4]), torch.tensor(2.5), torch.tensor(9),
    torch.tensor(True), torch.tensor([1.0, 2.0]), torch.tensor(math.nan, requires_grad=True),
)  # fmt: skip


@pytest.mark.parametrize("name", ["step", *STEP_FIGURES, *EVALUATION_FIGURES])
def test_log_refuses_a_value_by_name_or_runs_reads_it_back(name, tmp_path):
    seen, logged = watch(models.model("llama")), 0
    for n, value in enumerate(ODD):
        folder = tmp_path / f"{n:02}"
        step, figures = (value, {}) if name == "step" else (1, {name: value})
        try:
            seen.log(folder, step, **{"loss": 1.0, "lr": 1.0, **figures})
        except ValueError as error:
            assert str(error).startswith(f"watch: log: {name} is ") and "\n" not in str(error)
            assert not folder.exists()
            continue
        logged += 1
        (run,) = headgate.runs(folder)
        number = value.item() if hasattr(value, "item") else value
        if name == "step":
            assert run.steps.tolist() == [number]
        elif name == "tokens":
            assert run.tokens == number
        elif math.isfinite(number):
            assert run.curves[name].values.tolist() == [float(number)]
        else:
            assert name not in run.curves or math.isnan(run.curves[name].values[0])
    assert 0 < logged < len(ODD)


def test_step_that_raises_ends_the_watch(tmp_path):
    model = models.model("llama", "sdpa")
    trainer = trainer_of(tmp_path, model)
    callback = WatchCallback(every=1).add_to(trainer)
    trainer.train_dataset[0]["input_ids"] = torch.full((12,), models.VOCAB + 5)
    for row in trainer.train_dataset:
        row["input_ids"] = trainer.train_dataset[0]["input_ids"]
    with pytest.raises(IndexError):
        trainer.train()
    assert not callback.seen.on and not any("forward" in vars(module) for module in model.modules())
