"""The contract of a reconstructor, checked on random k-space."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Complex
from torch import Tensor

from kscout.core import Reconstruction, Reconstructor, SliceBatch
from kscout.errors import ConfigError
from kscout.physics.fourier import ifft2c
from kscout.physics.normalization import magnitude, statistics
from kscout.physics.sampling import center_mask

TOLERANCE = 1e-3
"""Tolerance in standard deviations of the image: above float32 rounding, below any effect."""


def check_reconstructor(
    reconstructor: Reconstructor, *, n_rows: int, n_cols: int, n_coils: int = 1
) -> None:
    """Raise a ConfigError for the first requirement that a reconstructor violates.

    Requirements are: types, shapes and finite values; repeatability; independence of unmeasured
    columns and of the other images of a batch; positive memory need; finite gradients of the
    parameters, if any; and equal results on the accelerator, if any. Each image has another mask,
    one of them full. The reconstructor is left on the CPU, in evaluation mode and without
    gradients.

    Args:
        reconstructor: any reconstructor, with any weights.
        n_rows: rows of the test k-space.
        n_cols: columns of the test k-space; at least 4.
        n_coils: coils of the test k-space.
    """
    if n_cols < 4:
        raise ConfigError(f"n_cols = {n_cols} is too small for the check; give 4 or more")
    reconstructor.to("cpu").eval()
    kspace, mask = _example(n_rows, n_cols, n_coils)
    trial = _Trial(reconstructor, kspace, mask)
    first = trial.run(kspace, mask)
    trial.expect_same(
        trial.run(kspace, mask),
        first,
        "the same k-space gave two different images; take randomness out of evaluation mode",
    )
    noise = kspace.flip(0).flip(-1) * 100
    unseen = torch.where(mask[:, None, None, :], kspace, noise)
    trial.expect_same(
        trial.run(unseen, mask),
        first,
        "the image depends on columns that are not measured; use only the masked k-space",
    )
    _check_single_images(trial, first)
    _check_training(trial)
    _check_accelerator(trial, first)


def _example(
    n_rows: int, n_cols: int, n_coils: int
) -> tuple[Complex[Tensor, "batch coil row col"], Bool[Tensor, "batch col"]]:
    generator = torch.Generator().manual_seed(0)
    kspace = torch.randn(3, n_coils, n_rows, n_cols, dtype=torch.complex64, generator=generator)
    # Like real objects: energy decreases away from DC, and the images differ in scale.
    rows = (torch.arange(n_rows) - n_rows // 2)[:, None] / n_rows
    cols = (torch.arange(n_cols) - n_cols // 2) / n_cols
    kspace = kspace / (0.05 + rows.square() + cols.square())
    kspace = kspace * torch.tensor([1.0, 20.0, 0.05])[:, None, None, None]
    start = center_mask(n_cols, max(2, n_cols // 8))
    comb = torch.arange(n_cols) % 3 == 1
    return kspace, torch.stack([start, start | comb, torch.ones_like(start)])


@final
@dataclass(frozen=True)
class _Trial:
    """A reconstructor and its test k-space."""

    reconstructor: Reconstructor
    kspace: Complex[Tensor, "batch coil row col"]
    mask: Bool[Tensor, "batch col"]

    def broken(self, promise: str) -> ConfigError:
        return ConfigError(f"{type(self.reconstructor).__name__} breaks the contract: {promise}")

    def run(
        self, kspace: Complex[Tensor, "batch coil row col"], mask: Bool[Tensor, "batch col"]
    ) -> Reconstruction:
        kspace_before, mask_before = kspace.clone(), mask.clone()
        try:
            with torch.no_grad():
                output: object = self.reconstructor(kspace, mask)
        except ConfigError:
            raise
        except Exception as error:  # any exception of a user's code is reported
            reason = " ".join(str(error).split())[:200]
            size = "x".join(map(str, kspace.shape))
            sentence = f"{type(error).__name__} on k-space of {size} without gradients ({reason})"
            raise self.broken(sentence) from error
        if not (torch.equal(kspace, kspace_before) and torch.equal(mask, mask_before)):
            raise self.broken("it wrote into its inputs; work on a copy")
        if not isinstance(output, Reconstruction):
            raise self.broken(f"it returned a {type(output).__name__}, not a core.Reconstruction")
        self._expect_form(output, kspace)
        return output

    def _expect_form(
        self, output: Reconstruction, kspace: Complex[Tensor, "batch coil row col"]
    ) -> None:
        n_batch, _, n_rows, n_cols = kspace.shape
        for name, shape in [
            ("image", (n_batch, n_rows, n_cols)),
            ("mean", (n_batch,)),
            ("std", (n_batch,)),
        ]:
            value: Tensor = getattr(output, name)
            if tuple(value.shape) != shape:
                raise self.broken(f"{name} has shape {tuple(value.shape)}, expected {shape}")
            if value.dtype != torch.float32:
                raise self.broken(f"{name} is {value.dtype}, expected torch.float32")
            if value.device != kspace.device:
                raise self.broken(f"{name} is on {value.device}, k-space on {kspace.device}")
            if not value.isfinite().all():
                raise self.broken(f"{name} has values that are not finite")
        if not (output.std > 0).all():
            raise self.broken("std is not above zero, so that the image cannot be denormalized")

    def expect_same(self, output: Reconstruction, expected: Reconstruction, promise: str) -> None:
        unit = expected.std
        differences = [
            (output.image - expected.image).abs().amax(dim=(-2, -1)),
            (output.mean - expected.mean).abs() / unit,
            (output.std - expected.std).abs() / unit,
        ]
        if max(difference.max().item() for difference in differences) > TOLERANCE:
            raise self.broken(promise)


def _check_single_images(trial: _Trial, first: Reconstruction) -> None:
    for index in range(len(trial.kspace)):
        one = slice(index, index + 1)
        trial.expect_same(
            trial.run(trial.kspace[one], trial.mask[one]),
            Reconstruction(first.image[one], first.mean[one], first.std[one]),
            f"image {index} differs from the same image in a batch; compute statistics per image",
        )


def _check_training(trial: _Trial) -> None:
    """Check the requirements of training and of the simulator."""
    model, mask = trial.reconstructor, trial.mask
    n_bytes = model.n_bytes(*trial.kspace.shape[1:])
    if not n_bytes > 0:
        raise trial.broken(f"n_bytes is {n_bytes}; return the memory for one image")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        return
    target = magnitude(ifft2c(trial.kspace))
    mean, std = statistics(target)
    peak, index = target.amax(dim=(-2, -1)), torch.arange(len(mask))
    batch = SliceBatch(trial.kspace, target, mean, std, peak, torch.ones_like(mask), index)
    model.zero_grad()
    model.train()
    loss = model.loss(model(trial.kspace, mask), batch)
    model.eval()
    if loss.requires_grad:
        loss.backward()
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    model.zero_grad()
    if not gradients or not all(gradient.isfinite().all() for gradient in gradients):
        raise trial.broken("the gradients of its loss are not finite")


def _check_accelerator(trial: _Trial, first: Reconstruction) -> None:
    if not torch.cuda.is_available():
        return
    trial.reconstructor.to("cuda")
    output = trial.run(trial.kspace.to("cuda"), trial.mask.to("cuda"))
    trial.reconstructor.to("cpu")
    on_cpu = Reconstruction(output.image.cpu(), output.mean.cpu(), output.std.cpu())
    # TF32 convolutions are the user's choice, and less accurate than float32.
    close = (on_cpu.image - first.image).abs().amax() < 30 * TOLERANCE
    if not close:
        raise trial.broken("the image on the accelerator differs from that on the CPU")
