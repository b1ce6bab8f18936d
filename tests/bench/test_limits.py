"""Work is counted from the model, and the machine bounds its speed."""

import pytest
import torch

from kscout.apps.bench import engine
from kscout.apps.bench.engine import best_time
from kscout.apps.bench.parts import Ceilings, Work, count_work
from kscout.reconstruction.unet import UNet


def test_the_unet_costs_its_known_flops_and_bytes() -> None:
    # 0.972 GFLOP forward and 8.1 MB in 16 bit for one image of 128x128.
    work = count_work(UNet().network.eval(), torch.zeros(1, 1, 128, 128), bytes_per_value=2)
    assert work.flops == pytest.approx(0.972e9, rel=5e-3)
    assert work.n_bytes == pytest.approx(8.1e6, rel=0.1)


def test_a_dense_layer_and_a_convolution_are_counted_by_hand() -> None:
    network = torch.nn.Sequential(
        torch.nn.Conv2d(2, 3, 3, padding=1), torch.nn.Flatten(), torch.nn.Linear(3 * 35, 4)
    )
    work = count_work(network, torch.zeros(1, 2, 5, 7))
    assert work.flops == 2 * (9 * 2 * 3 * 35) + 2 * (105 * 4)
    assert work.n_bytes == 4 * ((2 * 35 + 3 * 35) + (105 + 4 + 105 * 4))
    shared = count_work(network, torch.zeros(1, 2, 5, 7), n_together=7)
    assert shared.flops == work.flops
    assert shared.n_bytes == 4 * ((2 * 35 + 3 * 35) + (105 + 4 + 105 * 4 / 7))


def test_a_transposed_convolution_is_counted_by_its_inputs() -> None:
    work = count_work(torch.nn.ConvTranspose2d(3, 2, 2, stride=2), torch.zeros(1, 3, 5, 7))
    assert work.flops == 2 * (3 * 2 * 4 * 35)
    assert work.n_bytes == 4 * (3 * 35 + 2 * 4 * 35)


def test_counting_leaves_no_hook_behind() -> None:
    network = UNet(n_channels=2, n_pools=1).network
    count_work(network, torch.zeros(1, 1, 8, 8))
    assert not any(module._forward_hooks for module in network.modules())


def test_the_tighter_ceiling_limits() -> None:
    ceilings = Ceilings(flops_per_s=100.0, half_flops_per_s=400.0, bytes_per_s=10.0)
    assert ceilings.limit(Work(flops=50.0, n_bytes=1.0)) == 2.0
    assert ceilings.limit(Work(flops=50.0, n_bytes=20.0)) == 0.5
    assert ceilings.limit(Work(flops=50.0, n_bytes=1.0), in_half=True) == 8.0


@pytest.mark.parametrize(("at_least_s", "n_timed", "best_s"), [(0.0, 3, 3.0), (17.0, 4, 2.0)])
def test_the_best_time_is_of_three_calls_or_more(
    monkeypatch: pytest.MonkeyPatch, at_least_s: float, n_timed: int, best_s: float
) -> None:
    clock, took, calls = 0.0, [9.0, 5.0, 3.0, 8.0, 2.0, 1.0], 0

    def function() -> None:
        nonlocal clock, calls
        clock, calls = clock + took[calls], calls + 1

    monkeypatch.setattr(engine, "wait", lambda _: clock)
    assert best_time(function, torch.device("cpu"), at_least_s=at_least_s) == best_s
    # The first one warms up.
    assert calls == 1 + n_timed
