"""Several reconstructions of the same slices and masks: scores, and pictures side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, final

import numpy as np

from kscout.config.bounds import AtLeast, Between
from kscout.errors import ConfigError, DataError
from kscout.evaluation.analyses.analysis import Analysis, Page, Split, grouped
from kscout.evaluation.progress import OnStep
from kscout.evaluation.records.acquisitions import Acquisition, load_acquisition, save_acquisition
from kscout.evaluation.records.reconstruction_row import ReconstructionRow
from kscout.evaluation.statistics import IN_BRACKETS, NO_INTERVALS
from kscout.figures.blocks import Block, Drawing, Prose
from kscout.figures.tables import Cell, Column, Measured, Row, Table
from kscout.names import Protocol

_PICTURES = "reconstructions-*.npz"


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
    """Store of slices."""
    split: Split = "test"
    """train, val or test."""
    slice: tuple[str, ...] = ()
    """Position or VOLUME:NUMBER, scored and shown; repeatable. (default: all)"""
    limit: int | None = None
    """Largest number of slices, spread over the split."""
    acceleration: tuple[Annotated[float, AtLeast(1)], ...] = (4.0, 8.0)
    """Columns over measured columns; repeatable. Where the center fills it, as at 8 with a fraction
    of 0.125, nothing is random."""
    center_fraction: Annotated[float, Between(0, 1)] = 0.125
    """Of the columns that are always measured."""
    n_initial: Annotated[int | None, AtLeast(0)] = None
    """Central columns, with --steps random ones on average over volumes, in place of acceleration
    and fraction."""
    steps: Annotated[int | None, AtLeast(0)] = None
    """See --n-initial."""
    protocol: Protocol | None = None
    """paper or blind. (default: as the reconstructions were trained, else blind)"""
    device: str = "auto"
    """auto, cpu or cuda."""

    def compute(
        self, given: Sequence[str], *, out: Path, on_step: OnStep | None = None
    ) -> list[ReconstructionRow]:
        """Run each reconstruction over the slices, and keep pictures beside the table."""
        from kscout.data.store import Store
        from kscout.device import resolve_device
        from kscout.evaluation.reconstructions import compare_reconstructions
        from kscout.evaluation.running.trajectories import choose_slices

        if self.data is None:
            raise ConfigError("reconstructions are compared on slices; give --data")
        whole = Store.open(str(self.data)).split(self.split).sample(self.limit)
        slices = choose_slices(whole, self.slice) if self.slice else whole
        accelerations, fraction = self._masks(slices.n_cols)
        found = compare_reconstructions(
            named_reconstructions(given),
            slices.to(str(resolve_device(self.device))),
            accelerations,
            center_fraction=fraction,
            protocol=self.protocol,
            shows_all=bool(self.slice),
            on_step=on_step,
        )
        for old in out.glob(_PICTURES):
            old.unlink()
        for number, picture in enumerate(found.pictures, start=1):
            save_acquisition(picture, out / f"reconstructions-{number:02d}.npz")
        return found.rows

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

    def figures(self, rows: Sequence[ReconstructionRow], folder: Path) -> dict[str, Any]:
        """Draw each kept slice: images and error maps side by side."""
        return {f"{self.file}-{n:02d}": _draw(one) for n, one in enumerate(_pictures(folder), 1)}

    @classmethod
    def blocks(cls, rows: Sequence[ReconstructionRow], page: Page, folder: Path) -> list[Block]:
        """Return the table and, below, pictures side by side with their errors."""
        drawings = [
            Drawing(
                _draw(one),
                f"reconstructions-{number}",
                f"{one.title}: {len(one.start_columns)} of {one.target.shape[1]} columns are "
                "measured, the same for all. Above: images in the target's gray scale. Below: "
                "absolute errors on one scale.",
                is_wide=True,
            )
            for number, one in enumerate(_pictures(folder), start=1)
        ]
        return [Prose(tell_best(rows)), reconstruction_table(rows), *drawings]


def named_reconstructions(given: Sequence[str]) -> dict[str, str]:
    """Return what was asked for by its label: `LABEL=NAME`, a name, or the last part of a path."""
    found: dict[str, str] = {}
    for text in given:
        label, equals, name = text.partition("=")
        if not equals or Path(text).exists():
            label, name = Path(text).name, text
        if label in found:
            raise ConfigError(f"two reconstructions are called {label!r}; give LABEL=PATH")
        found[label] = name
    if not found:
        raise ConfigError("no reconstruction to compare; name e.g. zero-filled and a run folder")
    return found


def _pictures(folder: Path) -> list[Acquisition]:
    return [load_acquisition(path) for path in sorted(folder.glob(_PICTURES))]


def _draw(shown: Acquisition) -> Any:  # noqa: ANN401 - a matplotlib figure
    from kscout.figures.pictures import draw_reconstructions

    if shown.start_columns and max(shown.start_columns) >= shown.target.shape[1]:
        raise DataError(f"{shown.title} has columns outside its image; compare anew")
    mask = np.isin(np.arange(shown.target.shape[1]), shown.start_columns)
    return draw_reconstructions(
        shown.target,
        {one.name: one.images[-1] for one in shown.policies},
        ssim={one.name: float(one.ssim[-1]) for one in shown.policies},
        masks={one.name: mask for one in shown.policies},
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
    for name, own in grouped(rows, lambda row: row.reconstruction).items():
        by_acceleration = {row.acceleration: row for row in own}
        cells: list[Cell] = [name]
        for at in accelerations:
            one = by_acceleration.get(at)
            cells += [None] * 3 if one is None else _cells(one)
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


def tell_best(rows: Sequence[ReconstructionRow]) -> str:
    """Name the best reconstruction at each acceleration, and where PSNR says otherwise."""
    parts = []
    for at, own in sorted(grouped(rows, lambda row: row.acceleration).items()):
        best, *rest = sorted(own, key=lambda row: -row.ssim)
        told = f"at {at:.3g}× **{best.reconstruction}** is best with SSIM {best.ssim:.4f}"
        if rest:
            told += f", {best.ssim - rest[0].ssim:.4f} above {rest[0].reconstruction}"
        loud = max(own, key=lambda row: row.psnr)
        if loud is not best:
            told += f" (by PSNR {loud.reconstruction}, {loud.psnr:.1f} against {best.psnr:.1f} dB)"
        parts.append(told)
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."
