"""The implementations of each operation, in order of preference, with their conditions.

Callers describe a `Request` and call `serving`, or `build` if an implementation is an object that
must be constructed. Plain torch is the last implementation of every operation and always works.
Each skipped implementation is logged once with the reason: as a warning if a GPU is unsuitable.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Literal, NamedTuple, TypeVar

import torch

from kscout.kernels import SWITCH, KernelUnavailableError, kernels_are_on
from kscout.kernels.cuda import compile_kernel
from kscout.kernels.native import native_library

Name = Literal["cuda", "c", "torch"]
Made = TypeVar("Made")

PRODUCT = 16
"""Number of channels in one matrix product of the kernels."""
UNIT = 4
"""Sides at a U-Net's coarsest level must be multiples of this number."""
SIDES = f"sides that halve evenly to multiples of {UNIT}"
"""Condition of a U-Net's kernels on image sides."""

_CAPABILITY = (8, 0)
"""Required by `cp.async`, `mma.m16n8k16` and `fma.relu.f16x2` in `device.cuh`."""
_UNET_BYTES = 76 * 1024
"""Shared memory of a block: `Division` fits three of them on a multiprocessor of 228 KB."""
_POLICY_BYTES = 78 * 1024
"""The same for a policy, both passes, except for its thin layer."""
_MOST_CHANNELS = 1024
_MOST_COLUMNS = 4096
"""Columns that fit the 48 KB of shared memory of `choose`."""

_log = logging.getLogger(__name__)


class Request(NamedTuple):
    """The arguments of an operation that determine which implementation can run."""

    device: torch.device
    dtypes: frozenset[torch.dtype] = frozenset({torch.float32})
    """Dtypes of the relevant tensors."""
    n_rows: int = 0
    n_cols: int = 0
    n_coils: int = 1
    n_per_slice: int = 1
    """Adjacent states per slice."""
    convention: str = "paper"
    """Convention of a score."""
    n_channels: int = 0
    """Features of a network's finest level, doubled at each deeper level."""
    n_levels: int = 0
    """Number of halvings of images in a network."""
    differentiates_images: bool = False
    """Whether gradients of the images are needed, not only those of weights."""


class Condition(NamedTuple):
    """One requirement of an implementation."""

    lacks: Callable[[Request], str | None]
    """Returns the missing requirement; None if the condition is met."""
    is_of_device: bool = False
    """Whether another device could meet it."""


class Implementation(NamedTuple):
    """One implementation of an operation."""

    name: Name
    source: str
    """Source file in this folder."""
    conditions: tuple[Condition, ...] = ()

    @property
    def device(self) -> str | None:
        """The kind of device that it needs; None for any."""
        return {"cuda": "cuda", "c": "cpu"}.get(self.name)


class Operation(NamedTuple):
    """An operation with several implementations."""

    summary: str
    implementations: tuple[Implementation, ...]


def _needs(text: str, holds: Callable[[Request], bool]) -> Condition:
    return Condition(lambda request: None if holds(request) else f"it needs {text}")


def _lacks_capability(request: Request) -> str | None:
    if torch.version.hip is not None:
        return "it needs an NVIDIA GPU"
    present = torch.cuda.get_device_capability(request.device)
    if present < _CAPABILITY:
        return f"it needs compute capability 8.0, and this GPU has {present[0]}.{present[1]}"
    # Kernels are compiled for the current device, and run there.
    if request.device.index not in (None, torch.cuda.current_device()):
        return f"{request.device} is not the current CUDA device"
    return None


def _lacks_compiler(_: Request) -> str | None:
    try:
        # The smallest kernel that includes `device.cuh`.
        compile_kernel("acquisition_step.cu", "choose")
    except KernelUnavailableError as error:
        return str(error)
    return None


def _shared_memory(n_bytes: Callable[[Request], int]) -> Condition:
    def lacks(request: Request) -> str | None:
        properties = torch.cuda.get_device_properties(request.device)
        present = getattr(properties, "shared_memory_per_block_optin", 48 * 1024)
        if present >= n_bytes(request):
            return None
        return f"it needs {n_bytes(request)} bytes of shared memory a block, this GPU has {present}"

    return Condition(lacks, is_of_device=True)


def _library(file: str) -> Condition:
    def lacks(_: Request) -> str | None:
        try:
            native_library(file)
        except KernelUnavailableError as error:
            return str(error)
        return None

    return Condition(lacks)


def _fits_sides(request: Request) -> bool:
    """Return whether tiles of 4 x 4 pixels cover all levels, and of 8 x 8 all but the coarsest."""
    unit = UNIT << request.n_levels
    return request.n_rows % unit == request.n_cols % unit == 0


def _fits_policy_sides(request: Request) -> bool:
    """Return whether tiles of at most 32 x 32 pixels cover the images of every pooling layer."""
    unit, least = 2**request.n_levels, 8
    levels, both = range(request.n_levels), (request.n_rows, request.n_cols)
    return all(side % unit == 0 for side in both) and all(
        side >> n >= least and ((side >> n) % 32 == 0 or 32 % (side >> n) == 0)
        for side in both
        for n in levels
    )


def _fits_unet(request: Request) -> bool:
    n_channels, coarsest = request.n_channels, request.n_channels << max(0, request.n_levels - 1)
    is_power = n_channels & (n_channels - 1) == 0
    return is_power and n_channels >= PRODUCT and coarsest <= _MOST_CHANNELS


def widening(n_channels: int) -> int:
    """Return the factor by which CUDA kernels widen a policy.

    A policy whose first layer has fewer channels than a product needs gets additional ones with
    zero weights: they stay zero through norms and have no effect.
    """
    return max(1, PRODUCT // max(1, n_channels))


def _fits_policy(request: Request) -> bool:
    n_channels = request.n_channels * widening(request.n_channels)
    is_power = n_channels & (n_channels - 1) == 0
    is_wide = request.n_channels >= PRODUCT // 2 and n_channels <= 128
    coarsest = n_channels << request.n_levels
    return is_power and is_wide and request.n_levels >= 1 and coarsest <= _MOST_CHANNELS


def strip_width(n_cols: int) -> int:
    """Return the width of the strips in which a thin layer is differentiated."""
    # Strips with neighbors read a window beyond each side, and each thread has one per row.
    return n_cols if n_cols <= 128 else next(x for x in (96, 64, 32) if n_cols % x == 0)


def n_products(width: int) -> int:
    """Return the matrix products along a row of a strip."""
    return max(width, 16) // 16


def thin_bytes(n_cols: int) -> int:
    """Return the shared memory of a block of the backward pass of a thin layer."""
    # Twelve rows of derivatives and sixteen of inputs, with a border; some weights.
    return (16 * n_products(strip_width(n_cols)) + 2) * (12 * 64 + 16 * 32) + 6 * 32 * 16


def _policy_bytes(request: Request) -> int:
    is_thin = request.n_channels * widening(request.n_channels) == PRODUCT
    return max(_POLICY_BYTES, thin_bytes(request.n_cols) if is_thin else 0)


_CUDA = (
    Condition(_lacks_capability, is_of_device=True),
    Condition(_lacks_compiler, is_of_device=True),
)
_FLOATS = _needs("32-bit floats", lambda x: x.dtypes == {torch.float32})
_PAPER = _needs("the paper's window", lambda x: x.convention == "paper")
_MULTIPLES = _needs("16, 32, 48, ... channels", lambda x: x.n_channels % PRODUCT == 0)
_STATE = {torch.int64, torch.complex64, torch.bool, torch.float32}
_POLICY_SIDES = "sides that halve evenly to 8 or more, each a divisor or a multiple of 32"


def _cuda(source: str, *conditions: Condition) -> Implementation:
    return Implementation("cuda", source, (*_CUDA, *conditions))


def _c(source: str, *conditions: Condition) -> Implementation:
    return Implementation("c", source, (*conditions, _library(source)))


def _operation(summary: str, *compiled: Implementation) -> Operation:
    return Operation(summary, (*compiled, Implementation("torch", "")))


OPERATIONS: dict[str, Operation] = {
    "draw": _operation(
        "sample columns from a policy's scores",
        _cuda(
            "acquisition_step.cu",
            _needs("at most 4096 columns", lambda x: x.n_cols <= _MOST_COLUMNS),
        ),
    ),
    "distinct": _operation(
        "list distinct candidates",
        _cuda("acquisition_step.cu", _needs("one state per slice", lambda x: x.n_per_slice == 1)),
    ),
    "follow": _operation(
        "copy the states of the followed samples",
        _cuda("acquisition_step.cu", _needs("states in 32 bit", lambda x: x.dtypes == _STATE)),
    ),
    "measure": _operation(
        "add a column to zero-filled images, with their statistics",
        _cuda(
            "candidates.cu",
            _needs("one coil", lambda x: x.n_coils == 1),
            _needs("complex numbers of 32 bit", lambda x: x.dtypes == {torch.complex64}),
        ),
    ),
    "ssim": _operation(
        "score images", _cuda("ssim.cu", _PAPER, _FLOATS), _c("ssim_cpu.c", _PAPER, _FLOATS)
    ),
    "unet": _operation(
        "reconstruct by a frozen U-Net",
        _cuda(
            "convolution.cu",
            _needs("16, 32, 64, ... channels, at most 1024 at the coarsest level", _fits_unet),
            _needs(SIDES, _fits_sides),
            _shared_memory(lambda _: _UNET_BYTES),
        ),
        _c("convolution_cpu.c", _FLOATS, _MULTIPLES),
    ),
    "policy": _operation(
        "run the paper's policy network, both passes",
        _cuda(
            "convolution_backward.cu",
            _needs("8, 16, 32, 64 or 128 channels, at most 1024 after pooling", _fits_policy),
            _needs(_POLICY_SIDES, _fits_policy_sides),
            _shared_memory(_policy_bytes),
        ),
        _c(
            "convolution_cpu.c",
            _FLOATS,
            _MULTIPLES,
            _needs("no gradients of the images", lambda x: not x.differentiates_images),
        ),
    ),
}
"""In the order of one acquisition step, then the networks."""

_uses_c = True
_logged: set[tuple[str, str]] = set()


@contextmanager
def compiled_kernels(*, enabled: bool) -> Iterator[None]:
    """Allow or disable C kernels inside the block; CUDA kernels are not affected."""
    global _uses_c
    before, _uses_c = _uses_c, enabled
    try:
        yield
    finally:
        _uses_c = before


def serving(operation: str, request: Request) -> Name:
    """Return the first implementation that can run."""
    return _serving(operation, request, _uses_c)


@lru_cache(maxsize=1024)
def _serving(operation: str, request: Request, uses_c: bool) -> Name:
    return next(_candidates(operation, request, uses_c)).name


def build(operation: str, request: Request, makers: Mapping[str, Callable[[], Made]]) -> Made:
    """Construct the first implementation that can run and can be compiled."""
    for implementation in _candidates(operation, request, _uses_c):
        try:
            return makers[implementation.name]()
        except KernelUnavailableError as error:
            _log_skipped(operation, implementation, str(error), is_warning=True)
    raise AssertionError("plain torch is always available")


def _fault(implementation: Implementation, request: Request) -> tuple[str | None, bool]:
    if implementation.device is not None and not kernels_are_on():
        return f"{SWITCH}=off", False
    for condition in implementation.conditions:
        reason = condition.lacks(request)
        if reason is not None:
            return reason, condition.is_of_device
    return None, False


def _candidates(operation: str, request: Request, uses_c: bool) -> Iterator[Implementation]:
    """Yield implementations that can run, best first, and log skipped ones."""
    for implementation in OPERATIONS[operation].implementations:
        if implementation.device not in (None, request.device.type):
            continue
        if implementation.name == "c" and not uses_c:
            continue
        reason, is_of_device = _fault(implementation, request)
        if reason is None:
            yield implementation
        else:
            _log_skipped(operation, implementation, reason, is_warning=is_of_device)


def _log_skipped(operation: str, passed: Implementation, reason: str, *, is_warning: bool) -> None:
    if (operation, reason) not in _logged:
        _logged.add((operation, reason))
        level = logging.WARNING if is_warning else logging.INFO
        words = (passed.source, OPERATIONS[operation].summary, reason)
        _log.log(level, "plain torch, not %s, will %s: %s", *words)
