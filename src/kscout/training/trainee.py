"""The state of a training: module, optimizer, run folder, best epoch and checkpoint."""

import logging
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar, final

import torch
from torch import nn

from kscout.config import (
    JointConfig,
    JointTraining,
    PolicyConfig,
    ReconstructorConfig,
    ReconstructorTraining,
    learning_rate_at,
)
from kscout.files import written_whole
from kscout.names import metric_word
from kscout.runs import Record, Run
from kscout.training.checkpointing import (
    best_of,
    checkpoint_of,
    load_checkpoint,
    restore,
    save_checkpoint,
)
from kscout.training.distributed import from_main

ModuleT = TypeVar("ModuleT", bound=nn.Module)
ConfigT = TypeVar("ConfigT", bound=PolicyConfig | ReconstructorConfig | JointConfig)

Save = Callable[[Path, ModuleT, int], None]
"""Writes the weights of an epoch to a file."""


@final
@dataclass
class Trainee(Generic[ModuleT, ConfigT]):
    """A module in training; only the main process has its run."""

    module: ModuleT
    config: ConfigT
    optimizer: torch.optim.Optimizer
    run: Run | None = None
    save: Save[ModuleT] | None = None
    n_done: int = 0
    """Number of completed epochs."""
    best_epoch: int = 0
    best_ssim: float = -math.inf
    """Validation SSIM of the best epoch."""
    best_score: float = -math.inf
    """Validation score of the best epoch, in the metric of the training."""
    is_finished: bool = False
    carried: dict[str, Any] = field(default_factory=dict)
    """Content of the checkpoint besides module and optimizer: numbers, strings, tensors."""
    part: dict[str, Any] = field(default_factory=dict)
    """Steps and sums of an incomplete epoch; empty after a complete one."""
    start: ModuleT | None = None
    """The trained module with the initial weights; None for random initial weights."""

    @classmethod
    def resume(
        cls,
        module: ModuleT,
        config: ConfigT,
        run: Run | None = None,
        save: Save[ModuleT] | None = None,
    ) -> "Trainee[ModuleT, ConfigT]":
        """Start a module's training, or restore it from its checkpoint.

        Args:
            module: with its initial weights, on its device.
            config: the settings of its run.
            run: the folder to write to; None in all processes but the main one.
            save: how weights are written; needed where there is a run.
        """
        parameters = list(module.parameters())
        optimizer = torch.optim.Adam(parameters, fused=parameters[0].device.type == "cuda")
        found = cls(module, config, optimizer, run, save)
        found.is_finished = from_main(run is not None and run.is_finished)
        checkpoint = from_main(load_checkpoint(run.checkpoint_path) if run else None)
        if checkpoint is not None:
            restore(checkpoint, module, optimizer)
            found.n_done, facts = checkpoint["epoch"], checkpoint["facts"]
            found.best_epoch, found.best_ssim = best_of(checkpoint)
            found.best_score = facts.get("best_score", found.best_ssim)
            found.carried, found.part = facts.get("carried", {}), facts.get("part", {})
        if run is not None and not found.is_finished:
            run.rewind(found.n_done)
            if checkpoint is not None:
                logging.getLogger(__name__).info(f"{run.path}: resumed {found.position}")
        return found

    @property
    def position(self) -> str:
        """The epochs and steps in the latest checkpoint, as text."""
        n_epochs = self.config.training.n_epochs
        if not self.part:
            return f"after epoch {self.n_done} of {n_epochs}"
        step, n_steps = self.part["step"], self.part["n_steps"]
        return f"after update {step} of {n_steps} in epoch {self.n_done + 1} of {n_epochs}"

    @property
    def is_over(self) -> bool:
        """Whether no epoch is left, or validation has not improved for `patience` epochs."""
        training = self.config.training
        patience, n_worse = training.patience, self.n_done - self.best_epoch
        is_flat = patience is not None and n_worse >= patience
        return self.n_done >= training.n_epochs or is_flat

    def rate(self, epoch: int) -> float:
        """Return the learning rate of an epoch, if it is constant within epochs."""
        training = self.config.training
        assert not isinstance(training, JointTraining)
        return learning_rate_at(training, epoch)

    def log_position(self) -> None:
        """Log what is saved of a training that stops."""
        if self.run is not None:
            is_saved = self.n_done > 0 or self.part
            where = f"saved {self.position}" if is_saved else "stopped before the first update"
            logging.getLogger(__name__).info(f"{self.run.path}: {where}")

    def note(self, **facts: float) -> None:
        """Add facts to the provenance of the run, in the main process."""
        if self.run is not None:
            self.run.note(**facts)

    def begin(self, epoch: int) -> None:
        """Set the learning rate of an epoch and the training mode of the module."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(epoch)
        self.module.train()

    def keep(
        self, record: Record, score: float, evaluated: ModuleT, carried: dict[str, Any]
    ) -> None:
        """Write an epoch's record, weights and checkpoint.

        Args:
            record: has `epoch` and `val_ssim`.
            score: what the best epoch has most of.
            evaluated: the module with the weights that were validated.
            carried: what the course needs to go on from here.
        """
        self.n_done, self.carried, self.part = record["epoch"], carried, {}
        if score > self.best_score:
            self.best_epoch, self.best_score = self.n_done, score
            self.best_ssim = record["val_ssim"]
        if self.run is None or self.save is None:
            return
        self.run.log(record)
        training = self.config.training
        takes_best = self.is_over and training.patience is not None
        for path, is_due in (
            (self.run.epoch_path(self.n_done), self.n_done in training.keep_epochs),
            (self.run.best_path, self.n_done == self.best_epoch),
            (self.run.weights_path, self.is_over and not takes_best),
        ):
            if is_due:
                self.save(path, evaluated, self.n_done)
        if takes_best:
            with written_whole(self.run.weights_path) as aside:
                shutil.copyfile(self.run.best_path, aside)
        # The checkpoint comes last: what a kill leaves ahead of it is made again, alike.
        self._save_checkpoint()

    def keep_part(self, part: dict[str, Any], carried: dict[str, Any]) -> None:
        """Write a checkpoint inside an epoch.

        Args:
            part: steps of the epoch so far, with their sums.
            carried: as for `keep`.
        """
        self.carried, self.part = carried, part
        if self.run is not None:
            self._save_checkpoint()

    def _save_checkpoint(self) -> None:
        assert self.run is not None
        names = ("best_epoch", "best_ssim", "best_score", "carried", "part")
        facts = {name: getattr(self, name) for name in names if getattr(self, name) != {}}
        state = checkpoint_of(self.n_done, self.module, self.optimizer, facts)
        save_checkpoint(self.run.checkpoint_path, state)

    def finish(self) -> None:
        """Close the run."""
        if self.run is None or self.save is None:
            return
        training = self.config.training
        metric = "ssim" if isinstance(training, ReconstructorTraining) else training.metric
        self.run.finish(
            {
                "best_epoch": self.best_epoch,
                "metric": metric,
                f"best_val_{metric_word(metric)}": self.best_score,
                "best_val_ssim": self.best_ssim,
            }
        )
