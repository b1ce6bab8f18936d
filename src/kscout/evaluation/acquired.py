"""`kscout.acquire`: the acquisitions of one policy, for notebooks."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from kscout.acquisition.loop import NOT_ACQUIRED, Trajectory
from kscout.columns import columns_text
from kscout.compatibility import warn
from kscout.core import Reconstructor
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.evaluation.records.results import data_frame
from kscout.evaluation.request import setting_of
from kscout.evaluation.running.prepare import PolicySource, labeled_policies, prepare
from kscout.exports import lazily
from kscout.figures.series import Curve

with lazily():
    from matplotlib.figure import Figure

    from kscout.figures.curves import draw_ssim_by_step


@final
@dataclass(frozen=True, repr=False)
class Acquisitions:
    """The acquisitions of one policy, in the order of the slices."""

    policy: str
    start: int
    """Columns measured at the start."""
    trajectory: Trajectory
    """Columns and metrics: `[slice, trajectory, ...]`; images:
    `[moment, slice, trajectory, row, col]`."""
    volumes: tuple[str, ...]
    slices: tuple[int, ...]

    def __repr__(self) -> str:
        ssim, (n_slices, n_trajectories, n_columns) = (
            self.trajectory.ssim,
            self.trajectory.columns.shape,
        )
        each = "" if n_trajectories == 1 else f", {n_trajectories} trajectories each"
        return (
            f"Acquisitions({self.policy}: {n_slices} slices{each}, {self.start} + {n_columns} "
            f"columns, SSIM {float(ssim[..., 0].mean()):.4f} to {float(ssim[..., -1].mean()):.4f})"
        )

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas is optional
        """Return a `pandas.DataFrame` with one row per slice, trajectory and step.

        Step 0 is the start, which acquires no column.
        """
        trajectory = self.trajectory
        shape = tuple(trajectory.ssim.shape)
        columns = torch.full(shape, NOT_ACQUIRED)
        columns[..., 1:] = trajectory.columns.cpu()
        rows, trajectories, steps = (x.ravel() for x in np.indices(shape))
        return data_frame(
            {
                "policy": [self.policy] * rows.size,
                "volume": np.array(self.volumes)[rows],
                "slice": np.array(self.slices)[rows],
                "trajectory": trajectories,
                "step": steps,
                "column": columns.numpy().ravel(),
                "ssim": trajectory.ssim.cpu().numpy().ravel(),
                "psnr": trajectory.psnr.cpu().numpy().ravel(),
                "nmse": trajectory.nmse.cpu().numpy().ravel(),
            }
        )

    def plot(self) -> Figure:
        """Return a matplotlib figure of the mean SSIM by step."""
        mean = self.trajectory.ssim.mean(dim=(0, 1)).cpu().numpy()
        return draw_ssim_by_step([Curve(self.policy, np.arange(len(mean), dtype=float), mean)])


def acquire(
    policy: PolicySource,
    slices: SliceSet,
    reconstructor: Reconstructor | Path | str,
    *,
    start: int | Sequence[int] = 16,
    budget: int = 32,
    images: bool = False,
    **settings: Any,  # noqa: ANN401 - fields of a dataclass
) -> Acquisitions:
    """Acquire slices with a policy, one column at a time, from a start to a budget.

    Args:
        policy: a policy, a name, a run folder or a weights file, as for `kscout.evaluate`.
        slices: the slices, e.g. `Store.open(path).split("test").sample(8)`.
        reconstructor: a reconstructor, or a source for `kscout.reconstruction.load`.
        start: number of central columns that are measured first, or a list of columns; 16 by
            default, also for policies that were trained for another start.
        budget: columns measured in total, the start included.
        images: whether to keep the reconstruction after each column.
        settings: further fields of `kscout.evaluation.EvaluationSetting`, e.g. `trajectories`,
            `argmax`, `protocol` or `device`; by default there is one trajectory per slice.
    """
    n_start = start if isinstance(start, int) else len(start)
    taken = {"n_initial", "initial", "steps", "columns_per_step"}
    if known := taken & settings.keys():
        raise ConfigError(
            f"acquire has no {min(known)}; give start and budget, and use kscout.evaluate for "
            "other acquisitions"
        )
    first = {"n_initial": start} if isinstance(start, int) else {"initial": columns_text(start)}
    values = {"trajectories": 1, **settings, **first, "steps": budget - n_start}
    setting = setting_of(values, "start", "budget", "images")
    ready = prepare(labeled_policies([policy]), slices, reconstructor, setting)
    warn(ready.notes)
    entry = ready.fit(ready.entries[0])
    parts = [part for _, part in ready.trajectories(entry, keep_images=images)]
    return Acquisitions(
        entry.name, n_start, _joined(parts), ready.slices.volumes, ready.slices.slices
    )


def _joined(parts: Sequence[Trajectory]) -> Trajectory:
    """Return the trajectories of several batches in one."""
    by_batch = ("probabilities", "images")

    def values(name: str) -> Tensor | None:
        tensors = [x for part in parts if (x := getattr(part, name)) is not None]
        if not tensors:
            return None
        # Probabilities and images start with the axis of steps.
        return torch.cat(tensors, dim=1 if name in by_batch else 0)

    joined = {item.name: values(item.name) for item in fields(Trajectory)}
    return replace(parts[0], **joined)  # type: ignore[arg-type]
