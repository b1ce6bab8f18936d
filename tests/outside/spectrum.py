"""A policy that uses the spectrum of the reconstruction."""

import torch
from torch import nn

from kscout.core import Observation, Policy
from kscout.physics import fft2c


class Spectrum(Policy):
    """Scores a column by the energy of the reconstruction in it, and by its position."""

    def __init__(self, *, n_cols: int, n_hidden: int = 8) -> None:
        super().__init__()
        self.n_cols, self.n_hidden = n_cols, n_hidden
        self.place = nn.Parameter(torch.zeros(n_cols))
        self.layers = nn.Sequential(nn.Linear(2, n_hidden), nn.Tanh(), nn.Linear(n_hidden, 1))

    def forward(self, seen: Observation) -> torch.Tensor:
        energy = fft2c(seen.image).abs().square().mean(dim=-2)
        features = torch.stack([torch.log(energy + 1e-6), seen.mask.float()], dim=-1)
        return self.layers(features)[..., 0] + self.place
