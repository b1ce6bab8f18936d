"""The convolution kernels, run thread by thread on the CPU, agree with torch."""

from dataclasses import replace

import pytest
import torch
from emulated import emulate, nan
from torch import Tensor
from torch.nn import functional as F

from kscout.kernels.convolution import FILE, Division, packed_order

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiler")]

MODES = {"same": 0, "up": 1, "pooled": 2}


def pack_weight(weight: Tensor) -> Tensor:
    values = torch.cat([torch.zeros(1), weight.reshape(-1)])
    return values[packed_order(*weight.shape[:2])].half().contiguous()


def sums_of(values: Tensor, n_tiles: int) -> Tensor:
    """Sums of equal bands of rows: [image, tile, channel, 2]."""
    flat = values.float().unflatten(1, (n_tiles, -1)).flatten(2, 3)
    return torch.stack([flat.sum(2), flat.square().sum(2)], dim=-1).contiguous()


def activated(values: Tensor) -> Tensor:
    return F.instance_norm(values.float().permute(0, 3, 1, 2)).relu()


def maxima(values: Tensor) -> Tensor:
    """Largest of 2 x 2 pixels, channels last."""
    return F.max_pool2d(values.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1).contiguous()


def convolve(
    main: Tensor,
    skip: Tensor | None,
    weight: Tensor,
    mode: str,
    shape: tuple[int, int],
    *,
    n_blocks: int = 2,
    n_stages: int | None = None,
    keeps: bool | None = None,
    n_asked: int = 9,
    pools: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the kernel for as many images as asked for, but not for the last.

    Returns:
        Output, sums and pooled output.
    """
    (n_out, n_in), n_images = weight.shape[:2], len(main)
    n_skip = 0 if skip is None else skip.shape[-1]
    beside = main if skip is None else skip
    division = Division.of(*shape, n_in, n_out, ups=mode == "up")
    keeps = division.keeps_weights if keeps is None else keeps
    division = replace(division, n_stages=n_stages or division.n_stages, keeps_weights=keeps)
    sizes = (division.n_rows, division.n_cols, division.warps_m, division.warps_n, division.parts)
    n_tiles = shape[0] * shape[1] // (division.n_rows * division.n_cols)
    out = nan(n_images, *shape, n_out, dtype=torch.half)
    pooled = nan(n_images, shape[0] // 2, shape[1] // 2, n_out, dtype=torch.half)
    sums = nan(n_images, n_tiles, n_out, 2)
    read = maxima(main) if mode == "pooled" else main
    values: list[Tensor | int] = [
        *(read, sums_of(main, 2), 2),
        *(beside, sums_of(beside, 1), 1),
        *(pack_weight(weight), out, pooled, sums),
        *(torch.tensor(n_asked, dtype=torch.int32), n_images - 1),
    ]
    arguments = (
        *shape,
        n_in - n_skip,
        MODES[mode],
        n_skip,
        n_out,
        *sizes,
        *(division.n_stages, int(division.keeps_weights), 1),
        int(pools),
    )
    grid = (n_blocks, division.parts, 1)
    emulate(FILE, "convolve", arguments, grid, division.n_threads, values)
    assert out[-1].isnan().all() and sums[-1].isnan().all()
    return out[:-1], sums[:-1], pooled[:-1]


@pytest.mark.parametrize(
    ("mode", "shape", "n_main", "n_skip", "n_out"),
    [
        ("same", (16, 32), 32, 0, 32),  # two tiles, two parts of the channels
        ("same", (8, 64), 16, 0, 64),  # two tiles beside each other
        ("same", (16, 16), 48, 0, 48),  # channels that 32 do not divide
        ("same", (8, 8), 16, 0, 32),  # two rows of pixels in one product
        ("same", (8, 4), 16, 0, 16),  # four rows of pixels in one product
        ("same", (12, 20), 16, 0, 32),  # the same, three tiles down and five across
        ("same", (8, 48), 16, 0, 16),  # three tiles of 16 columns
        ("pooled", (8, 16), 32, 0, 16),
        ("up", (16, 32), 16, 0, 16),
        ("up", (4, 16), 32, 16, 32),
        ("up", (8, 24), 16, 16, 16),
    ],
)
def test_convolution_reads_finishes_the_norm_and_convolves(
    mode: str, shape: tuple[int, int], n_main: int, n_skip: int, n_out: int
) -> None:
    generator = torch.Generator().manual_seed(n_main + n_skip)
    rows, cols = ({"same": 2, "up": 1}.get(mode, 4) * side // 2 for side in shape)
    main = (torch.randn(3, rows, cols, n_main, generator=generator) * 2 + 1).half()
    skip = torch.randn(3, *shape, n_skip, generator=generator).half() if n_skip else None
    weight = torch.randn(n_out, n_main + n_skip, 3, 3, generator=generator) / 12
    out, sums, _ = convolve(main, skip, weight, mode, shape)

    features = activated(main[:-1])
    if mode == "pooled":
        features = F.max_pool2d(features, 2)
    if mode == "up":
        features = F.interpolate(features, scale_factor=2, mode="bilinear")
    if skip is not None:
        features = torch.cat([features, activated(skip[:-1])], dim=1)
    expected = F.conv2d(features, weight, padding=1).permute(0, 2, 3, 1)
    torch.testing.assert_close(out.float(), expected, atol=1e-2, rtol=4e-3)
    torch.testing.assert_close(sums.sum(1), sums_of(out, 1)[:, 0], atol=0.2, rtol=2e-3)


def test_bits_depend_neither_on_blocks_nor_on_where_weights_are() -> None:
    generator = torch.Generator().manual_seed(3)
    main = torch.randn(4, 8, 64, 16, generator=generator).half()
    weight = torch.randn(16, 16, 3, 3, generator=generator)
    first = convolve(main, None, weight, "same", (8, 64), n_blocks=1)
    second = convolve(
        *(main, None, weight, "same", (8, 64)), n_blocks=5, n_stages=3, keeps=False, n_asked=2
    )
    assert torch.equal(first[0][:2], second[0][:2]) and torch.equal(first[1][:2], second[1][:2])
    assert second[0][2].isnan().all()


@pytest.mark.parametrize(("n_stages", "keeps"), [(2, False), (4, True)])
def test_bits_do_not_depend_on_what_is_under_way(n_stages: int, keeps: bool) -> None:
    generator = torch.Generator().manual_seed(6)
    main = torch.randn(4, 4, 16, 32, generator=generator).half()
    skip = torch.randn(4, 8, 32, 16, generator=generator).half()
    weight = torch.randn(32, 48, 3, 3, generator=generator)
    first = convolve(main, skip, weight, "up", (8, 32), n_stages=2, keeps=True)
    second = convolve(main, skip, weight, "up", (8, 32), n_stages=n_stages, keeps=keeps)
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])


@pytest.mark.parametrize("shape", [(8, 64), (24, 40)])
def test_pooled_output_holds_the_maxima(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(4)
    main = torch.randn(3, *shape, 16, generator=generator).half()
    weight = torch.randn(32, 16, 3, 3, generator=generator)
    out, _, pooled = convolve(main, None, weight, "same", shape, pools=True)
    assert torch.equal(pooled, maxima(out))


def test_channels_far_from_zero_keep_their_deviations() -> None:
    generator = torch.Generator().manual_seed(5)
    deviations = torch.randn(2, 8, 8, 16, generator=generator)
    main = (deviations * 0.25 + torch.linspace(-40, 40, 16)).half()
    weight = torch.randn(16, 16, 3, 3, generator=generator) / 12
    out, *_ = convolve(main, None, weight, "same", (8, 8))
    expected = F.conv2d(activated(main[:-1]), weight, padding=1).permute(0, 2, 3, 1)
    # A mean of up to 160 deviations is known to half of 2**-3: that is 0.06 in each of them.
    assert (out.float() - expected).abs().max() < 0.1


@pytest.mark.parametrize(("shape", "clamps"), [((16, 32), 0), ((8, 8), 1), ((24, 80), 1)])
def test_first_layer_normalizes_and_convolves(shape: tuple[int, int], clamps: int) -> None:
    generator = torch.Generator().manual_seed(clamps)
    n_images, n_out = 3, 16
    images = torch.rand(n_images, *shape, generator=generator)
    images[:, 2, 3] = 9.0
    mean, std = torch.rand(2, n_images, generator=generator) + 0.5
    weight = torch.randn(n_out, 1, 3, 3, generator=generator) / 3
    division = Division.of(*shape, 1, n_out)
    n_tiles = shape[0] * shape[1] // (division.n_rows * division.n_cols)
    out, sums = nan(n_images, *shape, n_out, dtype=torch.half), nan(n_images, n_tiles, n_out, 2)
    arguments = (*shape, n_out, division.n_rows, division.n_cols, division.warps_m, clamps)
    count = torch.tensor(7, dtype=torch.int32)
    values = [images, mean, std, pack_weight(weight), out, sums, count, n_images - 1]
    emulate(FILE, "convolve_first", arguments, (2, 1, 1), 32 * division.warps_m, values)

    normalized = (images - mean[:, None, None]) / std[:, None, None]
    if clamps:
        normalized = normalized.clamp(-6, 6)
    expected = F.conv2d(normalized[:, None], weight, padding=1).permute(0, 2, 3, 1)
    torch.testing.assert_close(out[:-1].float(), expected[:-1], atol=1e-2, rtol=4e-3)
    torch.testing.assert_close(sums.sum(1)[:-1], sums_of(out, 1)[:-1, 0], atol=0.2, rtol=2e-3)
    assert out[-1].isnan().all()
