"""Fixed orders that complete the acquisitions of a training, one for each matrix size and start."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Int
from torch import Tensor

from kscout.acquisition.completion import Completion
from kscout.errors import RunError
from kscout.training.estimators.mean_gains import MeanGains


@final
@dataclass(frozen=True)
class Completions:
    """What takes the columns that are left, as `training.completion` says."""

    by_size: Mapping[int, Completion]
    """By the columns of slices, with a row for each start."""

    @classmethod
    def measured(
        cls, gains: MeanGains, sizes: Sequence[int], starts: Sequence[int]
    ) -> "Completions":
        """Fit an order for each.

        Args:
            gains: along these orders.
            sizes: columns of slices.
            starts: columns of slices as stored that may be measured at the start.
        """
        found = {
            n_cols: [
                Completion.of(gains.order(n_cols, start), n_cols, gains.device).ranked
                for start in starts
            ]
            for n_cols in dict.fromkeys(sizes)
        }
        return cls({n_cols: Completion(torch.stack(own)) for n_cols, own in found.items()})

    @classmethod
    def restored(cls, state: Mapping[str, Any], device: torch.device) -> "Completions":
        """Return those of a checkpoint."""
        if "completions" not in state:
            raise RunError(
                "the checkpoint has no fixed orders for training.completion as this kscout keeps "
                "them, so that an older one wrote it; delete checkpoint.pt to train from the start"
            )
        orders = state["completions"].items()
        return cls({n_cols: Completion(ranked.to(device)) for n_cols, ranked in orders})

    def state(self) -> dict[str, dict[int, Int[Tensor, "start col"]]]:
        """Return what a checkpoint keeps."""
        return {"completions": {n: one.ranked.cpu() for n, one in self.by_size.items()}}

    def of(self, n_cols: int, start: Int[Tensor, " state"]) -> Completion:
        """Return that of each state, by the number of the start that was drawn for its slice."""
        return self.by_size[n_cols].rows(start)
