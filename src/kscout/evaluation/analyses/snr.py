"""Signal-to-noise ratio of gradient estimates at kept checkpoints of training."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, final

from kscout.config.bounds import AtLeast
from kscout.evaluation.analyses.analysis import Analysis, Page, Split, grouped
from kscout.evaluation.progress import OnStep, Step
from kscout.evaluation.records.run_names import grouped_runs, named_runs
from kscout.evaluation.summaries.paper_numbers import ARXIV, NOT_SHOWN, SNR, SNR_EPOCHS, method_of
from kscout.figures.blocks import Block, Drawing, link_name
from kscout.figures.series import Curve
from kscout.figures.tables import Cell, Column, Measured, Row, Table, measured
from kscout.names import Protocol
from kscout.runs import RunRecord


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
    n_initial: int
    """Columns at the start and to acquire."""
    steps: int
    n_seeds: int = 1
    """Seeds of the method, of which this one was chosen."""


@final
@dataclass(frozen=True, kw_only=True)
class Snr(Analysis[SnrRow]):
    """Signal-to-noise ratio of gradients at kept epochs; stop it, run it again, it goes on.

    Of the seeds of a method, the one with the highest validation SSIM after its last epoch is
    measured; the paper takes the best on test data (arXiv 2010.16262, appendix B.6).

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

    data: Path | None = None
    """Store of slices."""
    reconstructor: str | None = None
    """As for `evaluate`."""
    split: Split = "train"
    """The paper uses training data."""
    epoch: tuple[int, ...] = ()
    """Checkpoints. (default: all that are kept)"""
    trajectories: Annotated[int, AtLeast(2)] = 16
    """q (paper: 16)."""
    batch_size: Annotated[int, AtLeast(1)] = 16
    """Slices per gradient (paper: 16)."""
    passes: Annotated[int, AtLeast(1)] = 3
    """Passes over the data (paper: 3)."""
    seed: int = 0
    """Of order and draws."""
    protocol: Protocol | None = None
    """paper or blind. (default: as the reconstruction was trained, else blind)"""
    formula: Literal["paper", "reference"] = "paper"
    """The one that is drawn; both are written."""
    limit: int | None = None
    """Largest number of slices, spread over the split."""
    all_seeds: bool = False
    """Measure every seed of a method, not only the best."""
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
        from kscout.evaluation.policy_noise import (
            NoiseSetting,
            check_is_policy,
            check_noise,
            measure_run,
        )

        chosen = self._chosen([Path(one) for one in given])
        for _, _, run in chosen:
            check_is_policy(run)
        device = resolve_device(self.device)
        store = Store.open(str(self.data))
        slices = store.split(self.split).sample(self.limit).to(device)
        network = reconstruction.load(str(self.reconstructor), device=device)
        draws = (self.trajectories, self.batch_size, self.passes, self.seed)
        protocol = network.protocol_for(self.protocol)
        setting = NoiseSetting(*draws, protocol)
        runs = {f"{name}, seed {run.config['training']['seed']}": run for name, _, run in chosen}
        check_noise(runs, slices, network, protocol=protocol, epochs=self.epoch or None)
        rows = []
        for name, n_seeds, run in chosen:
            seed, acquisition = int(run.config["training"]["seed"]), run.config["acquisition"]
            records = measure_run(
                run.path,
                slices,
                network,
                setting,
                record=out / f"snr-{re.sub('[/, ]+', '-', name)}-seed{seed}.jsonl",
                epochs=self.epoch or None,
                on_step=_named(name, on_step),
            )
            rows += [
                SnrRow(
                    *(name, seed),
                    **asdict(one),
                    n_initial=acquisition["n_initial"],
                    steps=acquisition["horizon"],
                    n_seeds=n_seeds,
                )
                for one in noise_table(records)
            ]
        return rows

    def _chosen(self, given: Sequence[Path]) -> list[tuple[str, int, RunRecord]]:
        """Return runs with their names and how many seeds each was chosen of."""
        if self.all_seeds:
            return [(name, 1, run) for name, run in named_runs(given)]
        groups = grouped_runs(given).items()
        return [(name, len(runs), max(runs, key=_last_score)) for name, runs in groups]

    def figures(self, rows: Sequence[SnrRow], folder: Path) -> dict[str, Any]:
        """Draw the ratio against the epoch, with the deviation over passes."""
        from kscout.figures.curves import draw_snr

        return {self.file: draw_snr(_curves(rows, self.formula))}

    @classmethod
    def blocks(cls, rows: Sequence[SnrRow], page: Page, folder: Path) -> list[Block]:
        """Draw and tabulate the ratio, one start and number of steps after the other."""
        groups = grouped(rows, lambda row: (row.n_initial, row.steps))
        blocks: list[Block] = []
        for (n_initial, steps), own in groups.items():
            setting = page.settings.get((n_initial, steps))
            name = f", {n_initial} + {steps} columns" if len(groups) > 1 else ""
            blocks += _blocks(own, page, setting, name)
        return blocks


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


def _last_score(run: RunRecord) -> float:
    """Return the validation SSIM of the last epoch, the one whose weights the paper judges."""
    return float(run.metrics[-1]["val_ssim"]) if run.metrics else float("-inf")


def _blocks(
    rows: Sequence[SnrRow], page: Page, setting: str | None, where: str
) -> list[Drawing | Table]:
    """Return figure and table of one horizon, the paper's columns beside."""
    table = _table(rows, setting, where)
    if len(table.rows) < 2:
        return [table]
    from kscout.figures.curves import draw_snr

    figure = partial(draw_snr, _curves(rows, "paper"), styles=page.looks_of(set(_by_run(rows))))
    caption = f"Signal-to-noise ratio of the gradient estimate at checkpoints of training{where}."
    return [Drawing(figure, table.name, caption), table]


def _table(rows: Sequence[SnrRow], setting: str | None, where: str) -> Table:
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
    n_seeds = max(row.n_seeds for row in rows)
    chosen = (
        f" Of up to {n_seeds} seeds of a method, the one with the highest validation SSIM after "
        "its last epoch; the paper takes the best on test data."
        if n_seeds > 1
        else ""
    )
    paper = f"The paper's columns are printed in {ARXIV}, on fastMRI data."
    note = (
        "Norm of the mean gradient of the policy's last layer over the norm of its standard "
        f"error, by the paper's formula; ± over {n_passes} passes.{chosen} "
        f"{paper if methods else NOT_SHOWN}"
    )
    title = f"Gradient signal-to-noise ratio{where}"
    name = link_name(f"gradient-snr{where}")
    return Table(title, tuple(columns), tuple(lines), note, name)
