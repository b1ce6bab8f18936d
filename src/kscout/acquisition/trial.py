"""Trials of columns on images that are taken for the truth, for policies that imagine some."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.acquisition.completion import Completion
from kscout.acquisition.episode import Simulator
from kscout.acquisition.state import State
from kscout.core import Judge, Protocol, Reconstructor, SliceBatch


@final
@dataclass(frozen=True)
class Trial(Judge):
    """Measures, reconstructs and scores as acquisitions do; it holds no slice of theirs."""

    reconstructor: Reconstructor
    """Frozen."""
    protocol: Protocol
    metric: str = "ssim"
    """A name of `kscout.names.METRICS`, or `module:function`."""

    def gains(
        self,
        truth: SliceBatch,
        mask: Bool[Tensor, "batch col"],
        columns: Int[Tensor, "batch candidate"],
    ) -> Float[Tensor, "batch candidate"]:
        simulator, state = self._begun(truth, mask)
        columns, is_measured = _unmeasured(columns, mask)
        gains = simulator.score_columns(state, columns) - state.score[:, None]
        return gains.masked_fill(is_measured, 0.0)

    def values(
        self,
        truth: SliceBatch,
        mask: Bool[Tensor, "batch col"],
        columns: Int[Tensor, "batch candidate"],
        order: Sequence[int],
        n_left: Int[Tensor, " batch"],
    ) -> Float[Tensor, "batch candidate"]:
        simulator, state = self._begun(truth, mask)
        columns, is_measured = _unmeasured(columns, mask)
        completion = Completion.of([*order], truth.n_cols, mask.device)
        worth = completion.values(simulator, state, columns, n_left)
        return worth.masked_fill(is_measured, 0.0)

    def _begun(self, truth: SliceBatch, mask: Bool[Tensor, "batch col"]) -> tuple[Simulator, State]:
        how = {"protocol": self.protocol, "metric": self.metric}
        simulator = Simulator(truth, self.reconstructor, **how)  # type: ignore[arg-type]
        return simulator, simulator.start_from(mask)


def _unmeasured(
    columns: Int[Tensor, "batch candidate"], mask: Bool[Tensor, "batch col"]
) -> tuple[Int[Tensor, "batch candidate"], Bool[Tensor, "batch candidate"]]:
    """Let a column that can be measured stand in for those that are, and say which those are."""
    is_measured = mask.gather(-1, columns)
    some = (~mask).to(torch.int8).argmax(dim=-1, keepdim=True)
    return torch.where(is_measured, some, columns), is_measured
