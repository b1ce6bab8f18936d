"""Complex tensors as pairs of real ones, for exporters without complex numbers.

Under `real_arithmetic` code for complex tensors runs unchanged: a `ComplexPairs` replaces each of
them, and Fourier transforms are products with matrices.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, Union, cast, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kscout.json_types import JsonObject

Handler = Callable[..., Any]
Operand = Union[float, Tensor, "ComplexPairs"]


@final
class MissingOperatorError(AttributeError, TypeError):
    """An operator of complex tensors that `ComplexPairs` do not have."""


@final
class ComplexPairs:
    """A complex tensor as real and imaginary parts of one shape."""

    def __init__(self, real: Tensor, imag: Tensor) -> None:
        self.real, self.imag = real, imag

    @classmethod
    def of(cls, value: Operand) -> "ComplexPairs":
        """Return a value as pairs; that of a real tensor has no imaginary part."""
        if isinstance(value, ComplexPairs):
            return value
        real = value if isinstance(value, Tensor) else torch.tensor(float(value))
        return cls(real, torch.zeros_like(real))

    @classmethod
    def __torch_function__(
        cls,
        function: Handler,
        types: Sequence[type],
        given: tuple[Any, ...] = (),
        named: JsonObject | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        handler = _HANDLERS.get(function)
        if handler is None:
            raise MissingOperatorError(getattr(function, "__name__", str(function)))
        return handler(*given, **(named or {}))

    @property
    def shape(self) -> torch.Size:
        return self.real.shape

    @property
    def device(self) -> torch.device:
        return self.real.device

    def each(self, change: Callable[[Tensor], Tensor]) -> "ComplexPairs":
        """Return what a function that moves values makes of both parts."""
        return ComplexPairs(change(self.real), change(self.imag))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - never returns
        raise MissingOperatorError(name)

    def __len__(self) -> int:
        return len(self.real)

    def __getitem__(self, place: Any) -> "ComplexPairs":  # noqa: ANN401 - any index
        return self.each(lambda x: x[place])

    def __setitem__(self, place: Any, value: float) -> None:  # noqa: ANN401 - any index
        self.real[place], self.imag[place] = value, 0.0

    def flatten(self, *axes: int) -> "ComplexPairs":
        return self.each(lambda x: x.flatten(*axes))

    def unflatten(self, axis: int, sizes: Sequence[int]) -> "ComplexPairs":
        return self.each(lambda x: x.unflatten(axis, tuple(sizes)))

    def unsqueeze(self, axis: int) -> "ComplexPairs":
        return self.each(lambda x: x.unsqueeze(axis))

    def sum(self, dim: int | tuple[int, ...], keepdim: bool = False) -> "ComplexPairs":
        return self.each(lambda x: x.sum(dim=dim, keepdim=keepdim))

    def conj(self) -> "ComplexPairs":
        return ComplexPairs(self.real, -self.imag)

    def abs(self) -> Tensor:
        return (self.real.square() + self.imag.square()).sqrt()

    def __neg__(self) -> "ComplexPairs":
        return self.each(lambda x: -x)

    def __add__(self, other: Operand) -> "ComplexPairs":
        if isinstance(other, ComplexPairs):
            return ComplexPairs(self.real + other.real, self.imag + other.imag)
        return ComplexPairs(self.real + other, self.imag + torch.zeros_like(self.real + other))

    def __sub__(self, other: Operand) -> "ComplexPairs":
        return self + (-other)

    def __rsub__(self, other: Operand) -> "ComplexPairs":
        return -self + other

    def __mul__(self, other: Operand) -> "ComplexPairs":
        if not isinstance(other, ComplexPairs):
            return self.each(lambda x: x * other)
        return ComplexPairs(
            self.real * other.real - self.imag * other.imag,
            self.real * other.imag + self.imag * other.real,
        )

    def __truediv__(self, other: float | Tensor) -> "ComplexPairs":
        return self.each(lambda x: x / other)

    __radd__, __rmul__ = __add__, __mul__


def from_pairs(values: Float[Tensor, "*axes 2"]) -> Tensor:
    """Return a substitute for a complex tensor, with the same operations."""
    return cast(Tensor, ComplexPairs(*values.unbind(dim=-1)))


# Cached, so that exporters see constants instead of their computation.
@lru_cache(maxsize=64)
def _waves(n: int, sign: float, scale: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of 2 pi j k / n, the matrix of a transform of length n."""
    # Full turns are removed, so that large products lose no precision.
    turns = torch.outer(torch.arange(n), torch.arange(n)) % n
    angle = turns.double() * (2 * math.pi / n)
    waves = (angle.cos().float() * scale, angle.sin().float() * (sign * scale))
    return waves[0].to(device), waves[1].to(device)


@lru_cache(maxsize=64)
def _shifted_places(n: int, shift: Callable[[Tensor], Tensor], device: torch.device) -> Tensor:
    return shift(torch.arange(n)).to(device)


def _transformed(values: ComplexPairs, axis: int, *, sign: float, scale: float) -> ComplexPairs:
    cosine, sine = _waves(values.shape[axis], sign, scale, values.device)

    def product(part: Tensor, waves: Tensor) -> Tensor:
        return part @ waves if axis == -1 else waves @ part

    real, imag = values.real, values.imag
    return ComplexPairs(
        product(real, cosine) - product(imag, sine), product(imag, cosine) + product(real, sine)
    )


def _fourier(*, is_inverse: bool, n_axes: int) -> Handler:
    plain = {"backward": is_inverse, "forward": not is_inverse}

    def transform(values: Operand, norm: str | None = None) -> ComplexPairs:
        pairs = ComplexPairs.of(values)
        for axis in range(-n_axes, 0):
            n = pairs.shape[axis]
            scale = n**-0.5 if norm == "ortho" else 1 / n if plain[norm or "backward"] else 1.0
            pairs = _transformed(pairs, axis, sign=1.0 if is_inverse else -1.0, scale=scale)
        return pairs

    return transform


def _shifted(
    values: ComplexPairs, axes: tuple[int, ...], shift: Callable[[Tensor], Tensor]
) -> ComplexPairs:
    """Index the values, which exporters write more compactly than a roll."""
    for axis in axes:
        place = _shifted_places(values.shape[axis], shift, values.device)
        values = values.each(partial(torch.index_select, dim=axis, index=place))
    return values


def _where(condition: Tensor, first: Operand, second: Operand) -> ComplexPairs:
    first, second = ComplexPairs.of(first), ComplexPairs.of(second)
    return ComplexPairs(
        torch.where(condition, first.real, second.real),
        torch.where(condition, first.imag, second.imag),
    )


def _norm(values: ComplexPairs, dim: int, keepdim: bool = False) -> Tensor:
    squares = values.real.square() + values.imag.square()
    return squares.sum(dim=dim, keepdim=keepdim).sqrt()


def _std_mean(
    values: Tensor, dim: tuple[int, ...], correction: int = 1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Written out, because exporters lack the unbiased standard deviation over two axes."""
    mean = values.mean(dim=dim, keepdim=True)
    n_others = math.prod(values.shape[axis] for axis in dim) - correction
    std = ((values - mean).square().sum(dim=dim, keepdim=True) / n_others).sqrt()
    if keepdim:
        return std, mean
    keep = [slice(None)] * values.ndim
    for axis in dim:
        keep[axis] = 0  # type: ignore[call-overload]
    return std[tuple(keep)], mean[tuple(keep)]


_FOURIER: dict[Handler, Handler] = {
    torch.fft.fft: _fourier(is_inverse=False, n_axes=1),
    torch.fft.ifft: _fourier(is_inverse=True, n_axes=1),
    torch.fft.fft2: _fourier(is_inverse=False, n_axes=2),
    torch.fft.ifft2: _fourier(is_inverse=True, n_axes=2),
}
_HANDLERS: dict[Any, Handler] = {
    **_FOURIER,
    torch.fft.fftshift: lambda x, dim: _shifted(x, dim, torch.fft.fftshift),
    torch.fft.ifftshift: lambda x, dim: _shifted(x, dim, torch.fft.ifftshift),
    torch.where: _where,
    torch.addcmul: lambda x, one, other, value=1: x + (one * other) * value,
    torch.linalg.vector_norm: _norm,
    torch.zeros_like: lambda x: x.each(torch.zeros_like),
    torch.abs: ComplexPairs.abs,
    torch.view_as_real: lambda x: torch.stack((x.real, x.imag), dim=-1),
    # A real tensor comes first, and a pair second.
    Tensor.mul: lambda x, y: y * x,
    Tensor.__mul__: lambda x, y: y * x,
    Tensor.add: lambda x, y: y + x,
    Tensor.__add__: lambda x, y: y + x,
    Tensor.sub: lambda x, y: -y + x,
    Tensor.__sub__: lambda x, y: -y + x,
}
_OF_REAL: dict[Any, Handler] = {
    **_FOURIER,
    torch.complex: ComplexPairs,
    torch.view_as_complex: from_pairs,
    torch.std_mean: _std_mean,
}
"""Functions that are replaced even for real arguments."""


@final
class _Real(TorchFunctionMode):
    def __torch_function__(
        self,
        function: Handler,
        types: Sequence[type],
        given: tuple[Any, ...] = (),
        named: JsonObject | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        return _OF_REAL.get(function, function)(*given, **(named or {}))


@contextmanager
def real_arithmetic() -> Iterator[None]:
    """Represent all complex tensors as `ComplexPairs`."""
    with _Real():
        yield
