# SPDX-License-Identifier: Apache-2.0
"""Logs the metrics of watch() in transformers' Trainer."""

import functools
import os
import warnings
from typing import Any

from transformers import Trainer, TrainerCallback

from .handle import Watch
from .log import RunLog, evaluation_of


class WatchCallback(TrainerCallback):
    """Watches every n-th step of a Trainer, and logs the metrics under names that begin with "watch/".

        WatchCallback(every=50).add_to(trainer)

    With add_to(), the metrics reach log_history and the reporters (TensorBoard, W&B, …). With Trainer(callbacks=[…]),
    they reach only log_history, since a callback does not know its trainer.

    every: number of steps from one watched step to the next. The first step is watched.
    probe: a batch to measure instead of the training batch. The uncompiled model runs on this batch without gradients
        and in evaluation mode.
    by_layer: whether to also log the metrics of each layer.
    log: a directory for metrics.jsonl, which `headgate compare` and headgate.runs read. The file receives the metrics,
        the loss, learning rate and gradient norm that the trainer logs, and the loss of evaluations. Warns if there are
        several evaluation sets: records have room for the loss of one, `eval_loss`.
    watch_options: arguments of headgate.torch.watch.

    Combines the metrics of all ranks. Raises ValueError if `every` is less than 1.
    """

    def __init__(
        self,
        figures: Any = None,
        *,
        every: int = 50,
        probe: dict[str, Any] | None = None,
        by_layer: bool = False,
        log: str | os.PathLike[str] | None = None,
        **watch_options: Any,
    ) -> None:
        if every < 1:
            raise ValueError(f"WatchCallback: every is {every} but must be at least 1")
        self.every, self.batch, self.by_layer = every, probe, by_layer
        self.options = {"figures": figures, **watch_options}
        self.seen: Watch | None = None
        self.trainer: Trainer | None = None
        self._training = self._warned = False
        self._run = None if log is None else RunLog(log)

    def add_to(self, trainer: Trainer) -> "WatchCallback":
        """Adds the callback to a trainer. The callback then logs metrics through this trainer.

        If a training step raises an error, the callback stops its watch.
        """
        self.trainer = trainer
        trainer.add_callback(self)
        original = trainer.training_step

        @functools.wraps(original)
        def training_step(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except BaseException:
                self._stop()
                raise

        trainer.training_step = training_step
        return self

    def _stop(self) -> None:
        if self.seen is not None:
            self.seen.stop()

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self._stop()  # stops the watch of a run that was interrupted
        self._training = True
        self.seen = Watch(model, **self.options)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self.every == 0 and self.batch is None:
            self.seen.reset()
            self.seen.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        seen = self.seen
        if self.batch is not None and (state.global_step - 1) % self.every == 0:
            seen.probe(**self.batch)
        elif seen.on:
            seen.stop()
        else:
            return
        if args.world_size > 1:
            seen.pool_ranks()
        self._add(state, {}, evaluation_of(seen))
        found = {f"watch/{key}": value for key, value in seen.scalars(by_layer=self.by_layer).items()}
        if self.trainer is not None:
            due = control.should_log
            Trainer.log(self.trainer, found)  # not a subclass's log(), which may add its own metrics and clear them
            control.should_log = due  # log() has cleared should_log, but the loss is not logged yet
        else:
            state.log_history.append({**found, "step": state.global_step})

    def _add(self, state: Any, figures: dict[str, Any], evaluation: dict[str, Any]) -> None:
        if self._run is not None and state.is_world_process_zero and state.global_step > 0:
            self._run.add(state.global_step, figures, evaluation)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        logs = logs or {}
        names = {"loss": "loss", "grad_norm": "grad_norm", "learning_rate": "lr", "num_tokens": "tokens"}
        figures = {ours: logs[name] for name, ours in names.items() if name in logs}
        if "loss" in figures:
            if state.num_input_tokens_seen:
                figures["tokens"] = state.num_input_tokens_seen
            self._add(state, figures, {})

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        metrics = metrics or {}
        others = [name for name in metrics if name.endswith("_loss") and name != "eval_loss"]
        if self._training and "eval_loss" in metrics:
            self._add(state, {"loss_nats": metrics["eval_loss"]}, {})
        elif self._training and others and self._run is not None and not self._warned:
            self._warned = True
            warnings.warn(f"WatchCallback: log= records eval_loss alone, not {others[0]}", stacklevel=2)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._stop()
        self._training = False
