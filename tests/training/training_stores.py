"""Tiny stores of smooth blobs: enough structure to learn from, made in milliseconds."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kscout import policies
from kscout.config import PolicyConfig, read, training_of
from kscout.data.store import Store
from kscout.data.store_writer import StoreWriter
from kscout.policies.fixed import FixedOrder
from kscout.runs import Progress, RunRecord
from kscout.training.policy import train_policy
from kscout.weights import read_weights

Train = Callable[..., RunRecord]
COLUMN = {
    **{"name": "column", "width": 12, "n_heads": 2, "n_layers": 1},
    **{"channels": [8, 8], "image_channels": [8], "n_bins": 4},
}
"""A network that sees k-space, small enough for a test."""
CONV = {"name": "conv", "n_channels": 2, "n_blocks": 2, "n_hidden": 8}
"""The paper's, as small."""
POSTERIOR = {"name": "posterior", "n_channels": 2, "n_pools": 1, "n_draws": 2}
SHORT = {
    **{"n_epochs": 1, "batch_size": 4, "seed": 3, "n_trajectories": 2, "n_best": 2, "n_random": 2},
    **{"n_baseline_slices": 4, "n_searches": 3, "n_episodes": 5, "n_updates": 2, "n_repeats": 0},
    **{"n_validated": 2},
}
"""Settings of a short training; an estimator takes those that it has."""
_FILES: list[TemporaryDirectory[str]] = []


@cache
def ensemble_of_orders(n_cols: int = 16) -> dict[str, Any]:
    """Return a policy of two orders, whose files last as long as the tests do."""
    _FILES.append(TemporaryDirectory())
    orders = [4, 10, 12, 3, 5], [10, 11, 4, 2, 1]
    return {"name": "ensemble", "members": saved_orders(_FILES[-1].name, orders, n_cols)}


def saved_orders(folder: Path | str, orders: Sequence[list[int]], n_cols: int = 16) -> list[str]:
    """Write policies of fixed orders, and return the files."""
    paths = [f"{folder}/{number}.safetensors" for number in range(len(orders))]
    for path, order in zip(paths, orders, strict=True):
        policies.save(path, FixedOrder(n_cols=n_cols, order=order))
    return paths


def blob_store(path: Path, *, n_rows: int = 20, n_cols: int = 24, n_train: int = 11) -> Store:
    """Write a store with `n_train` training slices in two volumes, five to validate on."""
    random = np.random.default_rng(0)
    rows, cols = np.mgrid[0 : 1 : n_rows * 1j, 0 : 1 : n_cols * 1j]

    def images(n_slices: int) -> np.ndarray:
        found = np.zeros((n_slices, n_rows, n_cols))
        for image in found:
            for _ in range(4):
                row, col, width = random.uniform(0.2, 0.8, 3)
                image += np.exp(-((rows - row) ** 2 + (cols - col) ** 2) / (width / 5) ** 2)
        return found.astype(np.float32)

    with StoreWriter(path, {"made by": "tests"}) as writer:
        writer.append("train", "a", images(n_train - 4))
        writer.append("train", "b", images(4))
        writer.append("val", "c", images(5))
        return writer.finish()


def short_config(
    method: str, acquisition: dict[str, Any], n_cols: int = 16, **training: object
) -> PolicyConfig:
    """Return the settings of a training of seconds by any estimator."""
    names = {item.name for item in fields(training_of(method))}
    short = {name: value for name, value in SHORT.items() if name in names}
    networks = {
        **{"posterior": POSTERIOR, "ensemble": ensemble_of_orders(n_cols)},
        **{"alphazero": {**CONV, "name": "alphazero"}},
    }
    return read(
        PolicyConfig,
        {
            "policy": networks.get(method, CONV),
            "acquisition": {"horizon": 2, **acquisition},
            "training": {"method": method, **short, **training},
        },
    )


def small_config(policy: dict[str, Any], training: dict[str, Any]) -> PolicyConfig:
    """Return settings for three of the columns that a small store has."""
    acquisition = {"n_initial": 2, "horizon": 3}
    return read(PolicyConfig, {"policy": policy, "acquisition": acquisition, "training": training})


def dense_config(policy: dict[str, Any] = COLUMN, **changes: object) -> PolicyConfig:
    """Return a short training by dense gains."""
    training = {
        **{"method": "dense", "n_epochs": 2, "batch_size": 4, "n_best": 2, "n_random": 3},
        **{"n_baseline_slices": 4, "n_warm": 2, "n_repeats": 0, "seed": 3},
    }
    return small_config(policy, {**training, **changes})


def weights(run: Path) -> dict[str, Tensor]:
    """Return the weights that a run ended with."""
    return read_weights(run / "weights.safetensors").state


def train_whole_and_cut(
    config: PolicyConfig,
    store: Store,
    folder: Path,
    *,
    epoch: int,
    step: int = 1,
    start: Path | None = None,
) -> Path:
    """Train in one go, and in two, stopped at a step; both end with the same weights.

    Args:
        config: settings of both.
        store: what they learn from.
        folder: where both write.
        epoch: in which the second is stopped.
        step: likewise.
        start: a trained policy that both begin from.

    Returns:
        the run that was stopped, in `folder / "cut"`; the other is in `folder / "whole"`.
    """
    whole, cut = folder / "whole", folder / "cut"
    how: dict[str, Any] = {"start": start, "device": "cpu"}
    train_policy(config, store, "zero-filled", whole, **how)
    with pytest.raises(KeyboardInterrupt):
        train_policy(config, store, "zero-filled", cut, **how, on_step=stopping_at(epoch, step))
    taken: list[Progress] = []
    train_policy(config, store, "zero-filled", cut, **how, on_step=taken.append)
    check_continued(taken[0], epoch, step)
    expected, found = weights(whole), weights(cut)
    assert all(torch.equal(expected[key], found[key]) for key in expected)
    return cut


def stopping_at(epoch: int, step: int) -> Callable[[Progress], None]:
    """Return an `on_step` callback that interrupts a training."""

    def stop(progress: Progress) -> None:
        if (progress.epoch, progress.step) == (epoch, step) and not progress.record:
            raise KeyboardInterrupt

    return stop


def check_continued(first: Progress, epoch: int, step: int) -> None:
    """Check that a resumed training repeats no step."""
    is_complete = step == first.n_steps
    assert (first.epoch, first.step) == (epoch, step if is_complete else step + 1)
    assert bool(first.record) is is_complete


def store_without_val(path: Path) -> Store:
    """Write a store of training slices alone, as an import of one volume does."""
    with StoreWriter(path, {"made by": "tests"}) as writer:
        writer.append("train", "a", np.eye(16, dtype=np.float32)[None])
        return writer.finish()


def run_command(arguments: list[str]) -> None:
    """Run `kscout train` in this process, on one thread and silently: a target to be killed."""
    import os
    from contextlib import redirect_stderr, redirect_stdout

    import torch

    from kscout.apps.cli.train import app

    torch.set_num_threads(1)
    with Path(os.devnull).open("w") as silence, redirect_stdout(silence), redirect_stderr(silence):
        app(arguments, standalone_mode=False)
