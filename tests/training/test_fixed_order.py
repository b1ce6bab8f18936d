"""Fixed orders are chosen greedily by mean SSIM, the same way whatever the batches."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from kscout.acquisition.episode import Simulator
from kscout.acquisition.loop import rollout
from kscout.acquisition.plan import Plan
from kscout.core import Measurement, Reconstruction, Reconstructor
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.metrics import ssim
from kscout.physics.sampling import center_columns
from kscout.policies.fixed import FixedOrder
from kscout.reconstruction.unet import UNet
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training.fixed_order import FixedOrderResult, fit_fixed_order

N_SLICES, N_ROWS, N_COLS, N_INITIAL = 5, 13, 15, 3


@pytest.fixture
def slices(generator: torch.Generator) -> SliceSet:
    images = torch.rand(N_SLICES, N_ROWS, N_COLS, generator=generator)
    images = images * torch.linspace(0.2, 1, N_COLS) + images.flip(0).cumsum(dim=-1) / N_COLS
    return SliceSet.from_images(images, ["a", "a", "b", "b", "b"])


def fit(slices: SliceSet, reconstructor: Reconstructor, **settings: Any) -> FixedOrderResult:
    names = ("n_slices_per_step", "device", "on_step")
    own = {name: settings.pop(name) for name in names if name in settings}
    plan = Plan(**{"start": N_INITIAL, "horizon": 4, "protocol": "paper", **settings})
    return fit_fixed_order(slices, reconstructor, plan, **own)


def mean_ssim(slices: SliceSet, columns: list[int]) -> float:
    """Reconstruct and score by hand, with NumPy-like steps and no simulator."""
    batch = slices.batch(torch.arange(len(slices)))
    mask = torch.zeros(len(slices), N_COLS, dtype=torch.bool)
    mask[:, columns] = True
    found = ZeroFilled()(batch.kspace, mask)
    scale, shift = batch.target_std[:, None, None], batch.target_mean[:, None, None]
    scores = ssim(found.image * scale + shift, batch.target, data_range=batch.data_range)
    return float(scores.double().mean())


def test_each_column_is_the_best_of_all_on_average(slices: SliceSet) -> None:
    told: list[dict[str, Any]] = []
    result = fit(slices, ZeroFilled(), on_step=told.append)
    assert [(one["step"], one["column"]) for one in told] == [*enumerate(result.order, 1)]
    assert [one["ssim"] for one in told] == result.mean_scores[1:]
    measured = list(center_columns(N_COLS, N_INITIAL))
    assert result.mean_scores[0] == pytest.approx(mean_ssim(slices, measured), abs=1e-5)
    for step, column in enumerate(result.order):
        before = mean_ssim(slices, measured)
        left = [c for c in range(N_COLS) if c not in measured]
        means = {c: mean_ssim(slices, [*measured, c]) for c in left}
        assert means[column] == pytest.approx(max(means.values()), abs=1e-6)
        assert result.mean_scores[step + 1] == pytest.approx(means[column], abs=1e-5)
        expected = torch.tensor([means[c] - before for c in left])
        torch.testing.assert_close(result.gains[step, left], expected, atol=1e-5, rtol=0)
        assert result.gains[step, measured].isnan().all()
        measured.append(column)


def test_the_policy_of_the_order_reaches_its_scores(slices: SliceSet) -> None:
    result = fit(slices, ZeroFilled())
    simulator = Simulator(slices.batch(torch.arange(N_SLICES)), ZeroFilled(), protocol="paper")
    policy = FixedOrder(n_cols=N_COLS, order=result.order)
    found = rollout(policy, simulator, Plan(N_INITIAL, 4))
    assert found.columns[:, 0].tolist() == [result.order] * N_SLICES
    means = found.ssim[:, 0].mean(dim=0)
    torch.testing.assert_close(means, torch.tensor(result.mean_scores), atol=1e-5, rtol=0)


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_batches_change_nothing(slices: SliceSet, batch_size: int) -> None:
    torch.manual_seed(0)
    unet = UNet(n_channels=2, n_pools=1)
    settings = {"n_slices_per_step": 3, "seed": 2}
    whole = fit(slices, unet, **settings)
    parts = fit(slices, unet, batch_size=batch_size, **settings)
    assert parts.order == whole.order
    torch.testing.assert_close(parts.gains, whole.gains, equal_nan=True, atol=1e-6, rtol=0)


def test_random_slices_are_a_subset_that_depends_on_the_seed(slices: SliceSet) -> None:
    singles = [fit(slices.subset(torch.tensor([i])), ZeroFilled()).gains[0] for i in range(5)]
    drawn = []
    for seed in (3, 3, *range(4, 10)):
        one = fit(slices, ZeroFilled(), n_slices_per_step=1, seed=seed).gains[0]
        matches = [torch.allclose(one, single, equal_nan=True, atol=1e-5) for single in singles]
        assert sum(matches) == 1
        drawn.append(matches.index(True))
    assert drawn[0] == drawn[1] and len(set(drawn)) > 1


def test_equal_columns_go_to_the_lowest(slices: SliceSet) -> None:
    # A real image with nothing but DC along the rows: no further column changes anything.
    flat = torch.linspace(1, 2, N_ROWS)[:, None].expand(N_SLICES, N_ROWS, N_COLS).contiguous()
    result = fit(SliceSet.from_images(flat, ["a"] * N_SLICES), _Constant())
    assert result.order == [0, 1, 2, 3]
    torch.testing.assert_close(result.gains[0, 0], torch.tensor(0.0))


class _Constant(Reconstructor):
    def reconstruct(self, measured: Measurement) -> Reconstruction:
        found = ZeroFilled().reconstruct(measured)
        return replace(found, image=torch.ones_like(found.image))


def test_columns_outside_the_matrix_are_no_candidates(slices: SliceSet) -> None:
    selectable = slices.selectable.clone()
    selectable[:, :4] = False
    selectable[0, 4] = False
    result = fit(replace(slices, selectable=selectable), ZeroFilled(), horizon=6)
    assert result.gains[:, :4].isnan().all() and min(result.order) >= 4
    free = fit(replace(slices, selectable=selectable).subset(torch.arange(1, 5)), ZeroFilled())
    torch.testing.assert_close(result.gains[0, 4], free.gains[0, 4] * 4 / 5, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"horizon": 13}, "no column left to acquire"),
        ({"n_slices_per_step": -1}, "n_slices_per_step = -1"),
    ],
)
def test_impossible_settings_are_refused(
    slices: SliceSet, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        fit(slices, ZeroFilled(), **settings)
    with pytest.raises(ConfigError, match="no slices"):
        fit(slices.subset(torch.arange(0)), ZeroFilled())
