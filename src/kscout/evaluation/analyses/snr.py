"""Signal-to-noise ratio of gradient estimates: norm(mean gradient) / norm(std of the mean).

The mean is over the batches of one pass through the data. Its variance is, with B batches,

| formula | variance of the mean |
|---|---|
| `paper` | sum of squared deviations / (B (B - 1)) |
| `reference` | sum of squared deviations / B^2, as the authors' program computes it |

Gradients are those of the last layer, by the estimator that trained the policy, at stored epochs.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple, final

from jaxtyping import Float

from kscout.config import GradientTraining, PolicyConfig, read
from kscout.config.bounds import AtLeast
from kscout.config.records import check
from kscout.errors import ConfigError, RunError, unknown_name
from kscout.evaluation.analyses.analysis import Analysis, Page, Split, grouped
from kscout.evaluation.progress import OnStep, Step
from kscout.evaluation.records.run_names import grouped_runs, named_runs
from kscout.evaluation.summaries.paper_numbers import ARXIV, NOT_SHOWN, SNR, SNR_EPOCHS, method_of
from kscout.exports import lazily
from kscout.figures.blocks import Block, Drawing, link_name
from kscout.figures.series import Curve
from kscout.figures.tables import Cell, Column, Measured, Row, Table, measured
from kscout.json_types import JsonObject
from kscout.names import ESTIMATORS, METRICS, Protocol
from kscout.runs import RunRecord, epoch_path, read_run

with lazily():
    import torch
    from matplotlib.figure import Figure
    from torch import Generator, Tensor
    from torch.nn import Parameter

    from kscout import policies, reconstruction
    from kscout.acquisition.plan import check_budget
    from kscout.compatibility import Use, check_matrix, network_notes, policy_notes, warn
    from kscout.core import Policy, Reconstructor, SliceBatch
    from kscout.data.slices import SliceSet
    from kscout.data.store import Store
    from kscout.device import resolve_device
    from kscout.figures.curves import draw_snr
    from kscout.policies.views import Recomputed
    from kscout.randomness import keyed_generator
    from kscout.training.algorithm import Learner
    from kscout.training.algorithms.gradient import Batch, GradientEstimator

FORMULAS = ("paper", "reference")


class GradientMoments(NamedTuple):
    """Number of gradients, their mean, and the sum of squared deviations from it."""

    n_batches: int
    mean: Float[Tensor, "..."]
    squares: Float[Tensor, "..."]

    @classmethod
    def of(cls, gradients: Iterable[Float[Tensor, "..."]]) -> "GradientMoments":
        """Add one gradient at a time (Welford): memory does not grow with their number."""
        count, mean, squares = 0, torch.zeros(()), torch.zeros(())
        for gradient in gradients:
            value = gradient.detach().double()
            count += 1
            deviation = value - mean
            mean = mean + deviation / count
            squares = squares + deviation * (value - mean)
        return cls(count, mean, squares)

    def signal_to_noise(self, formula: str = "paper") -> float:
        """Return the ratio for all added gradients."""
        if formula not in FORMULAS:
            raise unknown_name("formula", formula, list(FORMULAS))
        n_batches, batches = self.n_batches, "1 batch" if self.n_batches == 1 else "0 batches"
        if n_batches < 2:
            raise ConfigError(
                f"{batches} of gradients; their spread needs at least 2: lower the batch size or "
                "give more slices"
            )
        divisor = n_batches * (n_batches - 1) if formula == "paper" else n_batches**2
        noise = (self.squares.sum() / divisor).sqrt()
        return float(self.mean.norm() / noise)


def signal_to_noise(
    gradients: Float[Tensor, "pass batch ..."], formula: str = "paper"
) -> tuple[float, float]:
    """Return mean and std (ddof 1, nan for one pass) over passes of the ratio in each pass."""
    return _mean_and_std([GradientMoments.of(x).signal_to_noise(formula) for x in gradients])


def _mean_and_std(values: list[float]) -> tuple[float, float]:
    tensor = torch.tensor(values, dtype=torch.float64)
    return float(tensor.mean()), float(tensor.std()) if len(values) > 1 else math.nan


def last_layer(policy: Policy) -> list[Parameter]:
    """Return weight and bias of the last layer that has parameters."""
    owners = [module for module in policy.modules() if list(module.parameters(recurse=False))]
    if not owners:
        raise RunError(
            f"{type(policy).__name__} has no parameters, hence no gradients; name runs of a network"
        )
    return list(owners[-1].parameters(recurse=False))


@final
class EstimatorGradients:
    """Gradients of the last layer, batch by batch, by the estimator that trained the policy."""

    def __init__(
        self,
        policy: Policy,
        slices: SliceSet,
        reconstructor: Reconstructor,
        config: JsonObject,
        setting: "Snr",
    ) -> None:
        self.policy, self.slices, self.setting = policy, slices, setting
        # Before the settings are read: a run folder must not import modules that no user named.
        kind = ESTIMATORS.recall(config["training"].get("method"), "the run")
        METRICS.recall(config["training"].get("metric", GradientTraining.metric), "the run")
        settings = read(PolicyConfig, config)
        training, budget = settings.training, settings.acquisition
        check_budget(slices.selectable, n_initial=budget.start, horizon=budget.horizon)
        slices.check_start(budget.start)
        if not (issubclass(kind, GradientEstimator) and isinstance(training, GradientTraining)):
            raise RunError(
                f"runs of {training.method} have no gradient of a batch whose noise could be "
                "measured; choose runs of an estimator that takes one step per batch"
            )
        protocol = reconstructor.protocol_for(setting.protocol)
        training = replace(training, n_trajectories=setting.trajectories, protocol=protocol)
        learner = Learner.of(policy, replace(settings, training=training))
        self.estimator: GradientEstimator = kind(learner, slices, reconstructor)
        # In 32 bit, and without cached features.
        self.estimator.view = Recomputed(policy)
        self.parameters = last_layer(policy)
        # The gradients of other layers are not needed.
        policy.requires_grad_(False)
        for parameter in self.parameters:
            parameter.requires_grad_(True)

    def of_pass(self, pass_index: int) -> Iterator[Float[Tensor, " value"]]:
        """Yield the flat gradient of every batch; each pass has its order and samples."""
        generator = keyed_generator("gradient noise order", self.setting.seed, pass_index)
        order = torch.randperm(len(self.slices), generator=generator)
        for number, index in enumerate(order.split(self.setting.batch_size)):
            generator = keyed_generator("gradient noise", self.setting.seed, pass_index, number)
            yield self._gradient(self.slices.batch(index), generator)

    def _gradient(self, batch: SliceBatch, generator: Generator) -> Float[Tensor, " value"]:
        self.policy.zero_grad(set_to_none=True)
        drawn = self.estimator.draw(len(batch), 1, lambda _: generator)
        draws = {**drawn.per_slice, **{name: x[0] for name, x in drawn.per_batch.items()}}
        device = batch.kspace.device
        self.estimator.update(Batch(batch, {name: x.to(device) for name, x in draws.items()}))
        gradients = [parameter.grad for parameter in self.parameters]
        return torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])


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
    """Seeds of the method, of which this one was selected."""


def snr_rows(
    policy: str,
    seed: int,
    passes: Mapping[int, Sequence[GradientMoments]],
    *,
    n_initial: int,
    steps: int,
    n_seeds: int = 1,
) -> list[SnrRow]:
    """Return mean and std (ddof 1) of both formulas over the passes of each epoch."""
    rows = []
    for epoch, moments in sorted(passes.items()):
        ratios: JsonObject = {}
        for formula in FORMULAS:
            mean, std = _mean_and_std([one.signal_to_noise(formula) for one in moments])
            ratios[f"snr_{formula}"] = mean
            ratios[f"std_{formula}"] = None if math.isnan(std) else std
        ratios |= {"n_initial": n_initial, "steps": steps, "n_seeds": n_seeds}
        rows.append(SnrRow(policy, seed, epoch, len(moments), moments[0].n_batches, **ratios))
    return rows


def kept_epochs(run: Path) -> list[int]:
    """Return the epochs whose weights are in a run folder."""
    names = [path.stem.removeprefix("epoch-") for path in run.glob("epoch-*.safetensors")]
    epochs = sorted(int(name) for name in names if name.isdigit())
    if not epochs:
        raise RunError(
            f"{run} keeps no weights of single epochs; train with training.keep_epochs set"
        )
    return epochs


def check_is_policy(run: RunRecord) -> None:
    """Raise an error for a run that does not train a policy only."""
    if run.kind != "policy":
        raise RunError(
            f"{run.path} is a run of kind {run.kind!r}, and gradients are measured of a policy "
            "whose reconstruction stays as it is; name runs of kscout train policy"
        )


def measure_run(
    run: Path,
    slices: SliceSet,
    reconstructor: Reconstructor,
    setting: "Snr",
    *,
    on_step: OnStep | None = None,
) -> dict[int, list[GradientMoments]]:
    """Measure the gradients of each pass over the data at checkpoints of a policy run.

    Its estimator, gamma and budget are used. The index of a pass seeds its order and samples.
    """
    slices.check_protocol(reconstructor.protocol_for(setting.protocol))
    stored, report = read_run(run), on_step or (lambda _: None)
    check_is_policy(stored)
    reconstructor = reconstructor.to(slices.device).eval()
    passes: dict[int, list[GradientMoments]] = {}
    for epoch in setting.epoch or kept_epochs(run):
        policy = policies.load(epoch_path(run, epoch), device=slices.device)
        gradients = EstimatorGradients(policy, slices, reconstructor, stored.config, setting)
        for pass_index in range(setting.passes):
            what = f"epoch {epoch}, pass {pass_index + 1}"
            report(Step(what, 0, 1))
            moments = GradientMoments.of(gradients.of_pass(pass_index))
            passes.setdefault(epoch, []).append(moments)
            report(Step(what, 1, 1))
    return passes


def check_noise(
    runs: Mapping[str, RunRecord], slices: SliceSet, reconstructor: Reconstructor, setting: "Snr"
) -> None:
    """Raise an error if gradients of a named run cannot be measured; warn of another training."""
    loaded = {}
    for name, run in runs.items():
        first = (setting.epoch or kept_epochs(run.path))[0]
        loaded[name] = policies.load(epoch_path(run.path, first))
        check_matrix(loaded[name], slices.shape, name=name)
    use = Use(slices.shape, protocol=reconstructor.protocol_for(setting.protocol))
    notes = policy_notes(loaded.items(), reconstructor, use)
    warn([*network_notes(reconstructor, use), *notes])


@final
@dataclass(frozen=True, kw_only=True)
class Snr(Analysis[SnrRow]):
    """Signal-to-noise ratio of gradients at the stored epochs.

    Of the seeds of a method, the one with the highest validation SSIM after its last epoch is
    measured; the paper takes the best on test data (arXiv 2010.16262, appendix B.6).

    Example: kscout analyze snr runs/greedy --data stores/knee
    --reconstructor runs/unet --out analyses
    """

    reads = "runs"
    file = "snr"
    title = "Gradient noise"
    row = SnrRow
    required = ("data", "reconstructor")
    # The batch size affects gradients.
    free = frozenset({"device"})

    data: Path | None = None
    """Dataset."""
    reconstructor: str | None = None
    """Reconstruction, as for `evaluate`."""
    split: Split = "train"
    """The paper uses training data."""
    epoch: tuple[int, ...] = ()
    """Epochs whose weights are used. (default: all that are stored)"""
    trajectories: Annotated[int, AtLeast(2)] = 16
    """Samples q per state (paper: 16)."""
    batch_size: Annotated[int, AtLeast(1)] = 16
    """Slices per gradient (paper: 16)."""
    passes: Annotated[int, AtLeast(1)] = 3
    """Passes over the data (paper: 3)."""
    seed: int = 0
    """Random seed for the order of slices and sampling."""
    protocol: Protocol | None = None
    """paper or blind. (default: as the reconstruction was trained, else blind)"""
    limit: int | None = None
    """Largest number of slices, spread evenly over the split. (default: all)"""
    all_seeds: bool = False
    """Measure every seed of a method instead of the best one."""
    device: str = "auto"
    """auto, cpu or cuda."""

    def __post_init__(self) -> None:
        check(self)

    def compute(
        self, sources: Sequence[str], *, out: Path, on_step: OnStep | None = None
    ) -> list[SnrRow]:
        chosen = self._chosen([Path(x) for x in sources])
        for _, _, run in chosen:
            check_is_policy(run)
        device = resolve_device(self.device)
        store = Store.open(str(self.data))
        slices = store.split(self.split).sample(self.limit).to(device)
        network = reconstruction.load(str(self.reconstructor), device=device)
        runs = {f"{name}, seed {run.config['training']['seed']}": run for name, _, run in chosen}
        check_noise(runs, slices, network, self)
        rows = []
        for name, n_seeds, run in chosen:
            seed, acquisition = int(run.config["training"]["seed"]), run.config["acquisition"]
            passes = measure_run(run.path, slices, network, self, on_step=_named(name, on_step))
            columns = {"n_initial": acquisition["n_initial"], "steps": acquisition["horizon"]}
            rows += snr_rows(name, seed, passes, **columns, n_seeds=n_seeds)
        return rows

    def _chosen(self, sources: Sequence[Path]) -> list[tuple[str, int, RunRecord]]:
        """Return names, numbers of seeds and runs."""
        if self.all_seeds:
            return [(name, 1, run) for name, run in named_runs(sources)]

        def last_ssim(run: RunRecord) -> float:
            return run.metrics[-1]["val_ssim"] if run.metrics else -math.inf

        groups = grouped_runs(sources).items()
        return [(name, len(runs), max(runs, key=last_ssim)) for name, runs in groups]

    def figures(self, rows: Sequence[SnrRow], folder: Path) -> dict[str, Figure]:
        return {self.file: draw_snr(_curves(rows))}

    @classmethod
    def blocks(cls, rows: Sequence[SnrRow], page: Page, folder: Path) -> list[Block]:
        groups = grouped(rows, lambda row: (row.n_initial, row.steps))
        blocks: list[Block] = []
        for (n_initial, steps), group in groups.items():
            setting = page.settings.get((n_initial, steps))
            name = f", {n_initial} + {steps} columns" if len(groups) > 1 else ""
            blocks += _blocks(group, page, setting, name)
        return blocks


def _named(run: str, on_step: OnStep | None) -> OnStep | None:
    if on_step is None:
        return None
    return lambda step: on_step(Step(f"{run}: {step.what}", step.done, step.total))


def _by_run(rows: Sequence[SnrRow]) -> dict[str, list[SnrRow]]:
    """Return rows by method, and by seed if a method has several."""
    seeds = {
        name: {row.seed for row in group}
        for name, group in grouped(rows, lambda row: row.policy).items()
    }
    return grouped(
        rows,
        lambda row: row.policy if len(seeds[row.policy]) == 1 else f"{row.policy}, seed {row.seed}",
    )


def _curves(rows: Sequence[SnrRow]) -> list[Curve]:
    return [
        Curve.with_spread(
            name,
            [row.epoch for row in group],
            [row.snr_paper for row in group],
            [row.std_paper for row in group],
        )
        for name, group in _by_run(rows).items()
    ]


def _blocks(
    rows: Sequence[SnrRow], page: Page, setting: str | None, where: str
) -> list[Drawing | Table]:
    """Return figure and table of one horizon, with columns of the paper."""
    table = _table(rows, setting, where)
    if len(table.rows) < 2:
        return [table]
    figure = partial(draw_snr, _curves(rows), styles=page.looks_of(set(_by_run(rows))))
    caption = f"Signal-to-noise ratio of the gradient estimate at checkpoints of training{where}."
    return [Drawing(figure, table.name, caption), table]


def _table(rows: Sequence[SnrRow], setting: str | None, where: str) -> Table:
    groups = _by_run(rows)
    known = SNR[setting] if setting else {}
    names = dict.fromkeys(method_of(row.policy) for row in rows)
    methods = [method for method in names if method in known]
    columns = [Column("epoch"), *(Column(name, digits=2) for name in groups)]
    columns += [
        Column(f"paper: {method}, {setting}", digits=2, is_paper=True) for method in methods
    ]
    lines = []
    for epoch in sorted({row.epoch for row in rows}):
        cells: list[Cell] = [str(epoch)]
        for group in groups.values():
            here = [row for row in group if row.epoch == epoch]
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
