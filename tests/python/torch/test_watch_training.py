# SPDX-License-Identifier: Apache-2.0
"""Figures of watch() in training: transformers' Trainer, a probe, compiled models."""

import pytest
import torch
import transformers

import models
from headgate.torch import watch
from headgate.torch.transformers import WatchCallback


class Reporter(transformers.TrainerCallback):
    """Stands for TensorBoard's callback, which Trainer calls before those of users."""

    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **_):
        self.logs.append((state.global_step, dict(logs)))


def trainer_of(tmp_path, model, **options):
    data = [{"input_ids": ids, "labels": ids} for ids in models.tokens(16, 12)]
    arguments = transformers.TrainingArguments(
        output_dir=tmp_path,
        max_steps=5,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        logging_steps=5,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        seed=1,
    )
    return transformers.Trainer(model=model, args=arguments, train_dataset=data, **options)


def trained(tmp_path, *callbacks, add_to=None):
    model = models.model("llama", "sdpa")
    trainer = trainer_of(tmp_path, model, callbacks=list(callbacks))
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
