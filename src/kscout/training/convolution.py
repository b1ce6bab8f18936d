"""The convolution backend: selected by rule, recorded, and fixed for the rest of a run.

The backends differ in the last bits, so a run stays with one, and `auto` never asks a clock: the
same seed gives the same result on the same machine. Milliseconds of a 16-channel U-Net on 16
images of 64 and 128 pixels: two cores of an x86-64 with AVX-512 (torch 2.11), and CPU time of one
thread of an ARM Neoverse-N1 (torch 2.13).

| | onednn | onednn-last | native | native-last | compiled |
|---|---|---|---|---|---|
| x86, frozen | 36, 106 | 29, 86 | 66, 307 | 68, 265 | 13, 38 |
| x86, training | 164, 508 | 184, 581 | 470, 1630 | 487, 1503 | |
| ARM, frozen | 221, 849 | 158, 628 | 158, 938 | 176, 923 | 64, 259 |
| ARM, training | 2262, 10410 | 1084, 4236 | 913, 3703 | 933, 3745 | |
"""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import torch
from torch import nn

from kscout.errors import ConfigError, unknown_name
from kscout.kernels.registry import Request, compiled_kernels, serving

_ARM = ("aarch64", "arm64")


@final
@dataclass(frozen=True)
class Backend:
    """A way to compute convolutions."""

    uses_onednn: bool
    channels_last: bool
    compiled: bool = False
    """Whether the kernels of kscout are used if they exist; otherwise torch's are."""


BACKENDS: dict[str, Backend] = {
    "onednn": Backend(uses_onednn=True, channels_last=False),
    "onednn-last": Backend(uses_onednn=True, channels_last=True),
    "native": Backend(uses_onednn=False, channels_last=False),
    "native-last": Backend(uses_onednn=False, channels_last=True),
    "compiled": Backend(uses_onednn=True, channels_last=True, compiled=True),
}
"""Backends by name; on CUDA only the layout matters."""


@contextmanager
def convolution(name: str) -> Iterator[None]:
    """Use a backend inside the block, for forward and backward passes."""
    flags, backend = torch.backends.mkldnn, _backend(name)
    if backend.compiled and not can_compile():
        raise ConfigError(
            "convolution compiled needs a C compiler (cc, gcc or clang) that knows this machine, "
            "and KSCOUT_KERNELS not off; use convolution onednn-last, or auto in a new run"
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
    """Return whether this machine has compiled kernels for networks of suitable widths."""
    with compiled_kernels(enabled=True):
        return serving("unet", Request(torch.device("cpu"), n_channels=16)) == "c"


def to_layout(network: nn.Module, name: str) -> None:
    """Store a network's weights in the backend's layout, which its activations then follow."""
    last = _backend(name).channels_last
    # The stubs know no memory format here.
    network.to(memory_format=torch.channels_last if last else torch.contiguous_format)  # type: ignore[call-overload]


def choose_convolution(wanted: str, device: torch.device, *, trains: bool) -> str:
    """Return the backend to use."""
    if wanted != "auto":
        _backend(wanted)
        return wanted
    if device.type != "cpu":
        return "onednn"
    if trains:
        return "native" if platform.machine() in _ARM else "onednn"
    return "compiled" if can_compile() else "onednn-last"


def _backend(name: str) -> Backend:
    if name not in BACKENDS:
        raise unknown_name("convolution", name, ["auto", *BACKENDS])
    return BACKENDS[name]
