"""Reconstructions compared on held-out slices under the same random masks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from kscout import reconstruction
from kscout.compatibility import Use, network_notes, warn
from kscout.core import Protocol, Reconstructor
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.evaluation.progress import OnStep, Step
from kscout.evaluation.records.acquisitions import Acquisition, PolicySteps
from kscout.evaluation.records.reconstruction_row import ReconstructionRow
from kscout.evaluation.statistics import confidence_interval
from kscout.metrics import nmse, psnr, ssim
from kscout.training.masks import MaskDistribution


@final
@dataclass(frozen=True)
class ReconstructionComparison:
    """Scores of all reconstructions at all accelerations, and slices of each in pictures."""

    rows: list[ReconstructionRow]
    pictures: list[Acquisition]
    """One slice under one mask each, the columns of which are its start."""


@torch.no_grad()
def compare_reconstructions(
    methods: Mapping[str, Reconstructor | Path | str],
    slices: SliceSet,
    accelerations: Sequence[float],
    *,
    center_fraction: float,
    protocol: Protocol | None = None,
    shows_all: bool = False,
    batch_size: int = 16,
    on_step: OnStep | None = None,
) -> ReconstructionComparison:
    """Reconstruct slices under random masks, one per volume and the same for every method.

    Args:
        methods: reconstructions, or what `kscout.reconstruction.load` takes, by their names.
        slices: no slice of which was trained on; all work is done on their device.
        accelerations: columns over measured columns.
        center_fraction: of the columns that are always measured, around the center; no
            acceleration may leave fewer, and one that leaves as many measures these alone.
        protocol: how images are un-normalized before they are scored; None for the one that the
            reconstructions were trained for.
        shows_all: keep pictures of all slices; else of the one on which the last method's SSIM is
            the median, at each acceleration.
        batch_size: slices at once.
        on_step: told after each method.
    """
    _check_centers(slices.n_cols, accelerations, center_fraction)
    loaded = {name: _opened(one).to(slices.device).eval() for name, one in methods.items()}
    protocol = shared_protocol(loaded, protocol)
    slices.check_protocol(protocol)
    use = Use(slices.shape, protocol=protocol)
    for name, one in loaded.items():
        warn(f"{name}: {note}" for note in network_notes(one, use))
    rows, pictures = [], []
    for acceleration in accelerations:
        masking = MaskDistribution(slices.n_cols, [acceleration], [center_fraction])
        masks = masking.of_volumes(slices.volumes).to(slices.device) & slices.selectable
        n_center, median = round(slices.n_cols * center_fraction), 0
        slices.check_start(n_center)
        for name, method in loaded.items():
            values = _values(method, slices, masks, protocol, batch_size)
            row = _row(name, acceleration, n_center, values, slices, protocol)
            trained_for = None if method.protocol == protocol else method.protocol
            rows.append(replace(row, trained_for=trained_for))
            median = int(values[:, 0].argsort(kind="stable")[len(slices) // 2])
            if on_step is not None:
                on_step(Step(f"{name} at {acceleration:g}x", len(slices), len(slices)))
        for place in range(len(slices)) if shows_all else [median]:
            title = f"{slices.volumes[place]}, slice {slices.slices[place]}, at {acceleration:g}×"
            pictures.append(_picture(loaded, slices, masks, place, protocol, title))
    return ReconstructionComparison(rows, pictures)


def shared_protocol(
    networks: Mapping[str, Reconstructor], chosen: Protocol | None = None
) -> Protocol:
    """Return the protocol by which reconstructions are compared, as `Reconstructor.protocol_for`.

    Args:
        networks: reconstructions by their names.
        chosen: None for the one that they were trained for.
    """
    trained = {name: one.protocol_for(chosen) for name, one in networks.items() if one.protocol}
    if len(set(trained.values())) > 1:
        words = ", ".join(f"{name} for {protocol}" for name, protocol in trained.items())
        raise ConfigError(
            f"the reconstructions were trained for different protocols ({words}), whose scores "
            "must not be compared; name reconstructions for one protocol, or choose one by "
            "--protocol"
        )
    shared: Protocol = next(iter(trained.values()), "blind")
    return chosen or shared


def _check_centers(n_cols: int, accelerations: Sequence[float], fraction: float) -> None:
    """Refuse an acceleration that leaves fewer columns than are always measured."""
    n_center = round(n_cols * fraction)
    for acceleration in accelerations:
        # The share itself counts, too: at 8x an eighth fits, whichever way it was rounded.
        if n_cols / acceleration >= min(n_center, n_cols * fraction) - 1e-6:
            continue
        most = math.floor(10_000 * math.floor(n_cols / acceleration) / n_cols) / 10_000
        fits = f"give --center-fraction {most:g} or less, or " if most else ""
        raise ConfigError(
            f"{acceleration:g}x leaves {n_cols / acceleration:.3g} of {n_cols} columns, and the "
            f"{n_center} around the center are always measured; {fits}"
            f"{'' if fits else 'give '}an --acceleration of {n_cols / n_center:.3g} or less"
        )


def _opened(method: Reconstructor | Path | str) -> Reconstructor:
    return method if isinstance(method, Reconstructor) else reconstruction.load(method)


def _values(
    method: Reconstructor,
    slices: SliceSet,
    masks: Bool[Tensor, "slice col"],
    protocol: Protocol,
    batch_size: int,
) -> Float64[np.ndarray, "slice 3"]:
    """Return SSIM, PSNR and NMSE of every slice."""
    found, done = [], 0
    for batch in slices.batches(batch_size):
        own = masks[done : done + len(batch)]
        done += len(batch)
        image = batch.unnormalized(method(batch.kspace, own), protocol)
        scores = [
            metric(image, batch.target, data_range=batch.data_range)
            for metric in (ssim, psnr, nmse)
        ]
        found.append(torch.stack(scores, dim=-1).double().cpu().numpy())
    return np.concatenate(found)


def _row(
    name: str,
    acceleration: float,
    n_center: int,
    values: Float64[np.ndarray, "slice 3"],
    slices: SliceSet,
    protocol: Protocol,
) -> ReconstructionRow:
    low, high = confidence_interval(values[:, 0], slices.volumes) or (None, None)
    n_volumes = len(set(slices.volumes))
    where = (name, float(acceleration), n_center, len(slices), n_volumes, protocol)
    similarity, noise, error = values.mean(axis=0).tolist()
    return ReconstructionRow(*where, similarity, low, high, noise, error)


def _picture(
    methods: Mapping[str, Reconstructor],
    slices: SliceSet,
    masks: Bool[Tensor, "slice col"],
    place: int,
    protocol: Protocol,
    title: str,
) -> Acquisition:
    batch, mask = slices.batch(torch.tensor([place])), masks[place : place + 1]
    shown = []
    for name, method in methods.items():
        image = batch.unnormalized(method(batch.kspace, mask), protocol)
        score = ssim(image, batch.target, data_range=batch.data_range)
        shown.append(PolicySteps(name, image.float().cpu().numpy(), score.cpu().numpy(), ()))
    start = tuple(mask[0].nonzero()[:, 0].tolist())
    return Acquisition(batch.target[0].float().cpu().numpy(), start, tuple(shown), title)
