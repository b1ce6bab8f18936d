"""Zero-filled images and least squares over all coils."""

import pytest
import torch
from unrolled import Unrolled

from coil_slices import coil_batch
from golden_numbers import Golden
from kscout.acquisition.episode import Simulator
from kscout.contracts import check_reconstructor
from kscout.core import Measurement
from kscout.physics.fourier import fft2c
from kscout.physics.normalization import denormalize
from kscout.physics.sampling import center_mask
from kscout.reconstruction import RECONSTRUCTORS
from kscout.reconstruction.sense import Sense
from kscout.reconstruction.zero_filled import ZeroFilled

N_INITIAL, COLUMNS = 9, torch.tensor([[2, 7], [30, 28]])


def test_an_acquisition_keeps_the_sensitivities_of_its_start() -> None:
    batch = coil_batch()
    simulator = Simulator(batch, Sense(), protocol="blind")
    start = simulator.start(N_INITIAL)
    assert start.maps is not None
    state = start
    for column in COLUMNS.T:
        state = simulator.acquire(state, column)
    measured = Measurement.of(batch.kspace, state.mask)
    expected = Sense().reconstruct(Measurement(measured.zero_filled, state.mask, maps=start.maps))
    torch.testing.assert_close(state.image, expected.image, atol=1e-4, rtol=0)
    together = simulator.branch(start, COLUMNS[:, None]).state
    torch.testing.assert_close(together.image, expected.image, atol=1e-4, rtol=0)
    torch.testing.assert_close(together.maps, start.maps, atol=0, rtol=0)
    branches = simulator.branch(start, COLUMNS)
    assert branches.follow(torch.tensor([1, 0])).maps is not None


def test_sense_beats_zero_filling() -> None:
    batch = coil_batch()
    mask = (torch.arange(batch.n_cols) % 2 == 0).expand(2, -1).clone()
    mask[:, 12:21] = True
    errors = []
    for reconstructor in (ZeroFilled(), Sense()):
        found = reconstructor(batch.kspace, mask)
        image = denormalize(found.image, found.mean, found.std)
        errors.append((image - batch.target).square().mean())
    assert errors[1] < 0.2 * errors[0]


@pytest.mark.parametrize("factor", [1e-6, 1e5])
@pytest.mark.parametrize("name", ["sense", "sense-tv", "total-variation", "varnet"])
def test_units_do_not_matter(name: str, factor: float) -> None:
    torch.manual_seed(0)
    model, batch = RECONSTRUCTORS[name]().eval(), coil_batch()
    mask = torch.arange(batch.n_cols) % 3 == 0
    mask[10:23] = True
    mask = mask.expand(2, -1)
    with torch.no_grad():
        plain, scaled = model(batch.kspace, mask), model(batch.kspace * factor, mask)
    torch.testing.assert_close(scaled.image, plain.image, atol=1e-3, rtol=0)
    torch.testing.assert_close(scaled.std, plain.std * factor, atol=0, rtol=1e-3)


@pytest.mark.parametrize("size, n_center, key", [(128, 16, "a8"), (128, 4, "a32"), (64, 8, "a8")])
def test_it_is_the_references_input(golden: Golden, size: int, n_center: int, key: str) -> None:
    start = (128 - size) // 2
    image = golden("inputs", "images128")[:, start : start + size, start : start + size]
    mask = center_mask(size, n_center).expand(6, -1)
    found = ZeroFilled()(fft2c(image)[:, None], mask)
    expected = golden("inputs", f"zf_r{size}_{key}")
    torch.testing.assert_close(found.image, expected, atol=1e-4, rtol=0)


def test_coils_are_combined_by_root_sum_of_squares(generator: torch.Generator) -> None:
    kspace = torch.randn(2, 3, 9, 11, dtype=torch.complex64, generator=generator)
    found = ZeroFilled()(kspace, torch.ones(2, 11, dtype=torch.bool))
    shifted = torch.fft.ifftshift(kspace, dim=(-2, -1))
    images = torch.fft.fftshift(torch.fft.ifft2(shifted, norm="ortho"), dim=(-2, -1))
    expected = torch.linalg.vector_norm(images, dim=1)
    undone = found.image * found.std[:, None, None] + found.mean[:, None, None]
    torch.testing.assert_close(undone, expected, atol=1e-5, rtol=1e-5)


def test_learned_steps_keep_the_contract() -> None:
    torch.manual_seed(0)
    check_reconstructor(Unrolled(), n_rows=14, n_cols=11, n_coils=2)
