"""Signal-to-noise ratio of gradient estimates at kept checkpoints of training."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, final

from kscout.evaluation.analyses.analysis import Analysis, Page, Split, grouped
from kscout.evaluation.paper_numbers import ARXIV, NOT_SHOWN, SNR, SNR_EPOCHS, method_of
from kscout.evaluation.progress import OnStep, Step
from kscout.figures.blocks import Block, Drawing
from kscout.figures.series import Curve
from kscout.figures.tables import Cell, Column, Measured, Row, Table, measured
from kscout.names import Protocol


@final
@dataclass(frozen=True)
class SnrRow:
    """The ratio of one run at one epoch by both formulas, mean and deviation over passes."""

    policy: str
    seed: int
    epoch: int
    n_passes: int
    n_batches: int
    snr_paper: float | None
    std_paper: float | None
    snr_reference: float | None
    std_reference: float | None


@final
@dataclass(frozen=True, kw_only=True)
class Snr(Analysis[SnrRow]):
    """Signal-to-noise ratio of gradients at kept epochs; stop it, run it again, it goes on.

    Example: kscout analyze snr runs/greedy-seed0 runs/ngreedy-seed0 --data stores/knee
    --reconstructor runs/unet --out analyses
    """

    reads = "runs"
    file = "snr"
    title = "Gradient noise"
    row = SnrRow
    required = ("data", "reconstructor")
    # Here the number of slices at once decides a gradient.
    free = frozenset({"device", "formula"})
    one_seed = True

    data: Path | None = None
    """Store of slices."""
    reconstructor: str | None = None
    """As for `evaluate`."""
    split: Split = "train"
    """The paper uses training data."""
    epoch: tuple[int, ...] = ()
    """Checkpoints. (default: all that are kept)"""
    trajectories: int = 16
    """q (paper: 16)."""
    batch_size: int = 16
    """Slices per gradient (paper: 16)."""
    passes: int = 3
    """Passes over the data (paper: 3)."""
    seed: int = 0
    """Of order and draws."""
    protocol: Protocol = "paper"
    """paper or blind."""
    formula: Literal["paper", "reference"] = "paper"
    """The one that is drawn; both are written."""
    limit: int | None = None
    """Only so many slices, spread over the split."""
    device: str = "auto"
    """auto, cpu or cuda."""

    def compute(
        self, given: Sequence[str], *, out: Path, on_step: OnStep | None = None
    ) -> list[SnrRow]:
        """Measure the runs, each with a record of finished passes of its own in `out`."""
        from kscout import reconstruction
        from kscout.data.store import Store
        from kscout.device import resolve_device
        from kscout.evaluation.gradient_noise import noise_table
        from kscout.evaluation.policy_noise import NoiseSetting, measure_run
        from kscout.evaluation.run_names import named_runs

        device = resolve_device(self.device)
        whole = Store.open(str(self.data)).split(self.split)
        slices = whole.sample(self.limit).to(device)
        network = reconstruction.load(str(self.reconstructor), device=device)
        setting = NoiseSetting(
            self.trajectories, self.batch_size, self.passes, self.seed, self.protocol
        )
        rows = []
        for name, run in named_runs([Path(one) for one in given]):
            seed = int(run.config["training"]["seed"])
            records = measure_run(
                run.path,
                slices,
                network,
                setting,
                record=out / f"snr-{re.sub('[/, ]+', '-', name)}-seed{seed}.jsonl",
                epochs=self.epoch or None,
                on_step=_named(name, on_step),
            )
            rows += [SnrRow(name, seed, **asdict(one)) for one in noise_table(records)]
        return rows

    def figures(self, rows: Sequence[SnrRow], folder: Path) -> dict[str, Any]:
        """Draw the ratio against the epoch, with the deviation over passes."""
        from kscout.figures.curves import draw_snr

        return {self.file: draw_snr(_curves(rows, self.formula))}

    @classmethod
    def blocks(cls, rows: Sequence[SnrRow], page: Page, folder: Path) -> list[Block]:
        """Draw and tabulate the ratio by the paper's formula, the paper's own beside it."""
        table = _table(rows, page.setting)
        if len(table.rows) < 2:
            return [table]
        from kscout.figures.curves import draw_snr

        figure = draw_snr(_curves(rows, "paper"), styles=page.looks_of(set(_by_run(rows))))
        caption = "Signal-to-noise ratio of the gradient estimate at checkpoints of training."
        return [Drawing(figure, table.name, caption), table]


def _named(run: str, on_step: OnStep | None) -> OnStep | None:
    if on_step is None:
        return None
    return lambda step: on_step(Step(f"{run}: {step.what}", step.done, step.total))


def _by_run(rows: Sequence[SnrRow]) -> dict[str, list[SnrRow]]:
    """Return rows by method, and by seed where a method has several."""
    seeds = {
        name: {row.seed for row in own}
        for name, own in grouped(rows, lambda row: row.policy).items()
    }
    return grouped(
        rows,
        lambda row: row.policy if len(seeds[row.policy]) == 1 else f"{row.policy}, seed {row.seed}",
    )


def _curves(rows: Sequence[SnrRow], formula: str) -> list[Curve]:
    return [
        Curve.with_spread(
            name,
            [row.epoch for row in own],
            [getattr(row, f"snr_{formula}") for row in own],
            [getattr(row, f"std_{formula}") for row in own],
        )
        for name, own in _by_run(rows).items()
    ]


def _table(rows: Sequence[SnrRow], setting: str | None) -> Table:
    groups = _by_run(rows)
    known = SNR[setting] if setting else {}
    found = dict.fromkeys(method_of(row.policy) for row in rows)
    methods = [method for method in found if method in known]
    columns = [Column("epoch"), *(Column(name, digits=2) for name in groups)]
    columns += [Column(f"paper: {one}, {setting}", digits=2, is_paper=True) for one in methods]
    lines = []
    for epoch in sorted({row.epoch for row in rows}):
        cells: list[Cell] = [str(epoch)]
        for own in groups.values():
            here = [row for row in own if row.epoch == epoch]
            cells.append(measured(here[0].snr_paper, here[0].std_paper) if here else None)
        for method in methods:
            cells.append(Measured(*known[method][epoch]) if epoch in SNR_EPOCHS else None)
        lines.append(Row(tuple(cells)))
    n_passes = ", ".join(map(str, sorted({row.n_passes for row in rows})))
    paper = f"The paper's columns are printed in {ARXIV}, on fastMRI data."
    note = (
        "Norm of the mean gradient of the policy's last layer over the norm of its standard "
        f"error, by the paper's formula; ± over {n_passes} passes. "
        f"{paper if methods else NOT_SHOWN}"
    )
    title = "Gradient signal-to-noise ratio"
    return Table(title, tuple(columns), tuple(lines), note, "gradient-snr")
