"""Reconstructions from functions and modules of other packages."""

from collections.abc import Callable
from typing import Literal, final

from jaxtyping import Float
from torch import Tensor

from kscout.core import Measurement, Reconstruction, Reconstructor
from kscout.errors import ConfigError

Reads = Literal["image", "kspace"]


@final
class Wrapped(Reconstructor):
    """A reconstruction that calls a function or a module; see `wrap`."""

    def __init__(self, network: Callable[..., Tensor], reads: Reads) -> None:
        super().__init__()
        # A module becomes a part of this one, so that it moves to other devices with it.
        self.network, self.reads = network, reads

    def reconstruct(self, measured: Measurement) -> Reconstruction:
        if self.reads == "image":
            output = self.network(measured.normalized[:, None])
            return Reconstruction(self._checked(output, measured), measured.mean, measured.std)
        output = self.network(measured.kspace, measured.mask)
        return Reconstruction.of(self._checked(output, measured))

    def _checked(self, output: Tensor, measured: Measurement) -> Float[Tensor, "batch row col"]:
        n_images, _, n_rows, n_cols = measured.zero_filled.shape
        if isinstance(output, Tensor) and output.shape == (n_images, 1, n_rows, n_cols):
            output = output[:, 0]
        if not isinstance(output, Tensor) or output.shape != (n_images, n_rows, n_cols):
            is_tensor = isinstance(output, Tensor)
            kind = f"shape {[*output.shape]}" if is_tensor else f"type {type(output).__name__}"
            raise ConfigError(
                f"the wrapped reconstruction returned {kind}; return a tensor of shape "
                f"{[n_images, 1, n_rows, n_cols]} or {[n_images, n_rows, n_cols]}"
            )
        return output.abs() if output.is_complex() else output


def wrap(network: Callable[..., Tensor], *, reads: Reads = "image") -> Reconstructor:
    """Return a reconstructor that calls a network of another package, for inference.

    Args:
        network: a module or function. With `reads="image"` it maps zero-filled magnitude images,
            normalized to mean 0 and standard deviation 1, of shape `[batch, 1, row, col]` to
            images in the same units. With `reads="kspace"` it maps k-space
            `[batch, coil, row, col]`, zero in unmeasured columns, and the mask `[batch, col]` to
            magnitude or complex images `[batch, row, col]` in units of k-space.
        reads: the input of the network.
    """
    if not callable(network):
        raise ConfigError(
            f"wrap received {type(network).__name__}; give a module or a function that returns "
            "images"
        )
    return Wrapped(network, reads).eval().requires_grad_(False)
