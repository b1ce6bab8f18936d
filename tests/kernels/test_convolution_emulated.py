"""The convolution kernels, run thread by thread on the CPU, agree with torch."""

import pytest
import torch
from emulated import HAS_COMPILER, emulate, nan
from torch import Tensor
from torch.nn import functional as F

from kscout.kernels.convolution import FILE, packed_order

pytestmark = pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler")


def pack_weight(weight: Tensor) -> Tensor:
    values = torch.cat([torch.zeros(1), weight.reshape(-1)])
    return values[packed_order(*weight.shape[:2])].half().contiguous()


def sums_of(values: Tensor) -> Tensor:
    """Sums of one tile that covers the image: [image, 1, channel, 2]."""
    flat = values.float().flatten(1, 2)
    return torch.stack([flat.sum(1), flat.square().sum(1)], dim=-1)[:, None].contiguous()


def activated(values: Tensor) -> Tensor:
    return F.instance_norm(values.float().permute(0, 3, 1, 2)).relu()


@pytest.mark.parametrize(("mode", "n_skip"), [(0, 0), (1, 0), (2, 0), (2, 16)])
def test_convolution_reads_finishes_the_norm_and_convolves(mode: int, n_skip: int) -> None:
    generator = torch.Generator().manual_seed(mode)
    size, n_main, n_out, n_images = 16, 16, 16, 2
    source = {0: 16, 1: 32, 2: 8}[mode]
    main = (torch.randn(n_images, source, source, n_main, generator=generator) * 2 + 1).half()
    skip = torch.randn(n_images, size, size, max(n_skip, 8), generator=generator).half()
    weight = torch.randn(n_out, n_main + n_skip, 3, 3, generator=generator) / 12
    out, sums = nan(n_images, size, size, n_out, dtype=torch.half), nan(n_images, 1, n_out, 2)
    tiling = (size, size, 4, 1, 1)
    arguments = (size, size, n_main, mode, n_skip, n_out, *tiling)
    values: list[Tensor | int] = [
        main,
        sums_of(main),
        1,
        skip,
        sums_of(skip),
        1,
        pack_weight(weight),
        out,
        sums,
    ]
    count = torch.tensor(n_images, dtype=torch.int32)
    emulate(FILE, "convolve", arguments, (1, n_images, 1), 128, [*values, count])

    features = activated(main)
    if mode == 1:
        features = F.max_pool2d(features, 2)
    if mode == 2:
        features = F.interpolate(features, scale_factor=2, mode="bilinear")
    if n_skip:
        features = torch.cat([features, activated(skip)], dim=1)
    expected = F.conv2d(features, weight, padding=1).permute(0, 2, 3, 1)
    torch.testing.assert_close(out.float(), expected, atol=6e-3, rtol=4e-3)
    torch.testing.assert_close(sums, sums_of(out), atol=0.1, rtol=2e-3)
