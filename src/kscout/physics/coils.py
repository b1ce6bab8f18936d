"""Several receive coils: sensitivities, compression and the encoding operator.

Coil c sees the image x times its sensitivity s_c, so that its k-space is y_c = M F (s_c x), with
the column mask M and the unitary transform F. Sensitivities and the basis of a compression are
estimated from the central columns, with which every acquisition starts. They contain no information
on columns that were not measured.

Sensitivities have unit norm over coils: `combine(expand(image, maps), maps)` is the image. Their
phase is that of the object at low resolution, so that combined images are nearly real.
"""

from functools import lru_cache

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from kscout.columns import LEAST_CENTRAL, center_columns
from kscout.errors import ConfigError
from kscout.physics.fourier import fft2c, ifft2c
from kscout.physics.sampling import apply_mask

MOST_CENTRAL = 24
"""Rows, and the largest number of measured columns, from which sensitivities are estimated."""
KERNEL = 6
"""Width of ESPIRiT's kernels, where the central columns are at least twice as many."""
CUTOFF = 0.02
"""Singular values below this share of the largest are noise to ESPIRiT."""
N_POWER_ITERATIONS = 15
"""From images of low resolution as the start, five already agree with forty on an object."""
_TINY = 1e-30


def expand(
    image: Complex[Tensor, "*lead row col"], maps: Complex[Tensor, "*lead coil row col"]
) -> Complex[Tensor, "*lead coil row col"]:
    """Return what each coil sees, S x."""
    return image.unsqueeze(-3) * maps


def combine(
    images: Complex[Tensor, "*lead coil row col"], maps: Complex[Tensor, "*lead coil row col"]
) -> Complex[Tensor, "*lead row col"]:
    """Return S^H x: coil images weighted by their sensitivities; the adjoint of `expand`."""
    return (maps.conj() * images).sum(dim=-3)


def encode(
    image: Complex[Tensor, "*lead row col"],
    mask: Bool[Tensor, "*#lead col"],
    maps: Complex[Tensor, "*lead coil row col"],
) -> Complex[Tensor, "*lead coil row col"]:
    """Return A x = M F S x: the measured k-space of an image."""
    return apply_mask(fft2c(expand(image, maps)), mask)


def encode_adjoint(
    kspace: Complex[Tensor, "*lead coil row col"],
    mask: Bool[Tensor, "*#lead col"],
    maps: Complex[Tensor, "*lead coil row col"],
) -> Complex[Tensor, "*lead row col"]:
    """Return A^H y = S^H F^-1 M y: the zero-filled image, weighted by the sensitivities."""
    return combine(ifft2c(apply_mask(kspace, mask)), maps)


def compress(
    kspace: Complex[Tensor, "*lead coil row col"], *, n_coils: int = 8, n_center: int
) -> Complex[Tensor, "*lead virtual row col"]:
    """Return k-space of the few virtual coils that hold most of the central columns' energy.

    Args:
        kspace: of all coils.
        n_coils: virtual coils; k-space of at most this number of coils is unchanged.
        n_center: central columns that the basis is computed from.
    """
    check_compression(n_coils, n_center, kspace.shape[-1])
    if kspace.shape[-3] <= n_coils:
        return kspace
    columns = center_columns(kspace.shape[-1], n_center)
    center = kspace[..., columns.start : columns.stop].flatten(-2)
    _, vectors = torch.linalg.eigh(center @ center.mH)
    basis = vectors[..., -n_coils:].flip(-1)
    # The phase of an eigenvector is arbitrary: its largest entry is made real, on every device.
    largest = basis.gather(-2, basis.abs().argmax(dim=-2, keepdim=True))
    basis = basis * largest.conj() / largest.abs()
    return torch.einsum("...cv,...crk->...vrk", basis.conj(), kspace)


def check_compression(n_coils: int, n_center: int, n_cols: int) -> None:
    """Raise an error for a compression to no coil, or from columns that do not exist."""
    if n_coils < 1:
        raise ConfigError(f"cannot compress to {n_coils} coils; keep 1 or more")
    _checked(n_center, n_cols, 1)


def sensitivities(
    kspace: Complex[Tensor, "*lead coil row col"], *, n_center: int
) -> Complex[Tensor, "*lead coil row col"]:
    """Estimate sensitivity maps from the central columns by ESPIRiT.

    Uecker et al. 2014 (doi 10.1002/mrm.24751). Patches of k-space span a space that is smaller than
    their number of samples, as all coils see one object; at each pixel the maps are the eigenvector
    of the projection on that space with eigenvalue 1.

    Args:
        kspace: only the central rows of its central columns are used.
        n_center: number of central columns.
    """
    n_coils, n_rows, n_cols = kspace.shape[-3:]
    least = LEAST_CENTRAL if n_coils > 1 else 1
    n_center = _checked(n_center, n_cols, least)
    rows = center_columns(n_rows, min(n_rows, MOST_CENTRAL))
    columns = center_columns(n_cols, n_center)
    block = kspace[..., rows.start : rows.stop, columns.start : columns.stop]
    rough = ifft2c(_windowed(block, n_rows, n_cols))
    if n_coils == 1:
        return unit_norm(rough)
    kernel = (min(KERNEL, len(rows) // 2), min(KERNEL, n_center // 2))
    projection = _pixel_projection(_patch_projection(block, kernel), kernel, n_rows, n_cols)
    maps = unit_norm(rough)
    for _ in range(N_POWER_ITERATIONS):
        maps = unit_norm((projection * maps.unsqueeze(-4)).sum(dim=-3))
    along = (maps.conj() * rough).sum(dim=-3, keepdim=True)
    size = along.abs()
    return maps * torch.where(size > _TINY, along / size.clamp(min=_TINY), 1)


def rough_sensitivities(
    kspace: Complex[Tensor, "batch coil row col"], mask: Bool[Tensor, "batch col"]
) -> Complex[Tensor, "batch coil row col"]:
    """Return coil images of low resolution over their root sum of squares.

    This needs one transform for any number of central columns, and never waits for the device. Far
    from the center of k-space the result is less accurate than that of ESPIRiT.

    Args:
        kspace: only the measured columns around DC are used.
        mask: measured columns.
    """
    n_rows = kspace.shape[-2]
    n_center, center = n_central(mask), central_mask(mask)
    by_rows = _window(_offset(n_rows, mask.device), min(n_rows, MOST_CENTRAL))
    by_cols = _window(_offset(mask.shape[-1], mask.device), n_center[:, None])
    window = by_rows[:, None] * by_cols[:, None]
    return unit_norm(ifft2c(apply_mask(kspace, center) * window[:, None]))


def combined(
    zero_filled: Complex[Tensor, "batch coil row col"], mask: Bool[Tensor, "batch col"]
) -> Complex[Tensor, "batch 1 row col"]:
    """Return one nearly real image of all coils: weighted by `rough_sensitivities`.

    An image of one coil is unchanged.
    """
    if zero_filled.shape[1] == 1:
        return zero_filled
    maps = rough_sensitivities(fft2c(zero_filled), mask)
    return combine(zero_filled, maps)[:, None]


def n_central(mask: Bool[Tensor, "*lead col"]) -> Int[Tensor, "*lead"]:
    """Return how many central columns of each mask are measured without a gap."""
    centers = _centers(mask.shape[-1], mask.device)
    return (~(centers & ~mask.unsqueeze(-2)).any(dim=-1)).sum(dim=-1)


def central_mask(mask: Bool[Tensor, "*lead col"]) -> Bool[Tensor, "*lead col"]:
    """Return the columns of each mask around DC that are measured without a gap."""
    centers = _centers(mask.shape[-1], mask.device)
    is_whole = ~(centers & ~mask.unsqueeze(-2)).any(dim=-1)
    return (centers & is_whole.unsqueeze(-1)).any(dim=-2)


def calibrated(
    kspace: Complex[Tensor, "batch coil row col"], mask: Bool[Tensor, "batch col"]
) -> Complex[Tensor, "batch coil row col"]:
    """Return `sensitivities` of each image from the central columns of its own mask.

    More than `MOST_CENTRAL` columns are not used. Waits for the device.
    """
    widths = n_central(mask).clamp(max=MOST_CENTRAL).tolist()
    if len(set(widths)) == 1:
        return sensitivities(kspace, n_center=widths[0])
    maps = torch.empty_like(kspace)
    for width in sorted(set(widths)):
        own = torch.tensor([i for i, n in enumerate(widths) if n == width], device=kspace.device)
        maps[own] = sensitivities(kspace[own], n_center=width)
    return maps


def _checked(n_center: int, n_cols: int, least: int) -> int:
    if not least <= n_center <= n_cols:
        advice = "start from more" if n_center < least else "lower that number"
        if n_center < least > 1:
            advice += ", or use a reconstruction that learns sensitivities"
        raise ConfigError(
            f"sensitivities and coil bases need {least} to {n_cols} central columns, found "
            f"{n_center}; {advice}"
        )
    return n_center


@lru_cache(maxsize=32)
def _centers(n_cols: int, device: torch.device) -> Bool[Tensor, "n col"]:
    """Return the masks of 1, 2, ... central columns, each within the next."""
    table = torch.zeros(n_cols, n_cols, dtype=torch.bool)
    for n in range(1, n_cols + 1):
        columns = center_columns(n_cols, n)
        table[n - 1, columns.start : columns.stop] = True
    return table.to(device)


def _offset(n: int, device: torch.device) -> Int[Tensor, " n"]:
    return torch.arange(n, device=device) - n // 2


def _window(
    offset: Int[Tensor, " n"], width: int | Int[Tensor, "batch 1"]
) -> Float[Tensor, "*batch n"]:
    """Return a raised cosine over `width` samples around DC; zero beyond."""
    distance = offset.abs() / (width / 2 + 1)
    return torch.where(distance < 1, torch.cos(torch.pi / 2 * distance).square(), 0)


def _windowed(
    block: Complex[Tensor, "*lead block_row block_col"], n_rows: int, n_cols: int
) -> Complex[Tensor, "*lead row col"]:
    """Return k-space of the full size that holds the central block under a smooth window."""
    full = block.new_zeros(*block.shape[:-2], n_rows, n_cols)
    rows = center_columns(n_rows, block.shape[-2])
    columns = center_columns(n_cols, block.shape[-1])
    full[..., rows.start : rows.stop, columns.start : columns.stop] = block
    by_rows, by_cols = (
        _window(_offset(n, block.device), m)
        for n, m in zip((n_rows, n_cols), block.shape[-2:], strict=True)
    )
    return full * (by_rows[:, None] * by_cols)


def _patch_projection(
    block: Complex[Tensor, "*lead coil block_row block_col"], kernel: tuple[int, int]
) -> Complex[Tensor, "*lead n n"]:
    """Return the projection on the space that the patches of a block span."""
    patches = block.unfold(-2, kernel[0], 1).unfold(-2, kernel[1], 1)
    patches = patches.movedim(-5, -3).flatten(-3).flatten(-3, -2)
    # In double precision: products of samples span the square of the range of samples.
    patches = patches.to(torch.complex128)
    values, vectors = torch.linalg.eigh(patches.mT @ patches.conj())
    is_signal = values > CUTOFF**2 * values[..., -1:]
    return ((vectors * is_signal.unsqueeze(-2)) @ vectors.mH).to(block.dtype)


def _pixel_projection(
    projection: Complex[Tensor, "*lead n n"], kernel: tuple[int, int], n_rows: int, n_cols: int
) -> Complex[Tensor, "*lead coil coil row col"]:
    """Return the mean over a patch's samples of the projection, at each pixel.

    Samples a and b of a patch differ by the phase exp(2 pi i (a - b) r) at pixel r.
    """
    n_samples = kernel[0] * kernel[1]
    n_coils = projection.shape[-1] // n_samples
    pairs = projection.unflatten(-1, (n_coils, n_samples)).unflatten(-3, (n_coils, n_samples))
    pairs = pairs.movedim(-3, -2).flatten(-2)
    (lag, n_lags), place = _lags(kernel, projection.device), projection.shape[:-2]
    sums = pairs.new_zeros(*place, n_coils, n_coils, n_lags[0] * n_lags[1])
    sums = sums.index_add(-1, lag, pairs).unflatten(-1, n_lags) / n_samples
    by_rows, by_cols = (
        _waves(n, m, projection) for n, m in zip((n_rows, n_cols), n_lags, strict=True)
    )
    return by_rows @ sums @ by_cols.mT


def _lags(
    kernel: tuple[int, int], device: torch.device
) -> tuple[Int[Tensor, " pair"], tuple[int, int]]:
    """Return the index of each pair's difference in a table of differences, and its shape."""
    n_lags = (2 * kernel[0] - 1, 2 * kernel[1] - 1)
    row, col = (torch.arange(n, device=device) for n in kernel)
    row, col = (x.flatten() for x in torch.meshgrid(row, col, indexing="ij"))
    by_row, by_col = (x[:, None] - x + n - 1 for x, n in zip((row, col), kernel, strict=True))
    return (by_row * n_lags[1] + by_col).flatten(), n_lags


def _waves(n: int, n_lags: int, like: Tensor) -> Complex[Tensor, "n lag"]:
    """Return exp(2 pi i l r / n) for differences l and pixels r around the center."""
    pixel, lag = _offset(n, like.device), _offset(n_lags, like.device)
    angle = (2 * torch.pi / n) * (pixel[:, None] * lag)
    return torch.polar(torch.ones_like(angle), angle).to(like.dtype)


def unit_norm(maps: Complex[Tensor, "*lead coil row col"]) -> Complex[Tensor, "*lead coil row col"]:
    """Return maps of unit norm over coils; where all are zero, the first coil sees all."""
    norm = torch.linalg.vector_norm(maps, dim=-3, keepdim=True)
    first = torch.zeros_like(maps)
    first[..., 0, :, :] = 1
    return torch.where(norm > _TINY, maps / norm.clamp(min=_TINY), first)


__all__ = [
    "calibrated",
    "central_mask",
    "check_compression",
    "combine",
    "combined",
    "compress",
    "encode",
    "encode_adjoint",
    "expand",
    "n_central",
    "rough_sensitivities",
    "sensitivities",
    "unit_norm",
]
