"""Images per second of each reconstruction of several coils, beside what the machine allows.

Limits count what no implementation can leave out: convolutions as for other networks, and passes
over the images or sensitivities of all coils, with a transform along the columns and back in some.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from kscout.bench.engine import knee_images, release
from kscout.bench.limits import Ceilings, Work, best_time, count_work
from kscout.core import Measurement, Reconstructor
from kscout.data.makers.coils import CoilArray
from kscout.physics.fourier import fft2c
from kscout.physics.sampling import center_mask
from kscout.reconstruction.sense import Sense
from kscout.reconstruction.sense_tv import N_INNER, SenseTotalVariation
from kscout.reconstruction.total_variation import TotalVariation
from kscout.reconstruction.unet import UNet
from kscout.reconstruction.varnet import Cascade, VarNet
from kscout.reconstruction.zero_filled import WeightedZeroFilled, ZeroFilled

N_COILS = 8
N_IMAGES = {"cpu": 1, "cuda": 256}


class Method(NamedTuple):
    """A reconstruction, and what it must do to one image."""

    name: str
    model: Reconstructor
    n_passes: int
    """Over an array of all coils."""
    n_transforms: int = 0
    """Of all coils along the columns, there and back."""
    work: Work = Work(0, 0)
    """Besides."""


def measure_coils(
    size: int, device: torch.device, unet: UNet, ceilings: Ceilings, *, at_least_s: float
) -> list[dict[str, Any]]:
    """Return one record per reconstruction; sensitivities are found before, as acquisitions do."""
    measured = _measured(size, N_IMAGES[device.type], device)
    records = []
    for method in _methods(size, device, unet):
        maps = method.model.calibrate(measured)

        def run(model: Reconstructor = method.model, maps: torch.Tensor | None = maps) -> None:
            with torch.no_grad():
                model.reconstruct(Measurement(measured.zero_filled, measured.mask, maps=maps))

        in_half = method.model.precision == "fp16"
        speed = len(measured) / best_time(run, device, at_least_s=at_least_s, n_least=1)
        limit = ceilings.limit(_whole_work(method, size), in_half=in_half)
        records.append(
            {
                **{"reconstruction": method.name, "size": size, "n_coils": N_COILS},
                **{"n_images": len(measured), "bits": 16 if in_half else 32},
                **{"images_per_s": speed, "limit_images_per_s": limit},
                "share_of_limit": speed / limit,
            }
        )
    release(device)
    return records


def _measured(size: int, n_images: int, device: torch.device) -> Measurement:
    """Return knees as coils hear them, about a third of the columns measured."""
    maps = CoilArray.draw(np.random.default_rng(0), N_COILS, "rows").maps(size, 0.5)
    images = knee_images(2, size)[torch.arange(n_images) % 2]
    kspace = fft2c((images[:, None] * torch.from_numpy(maps)).to(device))
    mask = center_mask(size, max(8, size // 8)) | (torch.arange(size) % 4 == 0)
    return Measurement.of(kspace, mask.to(device).expand(n_images, -1))


def _methods(size: int, device: torch.device, unet: UNet) -> Iterator[Method]:
    shape: dict[str, Any] = {"n_rows": size, "n_cols": size, "device": device}
    sense, least = Sense(), SenseTotalVariation()
    n_inner = least.n_iterations * N_INNER
    total = TotalVariation()
    for name, model, n_passes, n_transforms in (
        ("zero-filled", ZeroFilled(), 1, 0),
        ("zero-filled-weighted", WeightedZeroFilled(), 2, 0),
        # Four components of two fields are read and written in each iteration.
        ("total-variation", total, 8 * total.n_iterations, 2 * total.n_iterations),
        ("sense", sense, 2 + sense.n_iterations, sense.n_iterations),
        ("sense-tv", least, 2 + n_inner, n_inner),
    ):
        frozen = model.frozen(precision="auto", **shape)
        yield Method(name, frozen, n_passes, n_transforms)
    image = torch.zeros(1, 1, size, size, device=device)
    frozen = unet.frozen(precision="auto", **shape)
    yield Method("unet", frozen, 1, work=_convolutions(unet.network, image, frozen))
    varnet, parts = VarNet(), image.expand(-1, 2, -1, -1)
    frozen, n = varnet.frozen(precision="auto", **shape), varnet.n_cascades
    (network, *_) = (c.model.unet for c in varnet.cascades if isinstance(c, Cascade))
    one = _convolutions(network, parts, frozen)
    # Images and sensitivities before the network; both, what was measured and images after it.
    yield Method("varnet", frozen, 6 * n, n, Work(n * one.flops, n * one.n_bytes))


def _convolutions(network: torch.nn.Module, image: torch.Tensor, frozen: Reconstructor) -> Work:
    return count_work(network, image, bytes_per_value=2 if frozen.precision == "fp16" else 4)


def _whole_work(method: Method, size: int) -> Work:
    n_values = N_COILS * size * size
    # 5 n log2 n for each transform, and a complex product in each pass.
    flops = n_values * (6 * method.n_passes + 10 * math.log2(size) * method.n_transforms)
    return Work(flops + method.work.flops, 8 * n_values * method.n_passes + method.work.n_bytes)
