"""How much of the gap a policy that cannot see the truth could close."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from jaxtyping import Float64

from kscout.data.manifest import read_manifest
from kscout.errors import ConfigError, DataError
from kscout.evaluation.analyses.analysis import Page, PolicyAnalysis, SliceSetting, grouped
from kscout.evaluation.progress import OnStep, Step
from kscout.figures.blocks import Block, Drawing
from kscout.figures.series import Curve
from kscout.figures.tables import Column, Row, Table, measured
from kscout.names import POLICIES

_LOWER, _UPPER = "na-oracle", "oracle"
POSTERIOR, LOOK_AHEAD = "posterior", "look-ahead"
_NOTE = (
    "posterior: the column with the highest mean gain over training slices, weighted by how well "
    "they agree with what was measured; effective slices: over how many the weights spread. "
    "look-ahead: of the columns that a policy scores highest, the one whose gain is highest where "
    "it is simulated on estimates of the image, the policy's own expectation counted in; "
    "simulated: the simulation's share of the weights, fitted on training slices. Both see what a "
    "policy sees, so the best greedy policy reaches at least their score, up to noise."
)
Facts = dict[str, float | None]
"""What is told of a step beside its scores."""


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
    simulated: float | None = None
    """Share of simulated gains in the weights of a look-ahead, beside the gains that its policy
    expects."""


@final
@dataclass(frozen=True, kw_only=True)
class Ceiling(PolicyAnalysis[CeilingRow]):
    """How much of the gap a policy could close, at least, that does not see the truth.

    The oracle sees the truth, so that no policy reaches it. The best greedy policy takes the column
    with the highest mean gain over the images that agree with what was measured. Two estimates of
    it, both from below: training slices weighted by their agreement (posterior), and for each
    policy that is given, of several seeds the first, its best columns tried on estimates of the
    image (look-ahead), which are made for images of one coil. The NA oracle and the oracle are
    added.

    A posterior tries every column left on up to --candidates images, a look-ahead --columns of them
    on two.

    Example: kscout analyze ceiling fixed runs/dense --data stores/knee --reconstructor knee-unet
    --n-initial 16 --steps 16 --out analyses
    """

    file = "ceiling"
    title = "Ceiling, estimated from below"
    row = CeilingRow

    candidates: int = 64
    """Images tried at each decision of a posterior, at most."""
    columns: int = 8
    """Columns that a look-ahead tries, the best by its policy's scores."""
    estimate: str | None = None
    """Reconstruction that estimates images for a look-ahead; the one of --reconstructor where not
    given."""
    pool: int = 2048
    """Training slices that are compared with what was measured."""
    fit: int = 256
    """Of these, so many choose weights."""
    limit: int | None = 64
    """Only so many slices, spread over the split."""
    batch_size: int = 16
    """Slices at once."""

    def __post_init__(self) -> None:
        for name in ("candidates", "columns", "pool", "fit", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.split == "train":
            raise ConfigError(
                "a ceiling needs two splits, and --split train leaves one: its weights are fitted "
                "on train, and another is scored; give --split test or val"
            )

    def compute(
        self, given: Sequence[str], *, out: Path, on_step: OnStep | None = None
    ) -> list[CeilingRow]:
        """Run the policies, then the estimates, over the same slices."""
        from kscout.evaluation.running.prepare import open_policies

        self._check_splits()
        wanted = list(dict.fromkeys([*given, _LOWER, _UPPER]))
        ready = open_policies(wanted, SliceSetting.of(self))
        ssim = {
            name: np.mean([_scores(ready, one, on_step) for one in contenders], axis=0)
            for name, contenders in ready.by_name.items()
        }
        facts: dict[str, list[Facts]] = {}
        for one, tell in self._estimates(ready, on_step):
            ssim[one.name] = _scores(ready, one, on_step)
            facts[one.name] = tell()
        return _rows(ssim, facts, ready.slices.volumes)

    def _check_splits(self) -> None:
        """Refuse a store that lacks the split to fit on or the one to score."""
        from kscout.data.store import WAYS_TO_SPLIT

        if self.data is None:
            return
        there = read_manifest(Path(self.data)).splits
        if {"train", self.split} <= set(there):
            return
        other = next((name for name in there if "train" in there and name != "train"), None)
        raise DataError(
            f"a ceiling needs two splits, train to fit its weights on and {self.split} to score, "
            f"and {self.data} has: {', '.join(there) or 'none'}; "
            + (f"score what is there with --split {other}" if other else WAYS_TO_SPLIT)
        )

    def _estimates(
        self,
        ready: Any,  # noqa: ANN401 - `Prepared`, whose file imports torch
        on_step: OnStep | None,
    ) -> Iterator[tuple[Any, Callable[[], list[Facts]]]]:
        """Yield estimates as contenders, and what is to be told of their steps afterwards."""
        from kscout.data.kinds import IMAGES

        slices = ready.slices
        train = ready.source.split("train")
        if train.shape != slices.shape:
            raise ConfigError(
                f"the training slices have shape {train.shape}, those to acquire {slices.shape}; "
                "a posterior needs both of one size"
            )
        train = train.sample(self.pool).to(slices.device)
        yield self._posterior(ready, train, on_step)
        if slices.kind == IMAGES.name:
            oracles = {name for name in POLICIES if POLICIES[name].is_oracle}
            for name, contenders in ready.by_name.items():
                if name not in oracles:
                    yield self._look_ahead(ready, contenders[0], train)

    def _posterior(
        self,
        ready: Any,  # noqa: ANN401 - `Prepared`, whose file imports torch
        train: Any,  # noqa: ANN401 - a `SliceSet`, likewise
        on_step: OnStep | None,
    ) -> tuple[Any, Callable[[], list[Facts]]]:
        from kscout.evaluation.posterior import (
            Pool,
            PosteriorPolicy,
            average_effective,
            fit_kernels,
        )
        from kscout.evaluation.running.contenders import Contender

        plan = ready.plan

        def telling(step: int) -> None:
            if on_step is not None:
                on_step(Step("fitting the weights", step, plan.horizon))

        kernels = fit_kernels(
            train.sample(self.fit),
            ready.reconstructor,
            initial=plan.start(ready.slices),
            horizon=plan.horizon,
            protocol=plan.protocol,
            batch_size=self.batch_size,
            on_step=telling,
        )
        how = {"n_candidates": self.candidates, **_how(ready)}
        policy = PosteriorPolicy(Pool(train), ready.reconstructor, kernels, **how)

        def tell() -> list[Facts]:
            effective = average_effective(policy)
            return [
                {
                    "effective_slices": effective[step],
                    "power": kernel.power,
                    "width": kernel.width if np.isfinite(kernel.width) else None,
                }
                for step, kernel in enumerate(kernels)
            ]

        return Contender(POSTERIOR, 0, policy, 0, is_given=True), tell

    def _look_ahead(
        self,
        ready: Any,  # noqa: ANN401 - `Prepared`, whose file imports torch
        one: Any,  # noqa: ANN401 - a `Contender`, likewise
        train: Any,  # noqa: ANN401 - a `SliceSet`, likewise
    ) -> tuple[Any, Callable[[], list[Facts]]]:
        from kscout import reconstruction
        from kscout.evaluation.lookahead import Estimates, LookAhead, fit_weights
        from kscout.evaluation.running.contenders import Contender

        plan, estimator = ready.plan, ready.reconstructor
        if self.estimate is not None:
            estimator = reconstruction.load(self.estimate).to(train.device).eval()
        estimates = Estimates.of(estimator, train.sample(self.fit))
        how = {"n_columns": self.columns, **_how(ready)}
        # Like the others it is called in evaluation mode, on the device of the slices.
        policy = one.policy.to(train.device).eval()
        ahead = LookAhead(policy, ready.reconstructor, estimates, **how)
        ahead.weights = fit_weights(ahead, train.sample(self.fit), plan)

        def tell() -> list[Facts]:
            return [{"simulated": other / (own + other)} for own, other in ahead.weights]

        name = f"{LOOK_AHEAD} {one.name}"
        return Contender(name, one.seed, ahead, one.draw_seed, is_given=True), tell

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
                    *map(measured, (row.effective_slices, row.simulated)),
                )
            )
            for row in cls.told(rows)
        )
        columns = (
            *(Column("policy"), Column("SSIM"), Column("gap closed", digits=3)),
            *(Column("minus NA oracle"), Column("from"), Column("to")),
            *(Column("effective slices", digits=1), Column("simulated", digits=2)),
        )
        caption = "SSIM minus that of the NA oracle, by acquired columns."
        return [
            Table("What could be reached without the truth", columns, lines, _NOTE, "ceiling"),
            Drawing(_draw(rows), "ceiling", caption),
        ]


def _how(ready: Any) -> dict[str, Any]:  # noqa: ANN401 - `Prepared`, whose file imports torch
    """Return what estimates know of acquisitions: the protocol and the columns of the start."""
    from kscout.physics.sampling import start_mask

    plan, slices = ready.plan, ready.slices
    start = start_mask(plan.start(slices), (1, slices.n_cols), slices.device)[0]
    return {"protocol": plan.protocol, "start": start}


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
    facts: Mapping[str, Sequence[Facts]],
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
