"""Pairs of real tensors compute what complex tensors do."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kscout.apps.export.pairs import ComplexPairs, real_arithmetic
from kscout.physics.fourier import fft2c, ifft2c

FUNCTIONS: dict[str, Callable[[Any, Tensor], Any]] = {
    "fft2c": lambda x, _: fft2c(x),
    "ifft2c": lambda x, _: ifft2c(x),
    "there and back": lambda x, _: torch.fft.ifft(torch.fft.fft(x), norm="forward"),
    "unscaled": lambda x, _: torch.fft.fft(x, norm="forward"),
    "sums": lambda x, real: real + x * x - real * x.conj() + (real - x) - 2 * x,
    "quotient": lambda x, real: x / (real.abs() + 1),
    "reduced": lambda x, _: x.sum(dim=1, keepdim=True),
    "masked": lambda x, real: torch.where(real > 0, x, 0),
    "multiplied": lambda x, real: torch.addcmul(x, x, real, value=-1),
    "moved": lambda x, _: x.flatten(0, 1)[:, None].unflatten(0, (2, 3))[..., [2, 0, 1]],
    "norm": lambda x, _: torch.linalg.vector_norm(x, dim=-3, keepdim=True),
    "seen as real": lambda x, real: torch.view_as_complex(torch.view_as_real(x * real)) * real,
    "size": lambda x, _: torch.abs(x) + x.abs(),
}


def complex_of(value: Any) -> Tensor:
    return torch.complex(value.real, value.imag) if isinstance(value, ComplexPairs) else value


@pytest.mark.parametrize("name", FUNCTIONS)
def test_pairs_compute_what_complex_tensors_do(
    name: str, unchecked: None, generator: torch.Generator
) -> None:
    parts = torch.randn(3, 2, 3, 5, 6, generator=generator)
    expected = FUNCTIONS[name](torch.complex(parts[0], parts[1]), parts[2])
    with real_arithmetic():
        found = FUNCTIONS[name](ComplexPairs(parts[0], parts[1]), parts[2])
    torch.testing.assert_close(complex_of(found), expected, atol=1e-5, rtol=1e-5)


def test_transforms_of_real_tensors_become_pairs(
    unchecked: None, generator: torch.Generator
) -> None:
    image = torch.randn(2, 5, 6, generator=generator)
    with real_arithmetic():
        found = fft2c(image)
        std, mean = torch.std_mean(image, dim=(-2, -1), correction=1)
    assert isinstance(found, ComplexPairs)
    torch.testing.assert_close(complex_of(found), fft2c(image), atol=1e-5, rtol=1e-5)
    for ours, theirs in zip((std, mean), torch.std_mean(image, dim=(-2, -1)), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert fft2c(image).is_complex()


def test_what_pairs_cannot_do_is_an_error() -> None:
    with pytest.raises(TypeError, match="angle"):
        torch.angle(ComplexPairs(torch.ones(2), torch.ones(2)))  # type: ignore[call-overload]
