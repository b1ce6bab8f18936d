"""What a session advises: which columns to measure next, and who says so."""

from dataclasses import dataclass
from typing import Literal, final

from jaxtyping import Float
from torch import Tensor

Source = Literal["start", "policy", "fallback", "end"]


@final
@dataclass(frozen=True, eq=False)
class Advice:
    """Which columns to measure next, and why."""

    columns: tuple[int, ...]
    """In the order of preference; none at the end."""
    source: Source
    """`start` until all of it is measured; `fallback` where the policy was late or failed."""
    scores: Float[Tensor, " col"] | None = None
    """The policy's, of every column, measured ones included; None where another source answers."""
    duration_s: float = 0.0

    @property
    def is_late(self) -> bool:
        """Whether the fallback answers, for a policy that was late or failed."""
        return self.source == "fallback"
