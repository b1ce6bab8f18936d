"""One slice acquired step by step on the page, by policies and by the user."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from kscout.acquisition.choose import (
    check_chosen,
    choose_several,
    column_log_probabilities,
    is_any_blocked,
)
from kscout.acquisition.episode import Simulator
from kscout.acquisition.loop import Acquisition, action_uniforms
from kscout.acquisition.plan import Plan
from kscout.acquisition.state import State
from kscout.core import Policy, SliceBatch
from kscout.errors import ConfigError, DataError
from kscout.evaluation.records.acquisitions import PolicySteps
from kscout.evaluation.running.entries import EvaluationEntry
from kscout.physics.sampling import start_mask
from kscout.policies.oracle import TIE
from kscout.policies.views import in_precision


@final
@dataclass(frozen=True)
class Turn:
    """The next column of the user or a policy, and its score."""

    name: str
    """The user or a policy."""
    column: int
    ssim: float
    """SSIM after measuring it."""


@final
@dataclass(frozen=True)
class Verdict:
    """The last column of the user, compared with those of policies from the same state."""

    before: float
    """SSIM before measuring it."""
    turns: tuple[Turn, ...]
    """The user's column, those of policies, and the best one by the ground truth."""
    rank: int
    """Rank of the column among unmeasured ones, from 1; equal ones share a rank."""
    n_left: int


@final
class InteractiveAcquisition:
    """Acquisitions of one slice by policies or the user, from one start to one horizon.

    `before_step` is called before every step; an error that it raises ends the acquisition.
    """

    def __init__(
        self, simulator: Simulator, plan: Plan, *, before_step: Callable[[], None] = lambda: None
    ) -> None:
        self.simulator, self.plan, self.before_step = simulator, plan, before_step

    @property
    def start_columns(self) -> tuple[int, ...]:
        """The columns of the start."""
        mask = start_mask(self.plan.start, self.simulator.batch.selectable.shape)
        return tuple(mask[0].nonzero()[:, 0].tolist())

    @torch.no_grad()
    def run(self, entry: EvaluationEntry) -> PolicySteps:
        """Acquire by a policy; columns are sampled if its training sampled them."""
        acquisition, policy = Acquisition(self.simulator, self.plan), self._ready(entry)
        states, columns = [acquisition.state], list[int]()
        ratings: list[UInt8[np.ndarray, " col"]] = []
        while acquisition.n_next:
            self.before_step()
            chosen, rating = self._chosen(entry, policy, acquisition)
            columns.append(int(chosen))
            ratings.append(rating)
            acquisition.measure(chosen)
            states.append(acquisition.state)
        # After the last step there are no ratings.
        ratings.append(np.zeros(self.simulator.batch.n_cols, np.uint8))
        return self._steps(entry.name, states, columns, entry.is_oracle, np.stack(ratings))

    @torch.no_grad()
    def replay(self, name: str, columns: Sequence[int]) -> PolicySteps:
        """Measure the columns of the user; the last image fills the remaining steps."""
        states = [acquisition.state for acquisition in self._through(columns)]
        states += states[-1:] * (self.plan.horizon + 1 - len(states))
        return self._steps(name, states, columns, False, None)

    def _through(self, columns: Sequence[int]) -> Iterator[Acquisition]:
        """Yield an acquisition before each column of the user, and after the last one."""
        n_most = self.plan.horizon
        if len(columns) > n_most:
            raise ConfigError(
                f"{len(columns)} columns were measured, and {n_most} may be; take more steps"
            )
        acquisition = Acquisition(self.simulator, self.plan)
        for column in columns:
            self.before_step()
            blocked = acquisition.blocked
            if not 0 <= column < blocked.shape[1] or blocked[0, column]:
                raise ConfigError(
                    f"column {column} is measured already, or outside of the matrix; take another"
                )
            yield acquisition
            acquisition.measure(torch.tensor([[column]], device=blocked.device))
        yield acquisition

    @torch.no_grad()
    def compare(
        self, name: str, columns: Sequence[int], others: Sequence[EvaluationEntry]
    ) -> Verdict:
        """Compare the last column of the user with those of policies.

        The policies choose from the state before it.
        """
        *_, acquisition = islice(self._through(columns), len(columns))
        state = acquisition.state
        self.before_step()
        scores = self.simulator.score_every_column(state)[0]
        _check_finite(scores[~self.simulator.blocked(state)[0]])
        choices = [(name, columns[-1])]
        for entry in others:
            chosen, _ = self._chosen(entry, self._ready(entry), acquisition)
            choices.append((entry.name, int(chosen)))
        choices.append(("oracle", int(scores.argmax())))
        turns = tuple(Turn(who, column, float(scores[column])) for who, column in choices)
        rank = 1 + int((scores > scores[columns[-1]] + TIE).sum())
        return Verdict(float(state.score), turns, rank, int(scores.isfinite().sum()))

    def _ready(self, entry: EvaluationEntry) -> Policy:
        device = self.simulator.batch.kspace.device
        policy = entry.policy.to(device).eval()
        policy = in_precision(policy, self.simulator.reconstructor.precision)
        return policy.bind(self.simulator.context)

    def _chosen(
        self, entry: EvaluationEntry, policy: Policy, acquisition: Acquisition
    ) -> tuple[Int[Tensor, "state draw"], UInt8[np.ndarray, " col"]]:
        """Return the column of a policy, and its ratings of all columns."""
        scores, blocked = acquisition.scores(policy), acquisition.blocked
        draws = action_uniforms(1, 1, self.plan.horizon, entry.draw_seed)[0]
        draws = draws[:, acquisition.n_acquired : acquisition.n_acquired + 1].to(scores.device)
        uniforms = draws if entry.draws(is_argmax=self.plan.is_argmax) else None
        chosen = choose_several(policy, scores, blocked, uniforms, 1)
        check_chosen(is_any_blocked(chosen, blocked), type(policy).__name__)
        return chosen, _rated(scores[0].float(), blocked[0], policy.is_stochastic)

    def _steps(
        self,
        name: str,
        states: Sequence[State],
        columns: Sequence[int],
        is_oracle: bool,
        ratings: UInt8[np.ndarray, "frame col"] | None,
    ) -> PolicySteps:
        images = torch.cat([self.simulator.images(state) for state in states])
        ssim = torch.cat([state.score for state in states])
        _check_finite(ssim)
        arrays = images.float().cpu().numpy(), ssim.float().cpu().numpy()
        return PolicySteps(name, *arrays, tuple(columns), is_oracle, ratings)


def _check_finite(scores: Float[Tensor, " score"]) -> None:
    if not scores.isfinite().all():
        raise DataError(
            "the slice, or what is reconstructed of it, has pixels that are NaN or infinite; "
            "choose another slice or reconstruction"
        )


def _rated(
    scores: Float[Tensor, " col"], blocked: Bool[Tensor, " col"], is_stochastic: bool
) -> UInt8[np.ndarray, " col"]:
    """Scale probabilities or scores to 0..255; the best unmeasured column has 255."""
    if is_stochastic:
        values = column_log_probabilities(scores, blocked).exp()
        low = values.new_zeros(())
    else:
        values, low = scores, scores[~blocked].min()
    top = values[~blocked].max()
    shares = ((values - low) / (top - low).clamp_min(1e-12)).masked_fill(blocked, 0.0)
    return (shares * 255).round().clamp(0, 255).to(torch.uint8).cpu().numpy()


def drawn_kspace(batch: SliceBatch) -> Float[np.ndarray, "row col"]:
    """Return the logarithmic magnitude of k-space over all coils, scaled to 0..1."""
    magnitude = batch.kspace[0].abs().square().sum(dim=0).sqrt()
    levels = magnitude.clamp_min(float(magnitude.max()) * 1e-5 or 1.0).log()
    span = (levels.max() - levels.min()).clamp_min(1e-6)
    return ((levels - levels.min()) / span).float().cpu().numpy()
