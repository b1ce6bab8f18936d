"""Trials of columns on images that are taken for the truth, for policies that imagine some."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.acquisition.episode import Simulator, how_many_at_once
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
        columns, is_measured = _unmeasured(columns, mask)
        gains = [
            simulator.score_columns(state, columns[rows]) - state.score[:, None]
            for simulator, state, rows in self._parts(truth, mask)
        ]
        return torch.cat(gains).masked_fill(is_measured, 0.0)

    def _parts(
        self, truth: SliceBatch, mask: Bool[Tensor, "batch col"]
    ) -> Iterator[tuple[Simulator, State, Int[Tensor, " part"]]]:
        """Yield simulators of as many images as are reconstructed at once, and which those are."""
        most = how_many_at_once(self.reconstructor, truth.kspace.shape[1:], mask.device)
        for rows in torch.arange(len(truth), device=mask.device).split(most):
            simulator = Simulator(
                truth.rows(rows), self.reconstructor, protocol=self.protocol, metric=self.metric
            )
            yield simulator, simulator.start_from(mask[rows]), rows


def _unmeasured(
    columns: Int[Tensor, "batch candidate"], mask: Bool[Tensor, "batch col"]
) -> tuple[Int[Tensor, "batch candidate"], Bool[Tensor, "batch candidate"]]:
    """Let a column that can be measured stand in for those that are, and say which those are."""
    is_measured = mask.gather(-1, columns)
    some = (~mask).to(torch.int8).argmax(dim=-1, keepdim=True)
    return torch.where(is_measured, some, columns), is_measured
