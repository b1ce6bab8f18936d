"""What a training writes: records, weights of the best epochs, and checkpoints.

Checkpoints are replaced atomically: a kill at any moment leaves the old or the new one.
"""

import logging
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypedDict, cast, final

import torch
from torch import Tensor, nn

from kscout.config import ReconstructorTraining
from kscout.errors import RunError
from kscout.files import reason_of, written_whole
from kscout.json_types import JsonObject, StateDict
from kscout.names import metric_word
from kscout.pickles import load_tensors
from kscout.runs import Record, Run
from kscout.training.algorithm import ConfigT, Learner, ModuleT
from kscout.training.distributed import from_main

Save = Callable[[Path, ModuleT, int], None]
"""Writes the weights of an epoch to a file."""


@final
@dataclass
class TrainingRun(Generic[ModuleT, ConfigT]):
    """The best epoch, checkpoint and folder of a training; the main process alone has a folder."""

    learner: Learner[ModuleT, ConfigT]
    folder: Run | None = None
    save: Save[ModuleT] | None = None
    n_done: int = 0
    """Number of completed epochs."""
    best_epoch: int = 0
    best_ssim: float = -math.inf
    """Validation SSIM of the best epoch."""
    best_score: float = -math.inf
    """Validation score of the best epoch, in the metric of the training."""
    is_finished: bool = False
    carried: StateDict = field(default_factory=dict)
    """Content of the checkpoint besides module and optimizer: numbers, strings, tensors."""
    part: StateDict = field(default_factory=dict)
    """Steps and sums of an incomplete epoch; empty after a complete one."""

    @classmethod
    def resume(
        cls, learner: Learner[ModuleT, ConfigT], folder: Run | None, save: Save[ModuleT]
    ) -> "TrainingRun[ModuleT, ConfigT]":
        """Start a training, or restore module and optimizer from its checkpoint."""
        found = cls(learner, folder, save)
        found.is_finished = from_main(folder is not None and folder.is_finished)
        checkpoint = from_main(load_checkpoint(folder.checkpoint_path) if folder else None)
        if checkpoint is not None:
            restore(checkpoint, learner.module, learner.optimizer)
            found.n_done, facts = checkpoint["epoch"], checkpoint["facts"]
            found.best_epoch, found.best_ssim = best_of(checkpoint)
            found.best_score = facts.get("best_score", found.best_ssim)
            found.carried, found.part = facts.get("carried", {}), facts.get("part", {})
        if folder is not None and not found.is_finished:
            folder.rewind(found.n_done)
            if checkpoint is not None:
                logging.getLogger(__name__).info(f"{folder.path}: resumed {found.position}")
        return found

    @property
    def is_new(self) -> bool:
        return not self.n_done and not self.part

    @property
    def position(self) -> str:
        """The epochs and steps in the latest checkpoint, as text."""
        n_epochs = self.learner.config.training.n_epochs
        if not self.part:
            return f"after epoch {self.n_done} of {n_epochs}"
        step, n_steps = self.part["step"], self.part["n_steps"]
        return f"after update {step} of {n_steps} in epoch {self.n_done + 1} of {n_epochs}"

    @property
    def is_over(self) -> bool:
        """Whether no epoch is left, or validation has not improved for `patience` epochs."""
        training = self.learner.config.training
        patience, n_worse = training.patience, self.n_done - self.best_epoch
        is_flat = patience is not None and n_worse >= patience
        return self.n_done >= training.n_epochs or is_flat

    def log_position(self) -> None:
        """Log what is saved of a training that stops."""
        if self.folder is not None:
            is_saved = self.n_done > 0 or self.part
            where = f"saved {self.position}" if is_saved else "stopped before the first update"
            logging.getLogger(__name__).info(f"{self.folder.path}: {where}")

    def note(self, **facts: float) -> None:
        """Add facts to the provenance of the run, in the main process."""
        if self.folder is not None:
            self.folder.note(**facts)

    def keep(self, record: Record, score: float, evaluated: ModuleT, carried: StateDict) -> None:
        """Write an epoch's record, weights and checkpoint.

        The score is what the best epoch has most of.
        """
        self.n_done, self.carried, self.part = record["epoch"], carried, {}
        if score > self.best_score:
            self.best_epoch, self.best_score = self.n_done, score
            self.best_ssim = record["val_ssim"]
        if self.folder is None or self.save is None:
            return
        self.folder.log(record)
        training = self.learner.config.training
        takes_best = self.is_over and training.patience is not None
        for path, is_due in (
            (self.folder.epoch_path(self.n_done), self.n_done in training.keep_epochs),
            (self.folder.best_path, self.n_done == self.best_epoch),
            (self.folder.weights_path, self.is_over and not takes_best),
        ):
            if is_due:
                self.save(path, evaluated, self.n_done)
        if takes_best:
            with written_whole(self.folder.weights_path) as aside:
                shutil.copyfile(self.folder.best_path, aside)
        # The checkpoint comes last: files that a killed process wrote before it are written again.
        self._save_checkpoint()

    def keep_part(self, part: StateDict, carried: StateDict) -> None:
        self.carried, self.part = carried, part
        if self.folder is not None:
            self._save_checkpoint()

    def _save_checkpoint(self) -> None:
        assert self.folder is not None
        names = ("best_epoch", "best_ssim", "best_score", "carried", "part")
        facts = {name: getattr(self, name) for name in names if getattr(self, name) != {}}
        state = checkpoint_of(self.n_done, self.learner.module, self.learner.optimizer, facts)
        save_checkpoint(self.folder.checkpoint_path, state)

    def finish(self) -> None:
        if self.folder is None or self.save is None:
            return
        training = self.learner.config.training
        metric = "ssim" if isinstance(training, ReconstructorTraining) else training.metric
        self.folder.finish(
            {
                "best_epoch": self.best_epoch,
                "metric": metric,
                f"best_val_{metric_word(metric)}": self.best_score,
                "best_val_ssim": self.best_ssim,
            }
        )


class Checkpoint(TypedDict):
    """The saved state of a training."""

    epoch: int
    """Number of completed epochs."""
    model: dict[str, Tensor]
    optimizer: StateDict
    facts: JsonObject
    """Further state: numbers, strings, tensors."""


def checkpoint_of(
    epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer, facts: Mapping[str, object]
) -> Checkpoint:
    """Return the state to save, which shares memory with the model."""
    return Checkpoint(
        epoch=epoch, model=model.state_dict(), optimizer=optimizer.state_dict(), facts=dict(facts)
    )


def restore(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Restore a model and its optimizer, on their device."""
    try:
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    except Exception as error:  # a file may hold anything
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise RunError(
            f"the checkpoint of epoch {checkpoint['epoch']} does not fit the run ({reason}); "
            "delete checkpoint.pt to train from the start"
        ) from error


def best_of(checkpoint: Checkpoint) -> tuple[int, float]:
    """Return the best epoch so far and its validation SSIM."""
    epoch, ssim = (checkpoint["facts"].get(name) for name in ("best_epoch", "best_ssim"))
    if isinstance(epoch, int) and isinstance(ssim, float):
        return epoch, ssim
    raise RunError(
        f"the checkpoint of epoch {checkpoint['epoch']} does not contain the best epoch so far; "
        "delete checkpoint.pt to train from the start"
    )


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint atomically."""
    try:
        with written_whole(path) as aside:
            torch.save(dict(checkpoint), aside)
    except (OSError, RuntimeError) as error:  # torch raises the latter for a full disk
        raise RunError(
            f"cannot write {path} ({reason_of(error)}); free some disk space and run the same "
            "command again: it resumes from the last complete checkpoint"
        ) from error


def load_checkpoint(path: Path) -> Checkpoint | None:
    """Read a checkpoint to the CPU, without executing code from it; None if there is none."""
    if not (path.exists() or path.is_symlink()):
        return None
    # A link could be read, but not be replaced after the next epoch.
    if path.is_symlink() or not path.is_file():
        raise RunError(f"{path} is damaged (no plain file); delete it to train from the start")
    try:
        content = load_tensors(path)
    except Exception as error:  # a damaged pickle may raise anything
        raise RunError(
            f"{path} is damaged ({reason_of(error)}); delete it to train from the start"
        ) from error
    kinds = {"epoch": int, "model": dict, "optimizer": dict, "facts": dict}
    found = content if isinstance(content, dict) else {}
    wrong = [key for key, kind in kinds.items() if not isinstance(found.get(key), kind)]
    if wrong:
        raise RunError(
            f"{path} is no checkpoint of a training: it has no {wrong[0]!r}; delete it to train "
            "from the start"
        )
    tensors = [x for x in found["model"].values() if isinstance(x, Tensor)]
    if any(bool(x.isnan().any()) for x in tensors):
        raise RunError(f"{path} has weights that are NaN; delete it to train from the start")
    return cast(Checkpoint, content)
