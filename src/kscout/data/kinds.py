"""Kinds of slices that a store may contain: their layout in an array, and their meaning.

`SliceSet`, `Store` and `StoreWriter` are generic over kinds. A new kind is one entry here: the
layout of one slice on disk, and two functions from stored slices to k-space and to images.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from jaxtyping import Complex, Float, Inexact
from torch import Tensor

from kscout.errors import ConfigError, DataError
from kscout.physics.coils import combined
from kscout.physics.fourier import fft2c, ifft2c
from kscout.physics.normalization import magnitude
from kscout.physics.sampling import center_mask

Stored = Inexact[Tensor, "slice *axes"]
"""Slices in their stored layout."""


@final
@dataclass(frozen=True)
class Kind:
    """One kind of slices."""

    name: str
    word: str
    """Name in manifests."""
    axes: tuple[str, ...]
    """Axes of an array of slices: the first is `slice`, the last two are `row` and `col`."""
    dtype: str
    to_kspace: Callable[[Stored], Complex[Tensor, "slice coil row col"]]
    """Full k-space of stored slices."""
    to_images: Callable[[Stored], Float[Tensor, "slice row col"]]
    """Magnitude images of stored slices, before they are clamped to become targets."""
    target: str
    """Description of the rule in `to_images`."""
    rule: str | None = None
    """Name of that rule in manifests, for kinds with several rules; None is the first."""

    def shape(self, stored: tuple[int, ...]) -> tuple[int, int, int]:
        """Return (n_coils, n_rows, n_cols) of the slices of an array of the given shape."""
        n_coils = stored[self.axes.index("coil")] if "coil" in self.axes else 1
        return n_coils, stored[-2], stored[-1]

    @property
    def target_rule(self) -> str:
        return self.rule or "rss"

    def check_protocol(self, protocol: str) -> None:
        """Raise an error for `paper` and k-space, which has no statistics of a target image."""
        if self.name == "kspace" and protocol == "paper":
            raise ConfigError(
                "protocol paper un-normalizes images with the mean and standard deviation of the "
                "fully sampled target, which are unknown for k-space; use protocol blind "
                "(--protocol blind) and a reconstruction that was trained for it"
            )

    def check(self, stored: np.ndarray) -> None:
        """Raise an error for an array with another dtype or layout."""
        if stored.ndim != len(self.axes) or stored.dtype != np.dtype(self.dtype):
            axes = " x ".join(self.axes)
            raise DataError(
                f"{self.name} are stored as {self.dtype} of {axes}, found {stored.dtype} of "
                f"shape {stored.shape}; convert them first"
            )


IMAGES = Kind(
    name="images",
    word="image",
    axes=("slice", "row", "col"),
    dtype="float32",
    to_kspace=lambda images: fft2c(images)[:, None],
    to_images=lambda images: images,
    target="the image",
)
"""Real images of one coil; k-space is their transform."""

KSPACE = Kind(
    name="kspace",
    word="kspace",
    axes=("slice", "coil", "row", "col"),
    dtype="complex64",
    to_kspace=lambda kspace: kspace,
    to_images=lambda kspace: magnitude(ifft2c(kspace)),
    target="root sum of squares of all coils",
)
"""Complex k-space of any number of coils, as `fft2c` makes it, whose target is the root of the sum
of squares of all of them."""

_N_CENTER = 24
"""Central columns from which sensitivities of targets are estimated."""


def _weighted(kspace: Stored) -> Float[Tensor, "slice row col"]:
    n_cols = kspace.shape[-1]
    center = center_mask(n_cols, min(_N_CENTER, n_cols), kspace.device)
    return combined(ifft2c(kspace), center.expand(len(kspace), -1))[:, 0].abs()


WEIGHTED_KSPACE = replace(
    KSPACE,
    to_images=_weighted,
    target=f"coils weighted by their sensitivities, from {_N_CENTER} central columns",
    rule="weighted",
)
"""Like `KSPACE` with another target: in air it has the noise of one coil, not of all."""

TARGETS = {"rss": KSPACE, "weighted": WEIGHTED_KSPACE}
"""Kinds of k-space stores by their target rule."""

KINDS = {kind.name: kind for kind in (IMAGES, KSPACE)}


def kind_of(word: str, rule: str | None = None) -> Kind:
    """Return the kind with a manifest's name and target rule."""
    matches = [kind for kind in KINDS.values() if word in (kind.word, kind.name)]
    if not matches:
        raise DataError(
            f"slices of kind {word!r} cannot be read by this kscout, which reads: "
            f"{', '.join(KINDS)}; use the kscout that made the store"
        )
    kind = TARGETS.get(rule or "") if matches[0] is KSPACE and rule else matches[0]
    if kind is None or kind.rule != rule:
        raise DataError(
            f"targets of rule {rule!r} cannot be read by this kscout; use the one that made the "
            "store"
        )
    return kind
