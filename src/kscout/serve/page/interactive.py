"""One slice acquired step by step on the page, by policies and by the user."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from kscout.acquisition.choose import check_chosen, choose_columns, column_log_probabilities
from kscout.acquisition.episode import Simulator
from kscout.acquisition.rollout import action_uniforms
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

    Args:
        simulator: simulator of a batch of one slice.
        n_initial: central columns measured at the start.
        horizon: columns to acquire.
        is_argmax: trained policies take the highest-scoring columns.
        before_step: called before every step; an error that it raises ends the acquisition.
    """

    def __init__(
        self,
        simulator: Simulator,
        *,
        n_initial: int,
        horizon: int,
        is_argmax: bool = False,
        before_step: Callable[[], None] = lambda: None,
    ) -> None:
        self.simulator, self.n_initial, self.horizon = simulator, n_initial, horizon
        self.is_argmax, self.before_step = is_argmax, before_step

    @property
    def start_columns(self) -> tuple[int, ...]:
        """The columns of the start."""
        mask = start_mask(self.n_initial, self.simulator.batch.selectable.shape)
        return tuple(mask[0].nonzero()[:, 0].tolist())

    @torch.no_grad()
    def run(self, entry: EvaluationEntry) -> PolicySteps:
        """Acquire by a policy; columns are sampled if its training sampled them."""
        simulator, policy = self.simulator, self._ready(entry)
        state = simulator.start(self.n_initial)
        states, columns, ratings = [state], list[int](), list[UInt8[np.ndarray, " col"]]()
        for step in range(self.horizon):
            self.before_step()
            chosen, rating = self._chosen(entry, policy, state, step)
            columns.append(int(chosen))
            ratings.append(rating)
            state = simulator.acquire(state, chosen)
            states.append(state)
        # After the last step there are no ratings.
        ratings.append(np.zeros(simulator.batch.n_cols, np.uint8))
        return self._steps(entry.name, states, columns, entry.is_oracle, np.stack(ratings))

    @torch.no_grad()
    def replay(self, name: str, columns: Sequence[int]) -> PolicySteps:
        """Measure the columns of the user; the last image fills the remaining steps."""
        states = self.states(columns)
        states += states[-1:] * (self.horizon + 1 - len(states))
        return self._steps(name, states, columns, False, None)

    @torch.no_grad()
    def states(self, columns: Sequence[int]) -> list[State]:
        """Return the states at the start and after each column."""
        if len(columns) > self.horizon:
            raise ConfigError(
                f"{len(columns)} columns were measured, and {self.horizon} may be; take more steps"
            )
        states = [self.simulator.start(self.n_initial)]
        for column in columns:
            self.before_step()
            blocked = self.simulator.blocked(states[-1])[0]
            if not 0 <= column < len(blocked) or blocked[column]:
                raise ConfigError(
                    f"column {column} is measured already, or outside of the matrix; take another"
                )
            chosen = torch.tensor([column], device=blocked.device)
            states.append(self.simulator.acquire(states[-1], chosen))
        return states

    @torch.no_grad()
    def compare(
        self, name: str, columns: Sequence[int], others: Sequence[EvaluationEntry]
    ) -> Verdict:
        """Compare the last column of the user with those of policies.

        Args:
            name: name of the user.
            columns: one or more columns, in order.
            others: policies; they choose from the state before the last column.
        """
        state, step = self.states(columns)[-2], len(columns) - 1
        self.before_step()
        scores = self.simulator.score_every_column(state)[0]
        _check_finite(scores[~self.simulator.blocked(state)[0]])
        choices = [(name, columns[-1])]
        for entry in others:
            chosen, _ = self._chosen(entry, self._ready(entry), state, step)
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
        self, entry: EvaluationEntry, policy: Policy, state: State, step: int
    ) -> tuple[Int[Tensor, " state"], UInt8[np.ndarray, " col"]]:
        """Return the column of a policy, and its ratings of all columns."""
        seen = self.simulator.observe(policy, state, n_left=self.horizon - step)
        scores, blocked = policy(seen), self.simulator.blocked(state)
        draws = action_uniforms(1, 1, self.horizon, entry.draw_seed)[0, :, step]
        uniforms = draws.to(scores.device) if entry.draws(is_argmax=self.is_argmax) else None
        chosen = choose_columns(policy, scores, blocked, uniforms)
        check_chosen(blocked.gather(-1, chosen[:, None]).any(), type(policy).__name__)
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
