# SPDX-License-Identifier: Apache-2.0
"""Logs figures of watch() from transformers' Trainer."""

from typing import Any

from transformers import Trainer, TrainerCallback

from .handle import Watch


class WatchCallback(TrainerCallback):
    """Watches every n-th step of a Trainer, and logs the figures under "watch/".

        WatchCallback(every=50).add_to(trainer)

    With add_to(), figures reach log_history and the reporters (TensorBoard, W&B, …). In Trainer(callbacks=[…]), they
    reach log_history alone, since a callback does not know its trainer.

    every: steps from one watched step to the next; the first is watched.
    probe: a batch; figures are then those of the uncompiled model on it, without gradients and in evaluation mode,
        in place of those of the training batch.
    by_layer: also log the figures of each layer.
    watch_options: arguments of headgate.torch.watch.

    Figures of all ranks are pooled. Raises ValueError for every < 1.
    """

    def __init__(
        self,
        figures: Any = None,
        *,
        every: int = 50,
        probe: dict[str, Any] | None = None,
        by_layer: bool = False,
        **watch_options: Any,
    ) -> None:
        if every < 1:
            raise ValueError(f"WatchCallback: every is {every} but must be at least 1")
        self.every, self.batch, self.by_layer = every, probe, by_layer
        self.options = {"figures": figures, **watch_options}
        self.seen: Watch | None = None
        self.trainer: Trainer | None = None

    def add_to(self, trainer: Trainer) -> "WatchCallback":
        """Adds the callback to a trainer, and reports to it."""
        self.trainer = trainer
        trainer.add_callback(self)
        return self

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
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
        found = {f"watch/{key}": value for key, value in seen.scalars(by_layer=self.by_layer).items()}
        if self.trainer is not None:
            Trainer.log(self.trainer, found)  # not a subclass's log(), which may add and clear figures of its own
        else:
            state.log_history.append({**found, "step": state.global_step})

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seen.stop()
