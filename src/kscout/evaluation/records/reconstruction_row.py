"""The scores of one reconstruction in the comparison of reconstructions; no torch."""

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class ReconstructionRow:
    """What one reconstruction reached at one acceleration, mean over slices."""

    reconstruction: str
    acceleration: float
    n_center: int
    """Columns around the center that are always measured."""
    n_slices: int
    n_volumes: int
    protocol: str
    ssim: float
    ssim_low: float | None
    """The ends of the 95 % interval over volumes; None with fewer than three."""
    ssim_high: float | None
    psnr: float
    nmse: float
    trained_for: str | None = None
    """Protocol of its training if that is the other one."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of SSIM."""
        low, high = self.ssim_low, self.ssim_high
        return None if low is None or high is None else (low, high)
