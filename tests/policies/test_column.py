"""The column network reads what was measured, at any size, and starts from given gains."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kscout.core import Measurement, Observation
from kscout.errors import ConfigError
from kscout.physics.fourier import conjugate_mirror, fft2c
from kscout.policies.column import ColumnPolicy, _signals

SMALL = {"width": 12, "n_heads": 2, "n_layers": 1, "channels": [8, 8], "image_channels": [8]}
N_ROWS, N_COLS, HORIZON = 20, 18, 3


def observation(n_coils: int = 1, n_rows: int = N_ROWS, n_cols: int = N_COLS) -> Observation:
    generator = torch.Generator().manual_seed(1)
    kspace = torch.randn(2, n_coils, n_rows, n_cols, dtype=torch.complex64, generator=generator)
    mask = torch.rand(2, n_cols, generator=generator) < 0.4
    measured = Measurement.of(kspace, mask)
    image = torch.randn(2, n_rows, n_cols, generator=generator)
    return Observation(
        image, mask, 1, zero_filled=measured.zero_filled, mean=measured.mean, std=measured.std
    )


def untrained(**changes: object) -> ColumnPolicy:
    sizes = {"n_cols": N_COLS, "horizon": HORIZON, "n_initial": 2, **SMALL, **changes}
    return ColumnPolicy(**sizes)


def trained() -> ColumnPolicy:
    """Return a network whose last layer is not zero."""
    torch.manual_seed(0)
    policy = untrained()
    torch.nn.init.normal_(policy.head.weight)
    return policy.eval()


@pytest.mark.parametrize(("n_coils", "n_rows", "n_cols"), [(1, 33, 21), (3, 16, 26), (1, 64, 40)])
def test_one_network_serves_any_matrix_and_coils(n_coils: int, n_rows: int, n_cols: int) -> None:
    scores = trained()(observation(n_coils, n_rows, n_cols))
    assert scores.shape == (2, n_cols)
    assert scores.isfinite().all()


def test_before_training_it_chooses_by_the_gains_it_starts_from() -> None:
    policy = untrained()
    gains = torch.randn(HORIZON, N_COLS, generator=torch.Generator().manual_seed(2))
    policy.start_from(gains)
    seen = observation()
    for step in range(HORIZON):
        mask = torch.arange(N_COLS).expand(2, -1) < 2 + step
        scores = policy(replace(seen, mask=mask, step=step))
        torch.testing.assert_close(scores, gains[step].expand(2, -1))


def test_it_looks_at_what_was_measured_beyond_the_image() -> None:
    policy, seen = trained(), observation()
    assert seen.zero_filled is not None
    turned = replace(seen, zero_filled=seen.zero_filled.flip(-2))
    assert not torch.allclose(policy(seen), policy(turned))


@pytest.mark.parametrize(("n_coils", "n_rows", "n_cols"), [(1, 33, 20), (1, 16, 21), (3, 16, 26)])
def test_maps_are_magnitudes_of_kspace_where_it_was_measured_or_mirrored(
    n_coils: int, n_rows: int, n_cols: int
) -> None:
    seen = observation(n_coils, n_rows, n_cols)
    assert seen.zero_filled is not None and seen.mean is not None and seen.std is not None
    mean, std = seen.mean[:, None, None], seen.std[:, None, None]
    found = _signals(seen, mean, std)
    expected = fft2c(seen.image)
    kspace = fft2c((seen.zero_filled - mean[:, None]) / std[:, None]) * seen.mask[:, None, None]
    masks = (
        seen.mask,
        conjugate_mirror(seen.mask[:, None, :].expand(-1, n_rows, -1) + 0j)[:, 0] == 1,
    )
    wanted = [expected.abs()]
    for values in (kspace, conjugate_mirror(kspace)):
        size = values.abs().square().sum(dim=1).sqrt()
        apart = expected - values[:, 0] if n_coils == 1 else expected.abs() - size
        wanted += [size, apart.abs()]
    for at, (one, other) in enumerate(zip(found, wanted, strict=False)):
        is_known = torch.ones_like(seen.mask) if at == 0 else masks[(at - 1) // 2]
        other = (other + 0.01).log() * is_known[:, None, :]
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
        assert not one.signbit()[(~is_known)[:, None, :].expand(one.shape)].any()
    for one, mask in zip(found[5:7], masks, strict=True):
        assert torch.equal(one, mask[:, None, :].expand(one.shape).float())


@pytest.mark.cuda
def test_scores_and_gradients_on_cuda_are_those_of_a_cpu() -> None:
    policy, seen = trained(), observation()
    found = []
    for device in ("cpu", "cuda"):
        own = copy.deepcopy(policy).to(device, memory_format=torch.channels_last)
        moved = {name: x.to(device) for name, x in vars(seen).items() if isinstance(x, Tensor)}
        # In plain 32 bit: the ten bits of TF32 would differ from a CPU by more.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            scores = own(replace(seen, **moved))
            scores.square().sum().backward()
        found.append([scores.detach().cpu(), *(x.grad.cpu() for x in own.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, atol=2e-2, rtol=2e-2)


def test_the_brightness_of_the_scanner_changes_nothing() -> None:
    policy, seen = trained(), observation()
    assert seen.zero_filled is not None and seen.mean is not None and seen.std is not None
    bright = replace(seen, zero_filled=7 * seen.zero_filled, mean=7 * seen.mean, std=7 * seen.std)
    torch.testing.assert_close(policy(seen), policy(bright), atol=1e-4, rtol=1e-4)


def test_gradients_are_finite_where_a_frequency_is_exactly_zero() -> None:
    seen = observation()
    # A constant image: all frequencies but one are zero, to the last bit.
    image = torch.ones_like(seen.image).requires_grad_()
    trained()(replace(seen, image=image)).sum().backward()
    assert image.grad is not None and image.grad.isfinite().all()


def test_an_observation_without_a_measurement_is_refused() -> None:
    seen = replace(observation(), zero_filled=None)
    with pytest.raises(ConfigError, match="needs measured k-space"):
        trained()(seen)


def test_gains_of_another_matrix_are_read_at_the_same_frequencies() -> None:
    policy = untrained()
    frequency = (torch.arange(N_COLS) - N_COLS // 2) / N_COLS
    policy.start_from(torch.stack([frequency + row for row in range(HORIZON)]))
    seen = observation(n_cols=2 * N_COLS)
    wanted = ((torch.arange(2 * N_COLS) - N_COLS) / (2 * N_COLS)).clamp(max=float(frequency[-1]))
    for n_measured, row in ((2, 0), (4, 0), (6, 1), (8, 2), (20, 2)):
        mask = torch.arange(2 * N_COLS).expand(2, -1) < n_measured
        # Twice the columns, each worth half; what columns are drawn by is no gain.
        for policy.is_stochastic, factor in ((False, 0.5), (True, 1.0)):
            expected = factor * (wanted + row).expand(2, -1)
            torch.testing.assert_close(policy(replace(seen, mask=mask)), expected)


def test_units_of_scores_go_by_the_share_of_columns_measured() -> None:
    policy = untrained(n_cols=16, horizon=4, n_initial=8)
    policy.gain_units = (4.0, 3.0, 2.0, 1.0)
    for n_cols, n_measured, unit in (
        *((16, 8, 4.0), (16, 9, 3.0), (16, 11, 1.0), (16, 14, 1.0), (16, 5, 4.0)),
        *((32, 16, 4.0), (32, 20, 2.0), (8, 5, 2.0)),
    ):
        mask = torch.arange(n_cols).expand(2, -1) < n_measured
        # Whatever was acquired since the start.
        for step in (0, 3):
            found = policy.units_at(mask, torch.full((2,), step))
            assert found.tolist() == [unit, unit], (n_cols, n_measured)


def test_what_may_still_be_acquired_counts() -> None:
    policy = trained()
    few, many = (policy(replace(observation(), n_left=n)) for n in (1, 9))
    assert not torch.allclose(few, many)
    each = policy(replace(observation(), n_left=torch.tensor([1, 9])))
    torch.testing.assert_close(each, torch.stack([few[0], many[1]]))
    # Where nobody counts, it is what the training had left at that step.
    torch.testing.assert_close(policy(observation()), policy(replace(observation(), n_left=2)))


@pytest.mark.parametrize(
    "change",
    [
        *({"width": 13}, {"channels": [12]}, {"n_heads": 0}, {"channels": []}),
        *({"image_channels": []}, {"n_bins": 0}, {"n_layers": -1}),
    ],
)
def test_sizes_that_do_not_fit_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        untrained(**change)
