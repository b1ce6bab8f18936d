"""How much of the gap a policy that cannot see the truth could close."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Float64

from kscout.errors import ConfigError
from kscout.evaluation.analyses.analysis import Page, PolicyAnalysis, SliceSetting, grouped
from kscout.evaluation.progress import OnStep, Step
from kscout.figures.blocks import Block, Drawing
from kscout.figures.series import Curve
from kscout.figures.tables import Column, Row, Table, measured
from kscout.names import POLICIES

_LOWER, _UPPER = "na-oracle", "oracle"
_KINDS: dict[Literal["slices", "residuals"], str] = {
    "slices": "posterior",
    "residuals": "posterior-residual",
}
_NOTE = (
    "posterior: the column with the highest mean gain over training slices, weighted by how well "
    "they agree with what was measured. posterior-residual: the same over the reconstruction plus "
    "what reconstructions of such slices lack. Both see what a policy sees, so the best greedy "
    "policy reaches at least their score, up to noise; more training slices may raise it. "
    "Effective slices: over how many the weights spread. Width: in units of the squared distance, "
    "chosen on training slices of other volumes."
)


@final
@dataclass(frozen=True)
class CeilingRow:
    """One policy after one step."""

    policy: str
    step: int
    """From 1."""
    ssim: float
    gap_closed: float | None
    """Share of what lies between the NA oracle and the oracle."""
    difference: float
    """SSIM minus the NA oracle's, with its interval over volumes."""
    low: float | None
    high: float | None
    effective_slices: float | None = None
    """Mean over states of 1 / sum of squared weights."""
    power: float | None = None
    """How far measured entries are whitened."""
    width: float | None = None
    """Of the kernel; None is infinite, or not a posterior."""


@final
@dataclass(frozen=True, kw_only=True)
class Ceiling(PolicyAnalysis[CeilingRow]):
    """How much of the gap a policy could close that does not see the truth.

    The oracle sees the truth, so that no policy reaches it. The best greedy policy takes the column
    with the highest mean gain over the images that agree with what was measured: here, training
    slices weighted by their agreement (posterior), and the reconstruction plus what
    reconstructions of such slices lack (posterior-residual). The NA oracle and the oracle are added
    to the policies that are given.

    A decision tries every column left on up to --candidates images.

    Example: kscout analyze ceiling fixed runs/dense --data stores/knee --reconstructor knee-unet
    --n-initial 16 --steps 16 --out analyses
    """

    file = "ceiling"
    title = "Ceiling"
    row = CeilingRow

    candidates: int = 64
    """Images tried at each decision, at most."""
    pool: int = 2048
    """Training slices that are compared with what was measured."""
    fit: int = 256
    """Of these, so many choose the width of the weights."""
    limit: int | None = 64
    """Only so many slices, spread over the split."""
    batch_size: int = 16
    """Slices at once."""

    def __post_init__(self) -> None:
        for name in ("candidates", "pool", "fit"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.split == "train":
            raise ConfigError(
                "training slices are what others are compared with; give --split test or val"
            )

    def compute(
        self, given: Sequence[str], *, out: Path, on_step: OnStep | None = None
    ) -> list[CeilingRow]:
        """Run the policies, then both posteriors, over the same slices."""
        from kscout.evaluation.posterior import average_effective
        from kscout.evaluation.running.prepare import open_policies

        wanted = list(dict.fromkeys([*given, _LOWER, _UPPER]))
        ready, facts = open_policies(wanted, SliceSetting.of(self)), {}
        ssim = {
            name: np.mean([_scores(ready, one, on_step) for one in contenders], axis=0)
            for name, contenders in ready.by_name.items()
        }
        for one in self._posteriors(ready, on_step):
            ssim[one.name] = _scores(ready, one, on_step)
            effective = average_effective(one.policy)
            facts[one.name] = [
                {
                    "effective_slices": effective[step],
                    "power": kernel.power,
                    "width": kernel.width if np.isfinite(kernel.width) else None,
                }
                for step, kernel in enumerate(one.policy.kernels)
            ]
        return _rows(ssim, facts, ready.slices.volumes)

    def _posteriors(
        self,
        ready: Any,  # noqa: ANN401 - `Prepared`, whose file imports torch
        on_step: OnStep | None,
    ) -> Iterator[Any]:
        """Yield both posteriors as contenders, the residual one for images of one coil alone."""
        from kscout.evaluation.posterior import Pool, PosteriorPolicy, fit_kernels
        from kscout.evaluation.running.contenders import Contender

        slices, plan = ready.slices, ready.plan
        train = ready.source.split("train")
        if train.shape != slices.shape:
            raise ConfigError(
                f"the training slices have shape {train.shape}, those to acquire {slices.shape}; "
                "a posterior needs both of one size"
            )
        train = train.sample(self.pool).to(slices.device)

        def tell(step: int) -> None:
            if on_step is not None:
                on_step(Step("fitting the weights", step, plan.horizon))

        kernels = fit_kernels(
            train.sample(self.fit),
            ready.reconstructor,
            initial=plan.start(slices),
            horizon=plan.horizon,
            protocol=plan.protocol,
            batch_size=self.batch_size,
            on_step=tell,
        )
        pool = Pool(train)
        for kind, name in _KINDS.items():
            if kind == "slices" or slices.shape[0] == 1:
                policy = PosteriorPolicy(
                    pool,
                    ready.reconstructor,
                    kernels,
                    kind=kind,
                    n_candidates=self.candidates,
                    protocol=plan.protocol,
                )
                yield Contender(name, 0, policy, 0, is_given=True)

    def figures(self, rows: Sequence[CeilingRow], folder: Path) -> dict[str, Any]:
        """Draw by how much each policy lies above the NA oracle, step by step."""
        return {self.file: _draw(rows)}

    @classmethod
    def told(cls, rows: Sequence[CeilingRow]) -> Sequence[CeilingRow]:
        """Return the last step of each policy."""
        return [own[-1] for own in grouped(rows, lambda row: row.policy).values()]

    @classmethod
    def blocks(cls, rows: Sequence[CeilingRow], page: Page, folder: Path) -> list[Block]:
        """Tabulate the last step, and draw all of them."""
        lines = tuple(
            Row(
                (
                    row.policy,
                    *map(measured, (row.ssim, row.gap_closed, row.difference, row.low, row.high)),
                    measured(row.effective_slices),
                )
            )
            for row in cls.told(rows)
        )
        columns = (
            *(Column("policy"), Column("SSIM"), Column("gap closed", digits=3)),
            *(Column("minus NA oracle"), Column("from"), Column("to")),
            Column("effective slices", digits=1),
        )
        caption = "SSIM minus that of the NA oracle, by acquired columns."
        return [
            Table("What could be reached without the truth", columns, lines, _NOTE, "ceiling"),
            Drawing(_draw(rows), "ceiling", caption),
        ]


def _scores(
    ready: Any,  # noqa: ANN401 - `Prepared`, whose file imports torch
    contender: Any,  # noqa: ANN401 - likewise
    on_step: OnStep | None,
) -> Float64[np.ndarray, "slice moment"]:
    """Return SSIM of one policy, mean over trajectories."""
    found: list[Float64[np.ndarray, "part moment"]] = []
    for _, done in ready.trajectories(contender):
        found.append(done.ssim.double().mean(dim=1).cpu().numpy())
        if on_step is not None:
            on_step(Step(contender.name, sum(map(len, found)), len(ready.slices)))
    return np.concatenate(found)


def _rows(
    ssim: Mapping[str, Float64[np.ndarray, "slice moment"]],
    facts: Mapping[str, Sequence[dict[str, float | None]]],
    volumes: Sequence[str],
) -> list[CeilingRow]:
    from kscout.evaluation.statistics import bootstrap_intervals
    from kscout.evaluation.summaries.summarize import gap_closed

    means = {name: values.mean(axis=0) for name, values in ssim.items()}
    rows = []
    for name, values in ssim.items():
        apart = values - ssim[_LOWER]
        intervals = bootstrap_intervals(apart, volumes)
        for step in range(1, values.shape[1]):
            low, high = (None, None) if intervals is None else map(float, intervals[step])
            own = float(means[name][step])
            bounds = float(means[_LOWER][step]), float(means[_UPPER][step])
            more = facts[name][step - 1] if name in facts else {}
            closed, mean = gap_closed(own, *bounds), float(apart[:, step].mean())
            rows.append(CeilingRow(name, step, own, closed, mean, low, high, **more))
    return rows


def _draw(rows: Sequence[CeilingRow]) -> Any:  # noqa: ANN401 - a matplotlib figure
    from kscout.figures.curves import draw_differences

    curves = []
    for name, own in grouped(rows, lambda row: row.policy).items():
        if name != _LOWER:
            steps = np.array([row.step for row in own], dtype=np.float64)
            values = [[getattr(row, key) for row in own] for key in ("difference", "low", "high")]
            mean, low, high = (np.array(x, dtype=np.float64) for x in values)
            if own[0].low is None:
                low, high = mean, mean
            is_oracle = name in POLICIES and POLICIES[name].is_oracle
            curves.append(Curve(name, steps, mean, low, high, is_oracle))
    return draw_differences(curves, reference=_LOWER)
