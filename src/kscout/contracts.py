"""Checks for any reconstructor or policy, of kscout (in its tests) or of users, on random data."""

import copy
from dataclasses import dataclass, fields, replace
from typing import final

import torch
from jaxtyping import Bool, Complex, Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from kscout.acquisition.episode import SimulatedContext
from kscout.core import (
    Measurement,
    Observation,
    Policy,
    Reconstruction,
    Reconstructor,
    SliceBatch,
    Truth,
)
from kscout.errors import ConfigError
from kscout.physics.fourier import ifft2c
from kscout.physics.normalization import magnitude, statistics
from kscout.physics.sampling import center_mask
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.weights import constructor_arguments

IMAGE_TOLERANCE = 1e-3
"""Tolerance in standard deviations of the image: above float32 rounding, below any effect."""

SCORE_TOLERANCE = 1e-4
"""Tolerance relative to the largest score: far above float32 rounding, far below any effect."""


def check_policy(policy: Policy, *, n_rows: int, n_cols: int) -> None:
    """Raise a ConfigError for the first requirement that a policy violates.

    Requirements are: shape, dtype and finite values of the scores; repeatability; independence
    of the images of a batch; an unchanged observation; and, without `needs_target`, scores that
    do not depend on the ground truth. The zero-filled image and its statistics are only passed to
    policies that set `needs_measurement`. A policy with weights also has to fulfill what training
    requires (`check_learnable`).

    Args:
        policy: any policy, with any weights. It is left in evaluation mode.
        n_rows: rows of the test images.
        n_cols: columns of the test images; at least 4.
    """
    if n_cols < 4:
        raise ConfigError(f"n_cols = {n_cols} is too small for the check; give 4 or more")
    if policy.needs_candidate_scores and not policy.needs_target:
        raise _fail(policy, "it needs candidate scores without needs_target = True")
    if any(True for _ in policy.parameters()):
        check_learnable(policy, type(policy).__name__)
    policy = policy.eval().bind(SimulatedContext(ZeroFilled(), "blind"))
    seen = _observation_example(policy, n_rows, n_cols)
    first = _scores(policy, copy.deepcopy(seen), "the first call")
    _check_values(policy, first, seen)
    _check_repeats(policy, seen, first)
    _check_independence(policy, seen, first)
    if not policy.needs_target:
        _check_blindness(policy, seen, first)


def check_learnable(policy: Policy, name: str) -> None:
    """Raise an error for a policy that cannot be saved, or whose scores vary in training."""
    constructor_arguments(policy)
    for path, module in policy.named_modules():
        if isinstance(module, _BatchNorm) or _dropout(module) > 0:
            raise ConfigError(
                f"policy {name!r} has a {type(module).__name__} at {path!r}, and gradients must "
                "belong to the network that sampled the columns; set dropout to 0, and normalize "
                "each image separately, e.g. by InstanceNorm2d or GroupNorm"
            )


def _dropout(module: nn.Module) -> float:
    """Return the share of features that a module drops at random while it trains."""
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
        return module.dropout
    return module.p if isinstance(module, _DropoutNd) else 0.0


def _observation_example(policy: Policy, n_rows: int, n_cols: int) -> Observation:
    generator = torch.Generator().manual_seed(0)
    start = center_mask(n_cols, max(1, n_cols // 8))
    outer = torch.zeros(n_cols, dtype=torch.bool)
    outer[1::3] = True
    mask = torch.stack([start, start | outer, start | ~outer])
    image = torch.randn(len(mask), n_rows, n_cols, generator=generator)
    seen = Observation(image=image, mask=mask, step=1)
    if policy.needs_measurement:
        kspace = torch.randn(3, 1, n_rows, n_cols, dtype=torch.complex64, generator=generator)
        measured = Measurement.of(kspace, mask)
        seen = replace(seen, zero_filled=measured.zero_filled, mean=measured.mean, std=measured.std)
    return replace(seen, truth=_some_truth(seen, generator)) if policy.needs_target else seen


def _some_truth(seen: Observation, generator: torch.Generator) -> Truth:
    error, scores = torch.rand(2, *seen.mask.shape, generator=generator)
    # As in acquisition: a measured column is no candidate.
    candidates = scores.masked_fill(seen.mask, -torch.inf)
    now = torch.rand(len(seen.mask), generator=generator)
    return Truth(kspace_error=error, candidate_scores=candidates, score=now)


def _fail(policy: Policy, promise: str) -> ConfigError:
    return ConfigError(f"{type(policy).__name__} breaks the contract: {promise}")


def _scores(policy: Policy, seen: Observation, moment: str) -> Float[Tensor, "batch col"]:
    with torch.no_grad():
        try:
            # Without the typed __call__, so that this function reports errors also under beartype.
            scores = nn.Module.__call__(policy, seen)
        except ConfigError:
            raise
        except Exception as error:  # any exception of a user's code is reported
            reason = " ".join(str(error).split())[:200]
            promise = f"{moment} raised {type(error).__name__} ({reason})"
            raise _fail(policy, promise) from error
    if not isinstance(scores, Tensor):
        raise _fail(policy, f"it returned a {type(scores).__name__}; return a tensor of scores")
    if scores.shape != seen.mask.shape or not scores.is_floating_point():
        expected, found = tuple(seen.mask.shape), tuple(scores.shape)
        raise _fail(
            policy,
            f"scores are {scores.dtype} of shape {found}; return floating point of {expected}, "
            "one per image and column",
        )
    return scores


def _check_values(policy: Policy, scores: Float[Tensor, "batch col"], seen: Observation) -> None:
    matters = ~seen.mask if policy.needs_target else torch.ones_like(seen.mask)
    n_bad = int((~scores.isfinite() & matters).sum())
    if n_bad:
        raise _fail(
            policy,
            f"{n_bad} of {scores.numel()} scores are not finite; return finite scores for all "
            "columns, since measured ones are excluded later",
        )


def _check_repeats(policy: Policy, seen: Observation, first: Float[Tensor, "batch col"]) -> None:
    given = copy.deepcopy(seen)
    if not torch.equal(_scores(policy, given, "the second call"), first):
        raise _fail(
            policy,
            "the same observation has different scores the second time; scores are logits that "
            "acquisition samples from",
        )
    if not all(torch.equal(getattr(given, name), value) for name, value in _tensors(seen).items()):
        raise _fail(policy, "it changes the observation in place; work on a copy")


def _check_independence(
    policy: Policy, seen: Observation, first: Float[Tensor, "batch col"]
) -> None:
    for row in range(len(first)):
        one = slice(row, row + 1)
        truth = seen.truth and Truth(*(value[one] for value in vars(seen.truth).values()))
        fields = {name: value[one] for name, value in _tensors(seen).items()}
        alone = replace(seen, truth=truth, **fields)
        if not _are_close(_scores(policy, alone, "a batch of one image")[0], first[row]):
            raise _fail(
                policy,
                "the scores of an image depend on the other images of its batch; "
                "score each image independently",
            )


def _check_blindness(policy: Policy, seen: Observation, first: Float[Tensor, "batch col"]) -> None:
    truth = _some_truth(seen, torch.Generator().manual_seed(1))
    if not _are_close(_scores(policy, replace(seen, truth=truth), "a call with truth"), first):
        raise _fail(
            policy, "it uses the ground truth; set needs_target = True, which marks it as an oracle"
        )


def _tensors(seen: Observation) -> dict[str, Tensor]:
    values = {field.name: getattr(seen, field.name) for field in fields(seen)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def _are_close(one: Float[Tensor, "*lead col"], other: Float[Tensor, "*lead col"]) -> bool:
    finite = other.isfinite()
    scale = float(other[finite].abs().max()) if finite.any() else 1.0
    return torch.allclose(one, other, rtol=0, atol=SCORE_TOLERANCE * max(scale, 1e-30))


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
    kspace, mask = _kspace_example(n_rows, n_cols, n_coils)
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


def _kspace_example(
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
        if max(difference.max().item() for difference in differences) > IMAGE_TOLERANCE:
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
    close = (on_cpu.image - first.image).abs().amax() < 30 * IMAGE_TOLERANCE
    if not close:
        raise trial.broken("the image on the accelerator differs from that on the CPU")
