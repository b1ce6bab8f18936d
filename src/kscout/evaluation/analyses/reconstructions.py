"""Reconstructions compared on held-out slices under the same random masks: scores and pictures."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, final

import numpy as np
from jaxtyping import Bool, Float, Float64

from kscout.config.bounds import AtLeast, Between
from kscout.errors import ConfigError, DataError
from kscout.evaluation.analyses.analysis import Analysis, Page, Split, grouped
from kscout.evaluation.progress import OnStep, Step
from kscout.evaluation.records.acquisitions import (
    PolicySteps,
    SliceRecord,
    load_acquisition,
    save_acquisition,
)
from kscout.evaluation.records.run_names import split_label
from kscout.evaluation.statistics import IN_BRACKETS, NO_INTERVALS, confidence_interval
from kscout.exports import lazily
from kscout.figures.blocks import Block, Drawing, Prose
from kscout.figures.tables import Cell, Column, Measured, Row, Table
from kscout.names import Protocol

with lazily():
    import torch
    from matplotlib.figure import Figure
    from torch import Tensor

    from kscout import reconstruction
    from kscout.compatibility import Use, network_notes, warn
    from kscout.core import Reconstructor, SliceBatch
    from kscout.data.slices import SliceSet
    from kscout.data.store import Store
    from kscout.device import resolve_device
    from kscout.evaluation.running.trajectories import choose_slices
    from kscout.figures.pictures import draw_reconstructions
    from kscout.metrics import nmse, psnr, ssim
    from kscout.training.augmentation import MaskDistribution

_PICTURES = "reconstructions-*.npz"
_BATCH_SIZE = 16


@final
@dataclass(frozen=True)
class ReconstructionRow:
    """Scores of one reconstruction at one acceleration: means over slices."""

    reconstruction: str
    acceleration: float
    n_center: int
    """Columns around the center that are always measured."""
    n_slices: int
    n_volumes: int
    protocol: str
    ssim: float
    ssim_low: float | None
    """The ends of the 95 % interval over volumes; None with fewer than three."""
    ssim_high: float | None
    psnr: float
    nmse: float
    trained_for: str | None = None
    """Protocol of its training if that is the other one."""

    @property
    def interval(self) -> tuple[float, float] | None:
        low, high = self.ssim_low, self.ssim_high
        return None if low is None or high is None else (low, high)


@final
@dataclass(frozen=True)
class ReconstructionComparison:
    """Scores of all reconstructions at all accelerations, and slices of each in pictures."""

    rows: list[ReconstructionRow]
    pictures: list[SliceRecord]
    """One slice under one mask each, the columns of which are its start."""


def compare_reconstructions(
    methods: Mapping[str, Reconstructor | Path | str],
    slices: SliceSet,
    accelerations: Sequence[float],
    *,
    center_fraction: float,
    protocol: Protocol | None = None,
    shows_all: bool = False,
    on_step: OnStep | None = None,
) -> ReconstructionComparison:
    """Reconstruct slices under random masks, one per volume and the same for every method.

    `center_fraction` is the share of the columns that are always measured, around the center; each
    acceleration must leave at least these. The protocol is by default that of the training. There
    are pictures of the slice with the median SSIM of the last method, at each acceleration, or with
    `shows_all` of all slices.
    """
    _check_centers(slices.n_cols, accelerations, center_fraction)
    networks = {name: _opened(method).to(slices.device).eval() for name, method in methods.items()}
    protocol = shared_protocol(networks, protocol)
    slices.check_protocol(protocol)
    use = Use(slices.shape, protocol=protocol)
    for name, network in networks.items():
        warn(f"{name}: {note}" for note in network_notes(network, use))
    rows, pictures, n_center = [], [], round(slices.n_cols * center_fraction)
    for acceleration in accelerations:
        masking = MaskDistribution(slices.n_cols, [acceleration], [center_fraction])
        masks = masking.of_volumes(slices.volumes).to(slices.device) & slices.selectable
        slices.check_start(n_center)
        shown = list(range(len(slices)))
        for name, network in networks.items():
            values = _values(network, slices, masks, protocol)
            row = _row(name, acceleration, n_center, values, slices, protocol)
            trained_for = None if network.protocol == protocol else network.protocol
            rows.append(replace(row, trained_for=trained_for))
            if not shows_all:
                shown = [int(values[:, 0].argsort(kind="stable")[len(slices) // 2])]
            if on_step is not None:
                on_step(Step(f"{name} at {acceleration:g}x", len(slices), len(slices)))
        pictures += [_picture(networks, slices, masks, i, protocol, acceleration) for i in shown]
    return ReconstructionComparison(rows, pictures)


def shared_protocol(
    networks: Mapping[str, Reconstructor], chosen: Protocol | None = None
) -> Protocol:
    """Return the protocol of a comparison, as `Reconstructor.protocol_for`."""
    trained = {name: x.protocol_for(chosen) for name, x in networks.items() if x.protocol}
    if len(set(trained.values())) > 1:
        words = ", ".join(f"{name} for {protocol}" for name, protocol in trained.items())
        raise ConfigError(
            f"the reconstructions were trained for different protocols ({words}), whose scores "
            "must not be compared; name reconstructions for one protocol, or choose one by "
            "--protocol"
        )
    shared: Protocol = next(iter(trained.values()), "blind")
    return chosen or shared


def _check_centers(n_cols: int, accelerations: Sequence[float], fraction: float) -> None:
    """Raise an error for an acceleration that leaves fewer columns than are always measured."""
    n_center = round(n_cols * fraction)
    for acceleration in accelerations:
        # At 8x an eighth fits, also if it is rounded up.
        if n_cols / acceleration >= min(n_center, n_cols * fraction) - 1e-6:
            continue
        most = math.floor(10_000 * math.floor(n_cols / acceleration) / n_cols) / 10_000
        fits = f"give --center-fraction {most:g} or less, or " if most else ""
        raise ConfigError(
            f"{acceleration:g}x leaves {n_cols / acceleration:.3g} of {n_cols} columns, and the "
            f"{n_center} around the center are always measured; {fits}"
            f"{'' if fits else 'give '}an --acceleration of {n_cols / n_center:.3g} or less"
        )


def _opened(method: Reconstructor | Path | str) -> Reconstructor:
    return method if isinstance(method, Reconstructor) else reconstruction.load(method)


def _values(
    network: Reconstructor, slices: SliceSet, masks: Bool[Tensor, "slice col"], protocol: Protocol
) -> Float64[np.ndarray, "slice 3"]:
    values, n_done = [], 0
    for batch in slices.batches(_BATCH_SIZE):
        _, scores = _scored(network, batch, masks[n_done : n_done + len(batch)], protocol)
        values.append(scores.double().cpu().numpy())
        n_done += len(batch)
    return np.concatenate(values)


def _scored(
    network: Reconstructor, batch: SliceBatch, masks: Bool[Tensor, "slice col"], protocol: Protocol
) -> tuple[Float[Tensor, "slice row col"], Float[Tensor, "slice 3"]]:
    """Return images in the target's units, with SSIM, PSNR and NMSE."""
    with torch.no_grad():
        image = batch.unnormalized(network(batch.kspace, masks), protocol)
        scores = [
            metric(image, batch.target, data_range=batch.data_range)
            for metric in (ssim, psnr, nmse)
        ]
    return image, torch.stack(scores, dim=-1)


def _row(
    name: str,
    acceleration: float,
    n_center: int,
    values: Float64[np.ndarray, "slice 3"],
    slices: SliceSet,
    protocol: Protocol,
) -> ReconstructionRow:
    low, high = confidence_interval(values[:, 0], slices.volumes) or (None, None)
    n_volumes = len(set(slices.volumes))
    where = (name, float(acceleration), n_center, len(slices), n_volumes, protocol)
    mean_ssim, mean_psnr, mean_nmse = values.mean(axis=0).tolist()
    return ReconstructionRow(*where, mean_ssim, low, high, mean_psnr, mean_nmse)


def _picture(
    networks: Mapping[str, Reconstructor],
    slices: SliceSet,
    masks: Bool[Tensor, "slice col"],
    index: int,
    protocol: Protocol,
    acceleration: float,
) -> SliceRecord:
    batch, mask, shown = slices.batch(torch.tensor([index])), masks[index : index + 1], []
    for name, network in networks.items():
        image, scores = _scored(network, batch, mask, protocol)
        shown.append(PolicySteps(name, image.float().cpu().numpy(), scores[:, 0].cpu().numpy(), ()))
    start = tuple(mask[0].nonzero()[:, 0].tolist())
    title = f"{slices.volumes[index]}, slice {slices.slices[index]}, at {acceleration:g}×"
    return SliceRecord(batch.target[0].float().cpu().numpy(), start, tuple(shown), title)


@final
@dataclass(frozen=True, kw_only=True)
class Reconstructions(Analysis[ReconstructionRow]):
    """Compare reconstructions on the same slices and masks, with error maps side by side.

    Masks are random around the center, one per volume. Without --slice all slices are scored, and
    the one with the median SSIM is shown.

    Example: kscout analyze reconstructions zero-filled total-variation runs/unet
    --data stores/knee --slice 3 --acceleration 4 --out analyses
    """

    reads = "reconstructions"
    file = "reconstructions"
    title = "Reconstructions"
    row = ReconstructionRow
    required = ("data",)

    data: Path | None = None
    """Dataset."""
    split: Split = "test"
    """Split to use: train, val or test."""
    slice: tuple[str, ...] = ()
    """Position or VOLUME:NUMBER, scored and shown; repeatable. (default: all)"""
    limit: int | None = None
    """Largest number of slices, spread evenly over the split. (default: all)"""
    acceleration: tuple[Annotated[float, AtLeast(1)], ...] = (4.0, 8.0)
    """All columns divided by measured columns; repeatable. If the center uses all of them, as at 8
    with a fraction of 0.125, no column is random."""
    center_fraction: Annotated[float, Between(0, 1)] = 0.125
    """Fraction of the columns that is always measured, in the center."""
    n_initial: Annotated[int | None, AtLeast(0)] = None
    """Number of central columns, instead of acceleration and fraction."""
    steps: Annotated[int | None, AtLeast(0)] = None
    """Random columns in addition to --n-initial, on average over volumes."""
    protocol: Protocol | None = None
    """paper or blind. (default: as the reconstructions were trained, else blind)"""
    device: str = "auto"
    """auto, cpu or cuda."""

    def compute(
        self, sources: Sequence[str], *, out: Path, on_step: OnStep | None = None
    ) -> list[ReconstructionRow]:
        if self.data is None:
            raise ConfigError("reconstructions are compared on slices; give --data")
        slices = Store.open(str(self.data)).split(self.split).sample(self.limit)
        slices = choose_slices(slices, self.slice) if self.slice else slices
        accelerations, fraction = self._masks(slices.n_cols)
        comparison = compare_reconstructions(
            named_reconstructions(sources),
            slices.to(str(resolve_device(self.device))),
            accelerations,
            center_fraction=fraction,
            protocol=self.protocol,
            shows_all=bool(self.slice),
            on_step=on_step,
        )
        for old in out.glob(_PICTURES):
            old.unlink()
        for number, picture in enumerate(comparison.pictures, start=1):
            save_acquisition(picture, out / f"reconstructions-{number:02d}.npz")
        return comparison.rows

    def _masks(self, n_cols: int) -> tuple[tuple[float, ...], float]:
        """Return accelerations and the share of the columns that are always measured."""
        if self.n_initial is None and self.steps is None:
            return self.acceleration, self.center_fraction
        n_initial, steps = self.n_initial or 0, self.steps or 0
        if not 0 < n_initial + steps <= n_cols:
            raise ConfigError(
                f"{n_initial} + {steps} columns do not fit images of {n_cols}; lower --n-initial "
                "or --steps"
            )
        return (n_cols / (n_initial + steps),), n_initial / n_cols

    def figures(self, rows: Sequence[ReconstructionRow], folder: Path) -> dict[str, Figure]:
        return {
            f"{self.file}-{n:02d}": _draw(picture) for n, picture in enumerate(_pictures(folder), 1)
        }

    @classmethod
    def blocks(cls, rows: Sequence[ReconstructionRow], page: Page, folder: Path) -> list[Block]:
        drawings = [
            Drawing(
                _draw(picture),
                f"reconstructions-{number}",
                f"{picture.title}: {len(picture.start_columns)} of {picture.target.shape[1]} "
                "columns are measured, the same for all. Above: images in the target's gray scale. "
                "Below: absolute errors on one scale.",
                is_wide=True,
            )
            for number, picture in enumerate(_pictures(folder), start=1)
        ]
        return [Prose(best_by_acceleration(rows)), reconstruction_table(rows), *drawings]


def named_reconstructions(sources: Sequence[str]) -> dict[str, str]:
    """Return names and paths by label: `LABEL=NAME`, a name, or the last part of a path."""
    labels: dict[str, str] = {}
    for text in sources:
        label, name = split_label(text)
        label = Path(text).name if label is None else label
        if label in labels:
            raise ConfigError(f"two reconstructions are called {label!r}; give LABEL=PATH")
        labels[label] = str(name)
    if not labels:
        raise ConfigError("no reconstruction to compare; name e.g. zero-filled and a run folder")
    return labels


def _pictures(folder: Path) -> list[SliceRecord]:
    return [load_acquisition(path) for path in sorted(folder.glob(_PICTURES))]


def _draw(shown: SliceRecord) -> Figure:
    if shown.start_columns and max(shown.start_columns) >= shown.target.shape[1]:
        raise DataError(f"{shown.title} has columns outside its image; run the analysis again")
    mask = np.isin(np.arange(shown.target.shape[1]), shown.start_columns)
    return draw_reconstructions(
        shown.target,
        {x.name: x.images[-1] for x in shown.policies},
        ssim={x.name: float(x.ssim[-1]) for x in shown.policies},
        masks={x.name: mask for x in shown.policies},
    )


def reconstruction_table(rows: Sequence[ReconstructionRow]) -> Table:
    """Return one row per reconstruction and three columns per acceleration."""
    accelerations = sorted({row.acceleration for row in rows})
    columns = [Column("reconstruction")]
    for at in accelerations:
        columns += [
            Column(f"SSIM at {at:.3g}×", best="max"),
            Column(f"PSNR at {at:.3g}× (dB)", digits=2, best="max"),
            Column(f"NMSE at {at:.3g}×", best="min"),
        ]
    lines = []
    for name, group in grouped(rows, lambda row: row.reconstruction).items():
        by_acceleration = {row.acceleration: row for row in group}
        cells: list[Cell] = [name]
        for at in accelerations:
            row = by_acceleration.get(at)
            cells += [None] * 3 if row is None else _cells(row)
        lines.append(Row(tuple(cells)))
    first = rows[0]
    others = {row.reconstruction: row.trained_for for row in rows if row.trained_for}
    trained = "".join(f" {name} was trained for protocol {x}." for name, x in others.items())
    note = (
        f"Means over {first.n_slices} slices of {first.n_volumes} volumes, protocol "
        f"{first.protocol}. Masks are random around the central {first.n_center} columns, one per "
        "volume and the same for every reconstruction. "
        f"{IN_BRACKETS if first.interval else NO_INTERVALS} "
        f"The best value of each column is marked.{trained}"
    )
    return Table("Reconstructions", tuple(columns), tuple(lines), note, "reconstructions")


def _cells(row: ReconstructionRow) -> list[Cell]:
    return [Measured(row.ssim, None, row.interval), Measured(row.psnr), Measured(row.nmse)]


def best_by_acceleration(rows: Sequence[ReconstructionRow]) -> str:
    """Return a sentence with the best reconstruction at each acceleration, by SSIM and PSNR."""
    parts = []
    for acceleration, group in sorted(grouped(rows, lambda row: row.acceleration).items()):
        best, *rest = sorted(group, key=lambda row: -row.ssim)
        text = f"at {acceleration:.3g}× **{best.reconstruction}** is best with SSIM {best.ssim:.4f}"
        if rest:
            text += f", {best.ssim - rest[0].ssim:.4f} above {rest[0].reconstruction}"
        top = max(group, key=lambda row: row.psnr)
        if top is not best:
            text += f" (by PSNR {top.reconstruction}, {top.psnr:.1f} against {best.psnr:.1f} dB)"
        parts.append(text)
    sentence = "; ".join(parts)
    return f"{sentence[:1].upper()}{sentence[1:]}."
