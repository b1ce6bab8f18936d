"""Zero-filling gives the reference's network input."""

import pytest
import torch

from golden_numbers import Golden
from kscout.physics.fourier import fft2c
from kscout.physics.sampling import center_mask
from kscout.reconstruction.zero_filled import ZeroFilled


@pytest.mark.parametrize("size, n_center, key", [(128, 16, "a8"), (128, 4, "a32"), (64, 8, "a8")])
def test_it_is_the_references_input(golden: Golden, size: int, n_center: int, key: str) -> None:
    start = (128 - size) // 2
    image = golden("inputs", "images128")[:, start : start + size, start : start + size]
    mask = center_mask(size, n_center).expand(6, -1)
    found = ZeroFilled()(fft2c(image)[:, None], mask)
    expected = golden("inputs", f"zf_r{size}_{key}")
    torch.testing.assert_close(found.image, expected, atol=1e-4, rtol=0)


def test_coils_are_combined_by_root_sum_of_squares(generator: torch.Generator) -> None:
    kspace = torch.randn(2, 3, 9, 11, dtype=torch.complex64, generator=generator)
    found = ZeroFilled()(kspace, torch.ones(2, 11, dtype=torch.bool))
    shifted = torch.fft.ifftshift(kspace, dim=(-2, -1))
    images = torch.fft.fftshift(torch.fft.ifft2(shifted, norm="ortho"), dim=(-2, -1))
    expected = torch.linalg.vector_norm(images, dim=1)
    undone = found.image * found.std[:, None, None] + found.mean[:, None, None]
    torch.testing.assert_close(undone, expected, atol=1e-5, rtol=1e-5)
