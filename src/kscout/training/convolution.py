"""Which convolution is fastest here: measured once, recorded, and kept for the rest of a run.

On a CPU, oneDNN or torch's own kernels may win, with channels stored first or last: it depends on
the machine, the image's size and the batch. Where there is a C compiler, frozen U-Nets and policies
have kernels of their own (`compiled`), which mostly win. The backends differ in the last bits, so a
run must stay with one to be repeatable.
"""

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kscout.errors import ConfigError, unknown_name
from kscout.kernels.convolution_cpu import compiled_convolutions
from kscout.kernels.native import compiled_kernels

_N_ROUNDS = 3
_ROUND_LIMIT_S = 2.0


@final
@dataclass(frozen=True)
class Backend:
    """One way to compute convolutions."""

    uses_onednn: bool
    channels_last: bool
    compiled: bool = False
    """Whether the project's own kernels run where they exist; torch's do elsewhere."""


BACKENDS: dict[str, Backend] = {
    "onednn": Backend(uses_onednn=True, channels_last=False),
    "onednn-last": Backend(uses_onednn=True, channels_last=True),
    "native": Backend(uses_onednn=False, channels_last=False),
    "native-last": Backend(uses_onednn=False, channels_last=True),
    "compiled": Backend(uses_onednn=True, channels_last=True, compiled=True),
}
"""By name; on CUDA only the layout matters."""


@contextmanager
def convolution(name: str) -> Iterator[None]:
    """Use a backend inside the block, for forward and backward passes."""
    flags, backend = torch.backends.mkldnn, _backend(name)
    if backend.compiled and not can_compile():
        raise ConfigError(
            "convolution compiled needs a C compiler (cc, gcc or clang) that knows this machine, "
            "and none was found; use convolution onednn-last, or auto in a new run"
        )
    with (
        compiled_kernels(enabled=backend.compiled),
        flags.flags(
            enabled=backend.uses_onednn,
            deterministic=flags.deterministic,
            allow_tf32=flags.allow_tf32,
        ),
    ):
        yield


def can_compile() -> bool:
    """Return whether this machine can have compiled kernels."""
    with compiled_kernels(enabled=True):
        return compiled_convolutions() is not None


def to_layout(network: nn.Module, name: str) -> None:
    """Store a network's weights in the backend's layout, which its activations then follow."""
    last = _backend(name).channels_last
    # The stubs know no memory format here.
    network.to(memory_format=torch.channels_last if last else torch.contiguous_format)  # type: ignore[call-overload]


def choose_convolution(
    wanted: str, network: nn.Module, sample: Float[Tensor, "batch 1 row col"], *, trains: bool
) -> str:
    """Return the backend to use.

    Args:
        wanted: a backend's name, or `auto` to measure.
        network: what will run; left as it is.
        sample: a batch of the real size, on the device that will be used.
        trains: whether backward passes count.
    """
    if wanted != "auto":
        _backend(wanted)
        return wanted
    if sample.device.type != "cpu":
        return "onednn"
    times = measure_convolutions(network, sample, trains=trains)
    return min(times, key=lambda name: times[name])


def measure_convolutions(
    network: nn.Module, sample: Float[Tensor, "batch 1 row col"], *, trains: bool
) -> dict[str, float]:
    """Return the best time in seconds for one pass over the sample, of each backend that runs it.

    Compiled kernels have no part in the training of a reconstructor.
    """
    networks = {}
    names = [name for name, backend in BACKENDS.items() if not backend.compiled]
    if not trains and can_compile():
        names.append("compiled")
    for name in names:
        networks[name] = copy.deepcopy(network)
        to_layout(networks[name], name)
        _time_pass(networks[name], sample[:1], name, trains)
    best = dict.fromkeys(names, float("inf"))
    # Round robin, so that a busy moment does not fall on one backend alone.
    for _ in range(_N_ROUNDS):
        for name in names:
            best[name] = min(best[name], _time_pass(networks[name], sample, name, trains))
        if sum(best.values()) > _ROUND_LIMIT_S:
            break
    return best


def _time_pass(network: nn.Module, sample: Tensor, name: str, trains: bool) -> float:
    begun = time.perf_counter()
    with convolution(name), torch.set_grad_enabled(trains):
        output = network(sample)
        if trains:
            output.abs().mean().backward()
    return time.perf_counter() - begun


def _backend(name: str) -> Backend:
    if name not in BACKENDS:
        raise unknown_name("convolution", name, ["auto", *BACKENDS])
    return BACKENDS[name]
