"""An unrolled variational network for several coils: data consistency and learned corrections.

Sriram et al. 2020 (arXiv 2004.06688), small by default. With coil images z, measured images z0 and
sensitivities S each cascade computes

    z <- z - eta (F^-1 M F z - z0) - S U(S^H z),

where U is a U-Net on the combined complex image. The networks normalize their inputs and undo it,
so the result is independent of the scanner's units. Parameter names are those of fastMRI's
checkpoints.
"""

import logging
import warnings
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from copy import copy
from functools import cache
from typing import final

import torch
from jaxtyping import Bool, Complex, Float
from torch import Tensor, nn
from torch.nn import functional as F

from kscout.core import Measurement, Reconstruction, Reconstructor
from kscout.errors import ConfigError
from kscout.layers import peak_bytes
from kscout.names.data import check_target
from kscout.physics.coils import central_mask, combine, unit_norm
from kscout.physics.fourier import ifft2c
from kscout.physics.sampling import apply_mask
from kscout.reconstruction.fastmri_unet import FastMRINetwork

_MULTIPLE = 16
"""Images are padded to a multiple of this number, as in fastMRI."""
_TINY = 1e-30

logger = logging.getLogger(__name__)


@final
class ComplexUNet(nn.Module):
    """fastMRI's U-Net on real and imaginary parts, each normalized by its own statistics."""

    def __init__(self, *, n_channels: int, n_pools: int) -> None:
        super().__init__()
        self.unet = FastMRINetwork(n_channels=n_channels, n_pools=n_pools, n_images=2)
        self.is_half = False
        """Whether convolutions run in 16 bit; their inputs are normalized."""
        self.is_compiled = False
        """Whether `compiled_passes` run for images without gradients."""

    def forward(self, image: Complex[Tensor, "batch row col"]) -> Complex[Tensor, "batch row col"]:
        parts = torch.stack([image.real, image.imag], dim=1)
        std, mean = torch.std_mean(parts, dim=(-2, -1), keepdim=True)
        std = std.clamp(min=_TINY)
        sides = [_padding(n) for n in (parts.shape[-1], parts.shape[-2])]
        (left, right), (above, below) = sides
        padded = F.pad((parts - mean) / std, [left, right, above, below])
        with torch.autocast(image.device.type, torch.float16) if self.is_half else nullcontext():
            # A single image would be compiled again, since sizes of one are compiled as constants.
            is_compiled = self.is_compiled and len(padded) > 1 and not torch.is_grad_enabled()
            output = (compiled_passes() if is_compiled else _passes)(self.unet, padded).float()
        output = output[..., above : above + parts.shape[-2], left : left + parts.shape[-1]]
        return torch.complex(*(output * std + mean).unbind(dim=1))


def _passes(
    unet: nn.Module, images: Float[Tensor, "batch 2 row col"]
) -> Float[Tensor, "batch 2 row col"]:
    return unet(images)


@cache
def compiled_passes() -> Callable[[nn.Module, Tensor], Tensor]:
    """Return the forward pass by torch.compile; networks of equal shape share compiled code."""
    return torch.compile(_passes)


def compile_networks(
    networks: Iterable[ComplexUNet], n_rows: int, n_cols: int, device: torch.device
) -> bool:
    """Try torch.compile for networks of equal shape; return whether it works.

    If it does not, for lack of a compiler or of Triton, the networks stay uncompiled, with a
    warning that states the reason.
    """
    networks, sides = list(networks), [n + sum(_padding(n)) for n in (n_rows, n_cols)]
    example = torch.zeros(2, 2, *sides, device=device)
    # Any number of images, because numbers of candidates vary.
    torch._dynamo.mark_dynamic(example, 0)
    half = torch.autocast(device.type, torch.float16)
    try:
        with warnings.catch_warnings(), torch.no_grad(), half:
            warnings.simplefilter("ignore")
            compiled_passes()(networks[0].unet, example)
    # For any cause of the failure, images without compilation are the same.
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        logger.warning("torch.compile does not work for varnet, which stays slower: %s", reason)
        return False
    for network in networks:
        network.is_compiled = True
    return True


def _padding(n: int) -> tuple[int, int]:
    missing = -n % _MULTIPLE
    return missing // 2, missing - missing // 2


@final
class Cascade(nn.Module):
    """One step: data consistency, and a learned correction of the combined image."""

    def __init__(self, *, n_channels: int, n_pools: int) -> None:
        super().__init__()
        self.model = ComplexUNet(n_channels=n_channels, n_pools=n_pools)
        self.dc_weight = nn.Parameter(torch.ones(1))

    def forward(
        self,
        images: Complex[Tensor, "batch coil row col"],
        measured: Measurement,
        maps: Complex[Tensor, "batch coil row col"],
    ) -> Complex[Tensor, "batch coil row col"]:
        # Transforms along the rows cancel, because complete columns are measured.
        kept = torch.fft.ifftshift(measured.mask, dim=-1)[:, None, None, :] / images.shape[-1]
        seen = torch.fft.ifft(torch.fft.fft(images) * kept, norm="forward")
        correction = self.model(combine(images, maps))[:, None]
        # Coil images are large, and passes over them dominate the time of these steps.
        images = torch.addcmul(images, seen - measured.zero_filled, self.dc_weight, value=-1)
        return torch.addcmul(images, correction, maps, value=-1)


@final
class SensitivityNetwork(nn.Module):
    """Sensitivities from the images of the central columns, coil by coil."""

    def __init__(self, *, n_channels: int, n_pools: int) -> None:
        super().__init__()
        self.norm_unet = ComplexUNet(n_channels=n_channels, n_pools=n_pools)

    def forward(
        self, kspace: Complex[Tensor, "batch coil row col"], mask: Bool[Tensor, "batch col"]
    ) -> Complex[Tensor, "batch coil row col"]:
        images = ifft2c(apply_mask(kspace, central_mask(mask)))
        return unit_norm(self.norm_unet(images.flatten(0, 1)).unflatten(0, images.shape[:2]))


@final
class VarNet(Reconstructor):
    """Cascades on coil images, then the root of the sum of squares.

    Args:
        n_cascades: steps, each with its own U-Net (fastMRI: 12).
        n_channels: features of their finest level (fastMRI: 18).
        n_pools: their number of poolings (fastMRI: 4).
        sensitivity_channels: features of the sensitivity network (fastMRI: 8).
        sensitivity_pools: its number of poolings (fastMRI: 4).
        output: `rss`, the root of the sum of squares of the coil images (fastMRI); or `weighted`,
            their combination by sensitivities, for datasets with these targets.
    """

    def __init__(
        self,
        *,
        n_cascades: int = 6,
        n_channels: int = 12,
        n_pools: int = 3,
        sensitivity_channels: int = 6,
        sensitivity_pools: int = 3,
        output: str = "rss",
    ) -> None:
        super().__init__()
        check_target(output)
        sizes = (n_cascades, n_channels, n_pools, sensitivity_channels, sensitivity_pools)
        if min(sizes) < 1:
            raise ConfigError(
                f"a variational network of {n_cascades} cascades, {n_channels} and "
                f"{sensitivity_channels} channels, {n_pools} and {sensitivity_pools} poolings is "
                "impossible; all must be at least 1"
            )
        self.n_cascades = n_cascades
        self.n_channels = n_channels
        self.n_pools = n_pools
        self.sensitivity_channels = sensitivity_channels
        self.sensitivity_pools = sensitivity_pools
        self.output = output
        # Equal to the default of the class, but part of fingerprints since version 0.2.
        self.waits_for_device = False
        self.sens_net = SensitivityNetwork(
            n_channels=sensitivity_channels, n_pools=sensitivity_pools
        )
        self.cascades = nn.ModuleList(
            Cascade(n_channels=n_channels, n_pools=n_pools) for _ in range(n_cascades)
        )

    def calibrate(self, measured: Measurement) -> Complex[Tensor, "batch coil row col"]:
        return self.sens_net(measured.kspace, measured.mask)

    def reconstruct(self, measured: Measurement) -> Reconstruction:
        maps = self.calibrate(measured) if measured.maps is None else measured.maps
        images = measured.zero_filled
        for cascade in self.cascades:
            images = cascade(images, measured, maps)
        if self.output == "weighted":
            images = combine(images, maps)[:, None]
        energy = (images.real.square() + images.imag.square()).sum(dim=1)
        # Clamped, so that gradients are finite at zero.
        return Reconstruction.of(energy.clamp(min=_TINY).sqrt())

    def frozen(
        self, *, precision: str, n_rows: int, n_cols: int, device: torch.device | str
    ) -> Reconstructor:
        """Return a view without gradients; on CUDA its U-Nets run in 16 bit, compiled.

        Compilation takes a while unless torch has cached it in an earlier process.
        """
        is_half = torch.device(device).type == "cuda" and precision in ("auto", "fp16")
        super().frozen(
            precision="fp32" if is_half else precision, n_rows=n_rows, n_cols=n_cols, device=device
        )
        networks = [cascade.model for cascade in self.cascades if isinstance(cascade, Cascade)]
        for network in networks:
            network.is_half, network.is_compiled = is_half, False
        if is_half:
            self.cascades.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            compile_networks(networks, n_rows, n_cols, torch.device(device))
        # The view is a copy, because the fingerprint of the original must not change.
        view = copy(self)
        view.precision = "fp16" if is_half else "fp32"
        view._viewed = [self.original]  # type: ignore[assignment]
        return view

    def n_bytes(self, n_coils: int, n_rows: int, n_cols: int) -> int:
        # A few complex images per coil, in addition to the features of one cascade.
        coils = 64 * n_coils * n_rows * n_cols
        return peak_bytes(self.n_channels, 1, n_rows, n_cols) + coils
