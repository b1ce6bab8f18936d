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
        self, truth: SliceBatch, mask: Bool[Tensor, "batch col"]
    ) -> Float[Tensor, "batch col"]:
        simulator, state = self._begun(truth, mask)
        gains = simulator.score_every_column(state) - state.score[:, None]
        return gains.masked_fill(mask, 0.0)

    def values(
        self,
        truth: SliceBatch,
        mask: Bool[Tensor, "batch col"],
        order: Sequence[int],
        n_left: Int[Tensor, " batch"],
    ) -> Float[Tensor, "batch col"]:
        simulator, state = self._begun(truth, mask)
        columns = torch.arange(truth.n_cols, device=mask.device).expand(mask.shape)
        completion = Completion.of([*order], truth.n_cols, mask.device)
        return completion.values(simulator, state, columns, n_left).masked_fill(mask, 0.0)

    def _begun(self, truth: SliceBatch, mask: Bool[Tensor, "batch col"]) -> tuple[Simulator, State]:
        how = {"protocol": self.protocol, "metric": self.metric}
        simulator = Simulator(truth, self.reconstructor, **how)  # type: ignore[arg-type]
        return simulator, simulator.start_from(mask)
