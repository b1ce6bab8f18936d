"""Fit a fixed order of columns greedily on data: the baseline of adaptive policies.

Each step tries columns on slices and keeps the one with the highest mean SSIM. With all slices and
columns on the evaluated split this is the paper's NA oracle; on training data, with batches of
them, it is stochastic LBCS (arXiv 1902.00386).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from kscout.acquisition.plan import Plan, check_budget
from kscout.core import Reconstructor
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.json_types import JsonObject
from kscout.physics.sampling import start_mask
from kscout.policies.oracle import TIE
from kscout.randomness import keyed_generator


@final
@dataclass(frozen=True)
class FixedOrderResult:
    """A fitted order of columns, with the scores and gains of its steps."""

    order: list[int]
    mean_scores: list[float]
    """Mean SSIM at the start and after each column, over the slices of that step."""
    gains: Float[Tensor, "step col"]
    """Mean gain in SSIM of each candidate; NaN for other columns."""


def fit_fixed_order(
    slices: SliceSet,
    reconstructor: Reconstructor,
    plan: Plan,
    *,
    n_slices_per_step: int | None = None,
    device: torch.device | str = "cpu",
    on_step: Callable[[JsonObject], None] | None = None,
) -> FixedOrderResult:
    """Choose columns one by one, each time the one with the highest mean SSIM.

    Equal means go to the lowest column. A slice in which a column cannot be measured counts as no
    gain. Memory is bounded by the batch size, whatever the number of slices.

    Args:
        slices: the data to choose on; may live on another device than the work is done on.
        reconstructor: turns measured columns into images.
        plan: start, number of columns, protocol and metric; its seed decides the draws. The batch
            size, 16 by default, has no effect on results.
        n_slices_per_step: slices, sampled again for each step; None for all.
        device: where the work is done.
        on_step: called after each step with `step` (from 1), `n_steps`, `column`, `ssim`.
    """
    horizon, seed = plan.horizon, plan.seed
    check_budget(slices.selectable, n_initial=plan.start, horizon=horizon)
    if len(slices) == 0:
        raise ConfigError("no slices to choose a fixed order on; give a split that has some")
    if n_slices_per_step is not None and n_slices_per_step < 1:
        raise ConfigError(
            f"n_slices_per_step = {n_slices_per_step} tries nothing; give 1 or more, or leave it "
            "out"
        )
    start = start_mask(plan.start, slices.selectable.shape)
    trial = _Trial(slices, reconstructor.to(device).eval(), start, plan, device)
    order: list[int] = []
    mean_scores: list[float] = []
    gains = torch.full((horizon, slices.n_cols), torch.nan)
    for step in range(horizon):
        rows = _draw(len(slices), n_slices_per_step, seed, step)
        candidates = trial.columns_left(order)
        before, after = trial.mean_scores(rows, order, candidates)
        if step == 0:
            mean_scores.append(before)
        gains[step, candidates] = (after - before).float()
        # Candidates are sorted, so that the first of equals is the lowest column.
        best = int((after >= after.max() - TIE).nonzero()[0])
        order.append(int(candidates[best]))
        mean_scores.append(float(after[best]))
        if on_step is not None:
            record = {"step": step + 1, "n_steps": horizon, "column": order[-1]}
            on_step({**record, "ssim": mean_scores[-1]})
    return FixedOrderResult(order, mean_scores, gains)


@final
@dataclass(frozen=True)
class _Trial:
    slices: SliceSet
    reconstructor: Reconstructor
    start: Bool[Tensor, "slice col"]
    plan: Plan
    device: torch.device | str

    def columns_left(self, order: list[int]) -> Int[Tensor, " n"]:
        left = (self.slices.selectable.cpu() & ~self.start).any(dim=0)
        left[order] = False
        return left.nonzero()[:, 0]

    def mean_scores(
        self, rows: Int[Tensor, " n"], order: list[int], candidates: Int[Tensor, " candidate"]
    ) -> tuple[float, Float64[Tensor, " candidate"]]:
        """Return mean SSIM after the present order, and after each candidate in addition."""
        before, after = 0.0, torch.zeros(len(candidates), dtype=torch.float64)
        for part in rows.split(self.plan.batch_size or 16):
            now, then = self._scores(part, order, candidates)
            before += float(now.double().sum())
            after += then.double().sum(dim=0).cpu()
        return before / len(rows), after / len(rows)

    @torch.no_grad()
    def _scores(
        self, rows: Int[Tensor, " part"], order: list[int], candidates: Int[Tensor, " candidate"]
    ) -> tuple[Float[Tensor, " part"], Float[Tensor, "part candidate"]]:
        batch = self.slices.batch(rows).to(self.device)
        simulator = self.plan.simulator(batch, self.reconstructor)
        chosen = torch.zeros(self.slices.n_cols, dtype=torch.bool)
        chosen[order] = True
        start = self.start[rows].to(self.device)
        # Straight to the mask so far: one reconstruction per slice, however long the order.
        mask = start | (chosen.to(self.device) & batch.selectable)
        state = simulator.start_from(mask, maps=simulator.calibrate(start))
        columns = candidates.to(self.device).expand(len(rows), -1)
        is_useful = (batch.selectable & ~start).gather(-1, columns)
        scores = simulator.score_columns(state, columns)
        return state.score, torch.where(is_useful, scores, state.score[:, None])


def _draw(n_slices: int, n_draws: int | None, seed: int, step: int) -> Int[Tensor, " m"]:
    if n_draws is None or n_draws >= n_slices:
        return torch.arange(n_slices)
    generator = keyed_generator("fixed order", "slices", seed, step)
    return torch.randperm(n_slices, generator=generator)[:n_draws].sort().values


def filled_gains(gains: Float[Tensor, "step col"]) -> Float[Tensor, "step col"]:
    """Replace NaN, the gains of columns that the order has measured and a policy may not have.

    Such a column keeps its previous gain, but gets at least the best gain of the columns left,
    since it was the best before. Columns of the start get the best gain of the first row.
    """
    filled: list[Tensor] = []
    for row in gains:
        best = row.nan_to_num(-torch.inf).amax()
        before = torch.maximum(filled[-1], best) if filled else best
        filled.append(torch.where(row.isnan(), before, row))
    return torch.stack(filled)
