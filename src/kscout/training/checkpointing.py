"""Checkpoints, replaced atomically: a kill at any moment leaves the old or the new one."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict, cast

import torch
from torch import Tensor, nn

from kscout.errors import RunError
from kscout.files import reason_of, written_whole
from kscout.json_types import JsonObject, StateDict
from kscout.pickles import load_tensors


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
