"""A reconstruction that the package does not have: gradient descent with learned steps."""

from typing import final

import torch
from torch import nn

from kscout.core import Measurement, Reconstruction, Reconstructor
from kscout.physics import apply_mask, fft2c, ifft2c, magnitude


@final
class Unrolled(Reconstructor):
    """Alternates data consistency and a learned convolution of each coil, `n_steps` times."""

    def __init__(self, *, n_steps: int = 2) -> None:
        super().__init__()
        self.n_steps = n_steps
        self.step = nn.Parameter(torch.full((n_steps,), 0.5))
        self.smooth = nn.ModuleList(nn.Conv2d(2, 2, 3, padding=1) for _ in range(n_steps))

    def reconstruct(self, measured: Measurement) -> Reconstruction:
        image = measured.zero_filled
        unit = measured.std[:, None, None, None]
        for step, smooth in zip(self.step, self.smooth, strict=True):
            residual = apply_mask(fft2c(image), measured.mask) - measured.kspace
            flat = torch.view_as_real(image / unit).flatten(0, 1).movedim(-1, 1)
            change = smooth(flat).movedim(1, -1).unflatten(0, image.shape[:2]).contiguous()
            image = image - step * ifft2c(residual) + 0.1 * unit * torch.view_as_complex(change)
        return Reconstruction.of(magnitude(image))
