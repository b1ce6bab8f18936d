"""A page backend with a dataset of two tiny volumes."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from kscout.apps.serve.page.backend import PageBackend
from kscout.apps.serve.service import ServeSettings
from kscout.data.store_writer import StoreWriter

N_ROWS, N_COLS = 18, 16


def blobs(n_slices: int, n_rows: int = N_ROWS, n_cols: int = N_COLS) -> np.ndarray:
    """Return smooth images with a little noise."""
    rows, cols = np.linspace(-1, 1, n_rows)[:, None], np.linspace(-1, 1, n_cols)
    noise = np.random.default_rng(0).random((n_slices, n_rows, n_cols))
    places = np.linspace(-0.4, 0.4, n_slices)[:, None, None]
    return (np.exp(-4 * ((rows - places) ** 2 + cols**2)) + 0.1 * noise).astype(np.float32)


def write_store(folder: Path, n_rows: int = N_ROWS, n_cols: int = N_COLS) -> Path:
    with StoreWriter(folder / "store", {"made": "by hand"}) as writer:
        images = blobs(5, n_rows, n_cols)
        writer.append("train", "c", images[:1])
        writer.append("test", "a", images[:3], slices=[4, 5, 6])
        writer.append("test", "b", images[3:])
        writer.finish()
    return folder / "store"


def make_backend(data: Path | None = None, **changes: Any) -> PageBackend:
    networks = ("zero-filled", "zero-filled-weighted")
    shown = {"reconstructor": networks, "policy": ("center-out", "random"), "data": data}
    return PageBackend(ServeSettings(**{**shown, **changes}), device=torch.device("cpu"))
