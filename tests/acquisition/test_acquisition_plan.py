"""Starts of one's own, and several columns a step: by brute force."""

import copy
from dataclasses import replace
from typing import Any, final

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

from kscout.acquisition import Advisor, Scan, Session
from kscout.acquisition.episode import Simulator
from kscout.acquisition.loop import NOT_ACQUIRED, Trajectory, action_uniforms, rollout
from kscout.acquisition.plan import Plan
from kscout.contracts import check_policy
from kscout.core import Context, Observation, Policy, Protocol, SliceBatch
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.metrics import ssim
from kscout.physics.fourier import ifft2c
from kscout.policies.fixed import FixedOrder
from kscout.policies.random import Random
from kscout.reconstruction.unet import UNet
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.weights import fingerprint
from tiny_sessions import scanned

N_SLICES, N_ROWS, N_COLS = 4, 9, 14
START = (0, 5, 7, 8)


@pytest.fixture
def batch(generator: torch.Generator) -> SliceBatch:
    images = torch.rand(N_SLICES, N_ROWS, N_COLS, generator=generator).cumsum(dim=-1)
    slices = SliceSet.from_images(images, ["a", "a", "b", "b"])
    return slices.batch(torch.arange(N_SLICES))


def run(
    batch: SliceBatch, policy: Policy, *, uniforms: Tensor | None = None, **settings: Any
) -> Trajectory:
    plan = Plan(**{"start": 3, **settings})
    simulator = Simulator(batch, ZeroFilled(), protocol="paper")
    return rollout(policy, simulator, plan, uniforms=uniforms)


def score(batch: SliceBatch, row: int, columns: list[int]) -> float:
    """SSIM of the zero-filled image of some columns, from the definition."""
    mask = torch.zeros(N_COLS)
    mask[columns] = 1
    image = ifft2c(batch.kspace[row, 0] * mask).abs()
    mean, std = image.mean(), image.std(correction=1)
    shown = ((image - mean) / (std + 1e-11)).clamp(-6, 6)
    shown = shown * batch.target_std[row] + batch.target_mean[row]
    return float(ssim(shown, batch.target[row], data_range=batch.data_range[row]))


ORDER = [13, 5, 2, 0, 11, 8, 4, 9, 1]


def test_a_fixed_order_skips_what_is_measured_already(batch: SliceBatch) -> None:
    found = run(batch, FixedOrder(n_cols=N_COLS, order=ORDER), start=START, horizon=4)
    taken = [column for column in ORDER if column not in START][:4]
    assert found.columns.tolist() == [[taken]] * N_SLICES
    for row in range(N_SLICES):
        for moment in range(5):
            expected = score(batch, row, [*START, *taken[:moment]])
            assert float(found.ssim[row, 0, moment]) == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("columns_per_step", [2, 3, 7])
def test_several_columns_cost_one_reconstruction(batch: SliceBatch, columns_per_step: int) -> None:
    order = FixedOrder(n_cols=N_COLS, order=ORDER)
    found = run(batch, order, start=[6], horizon=7, columns_per_step=columns_per_step)
    n_steps = -(-7 // columns_per_step)
    assert found.ssim.shape == (N_SLICES, 1, n_steps + 1)
    assert found.columns[0, 0, :7].tolist() == ORDER[:7]
    assert (found.columns[:, :, 7:] == NOT_ACQUIRED).all()
    for moment in range(n_steps + 1):
        expected = score(batch, 2, [6, *ORDER[: min(7, moment * columns_per_step)]])
        assert float(found.ssim[2, 0, moment]) == pytest.approx(expected, abs=2e-5)


@final
class Tilted(Policy):
    """Logits that no image changes."""

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        return torch.linspace(-2, 2, N_COLS).expand(seen.mask.shape)


def test_several_draws_are_without_replacement(batch: SliceBatch) -> None:
    uniforms = action_uniforms(N_SLICES, 3, 8, 5)
    found = run(batch, Tilted(), horizon=8, columns_per_step=4, uniforms=uniforms)
    weights = torch.linspace(-2, 2, N_COLS).double().exp()
    for row in range(N_SLICES):
        for path in range(3):
            left = [column for column in range(N_COLS) if column not in (6, 7, 8)]
            for draw in range(8):
                shares = weights[left].cumsum(dim=0) / weights[left].sum()
                place = int((shares <= uniforms[row, path, draw]).sum())
                assert int(found.columns[row, path, draw]) == left.pop(place)


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"start": [3, 14]}, "column 14 of the start is not one of the 14"),
        ({"start": [3, 3]}, "column 3 occurs twice"),
        ({"start": []}, "names no column"),
        ({"start": list(range(12))}, r"4 of 4 slices: 12 \+ 3 columns.*to 2 or less"),
        ({"horizon": -1}, "cannot acquire -1"),
        ({"columns_per_step": 0}, "0 columns per step"),
    ],
)
def test_what_cannot_be_followed_is_refused(
    batch: SliceBatch, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        run(batch, Random(), **{"horizon": 3, **settings})


BIND_N_ROWS, BIND_N_COLS = 12, 16


class OnImage(Policy):
    """Tries every column on the present image, as if it were the ground truth."""

    is_stochastic = False
    n_bound = 0
    _context: Context | None = None

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def bind(self, context: Context) -> "OnImage":
        type(self).n_bound += 1
        bound = copy.copy(self)
        bound._context = context
        return bound

    def forward(self, seen: Observation) -> Tensor:
        assert self._context is not None
        truth = SliceBatch.of_images(seen.image - seen.image.amin(dim=(1, 2), keepdim=True), 4.0)
        columns = torch.arange(seen.mask.shape[1]).expand(len(seen.mask), -1)
        return self._context.gains(truth, seen.mask, columns) * self.scale


@pytest.fixture
def simulator() -> Simulator:
    torch.manual_seed(0)
    images = torch.rand(3, BIND_N_ROWS, BIND_N_COLS)
    network = UNet(n_channels=2, n_pools=1, protocol="paper").eval()
    batch = SliceSet.from_images(images, ["a", "b", "c"]).batch(torch.arange(3))
    return Simulator(batch, network, metric="psnr")


def test_an_acquisition_binds_once_to_its_reconstruction_protocol_and_metric(
    simulator: Simulator,
) -> None:
    policy, context = OnImage(), simulator.context
    assert (context.reconstructor, context.protocol, context.metric) == (
        simulator.reconstructor,
        "paper",
        "psnr",
    )
    before, state = OnImage.n_bound, simulator.start(4)
    done = rollout(policy, simulator, Plan(4, 3))
    assert OnImage.n_bound == before + 1
    seen = simulator.observe(policy, state, n_left=3)
    scores = policy.bind(context)(seen).masked_fill(state.mask, -torch.inf)
    assert torch.equal(done.columns[:, 0, 0], scores.argmax(dim=-1))
    # Gains of another metric are other numbers.
    assert not torch.allclose(policy.bind(replace(context, metric="ssim"))(seen), scores)
    check_policy(policy, n_rows=BIND_N_ROWS, n_cols=BIND_N_COLS)


@pytest.mark.parametrize("protocol", ["paper", "blind"])
def test_a_session_binds_once_by_the_protocol_of_its_network(
    simulator: Simulator, protocol: Protocol
) -> None:
    policy, before = OnImage(), OnImage.n_bound
    simulator.reconstructor.protocol = protocol
    batch = simulator.batch.rows(torch.arange(1))
    with Advisor(simulator.reconstructor, policy) as advisor:
        session = Session(
            advisor, Scan(n_rows=BIND_N_ROWS, n_cols=BIND_N_COLS, budget=7, initial=4)
        )
        scanned(session, batch)
    assert OnImage.n_bound == before + 1
    alike = Simulator(batch, simulator.reconstructor, protocol=protocol)
    wanted = rollout(policy, alike, Plan(4, 3)).columns[0, 0].tolist()
    assert session.order[4:] == wanted


def test_a_bound_policy_shares_weights_and_fingerprint(simulator: Simulator) -> None:
    policy = OnImage()
    bound = policy.bind(simulator.context)
    assert fingerprint(bound) == fingerprint(policy)
    seen = simulator.observe(policy, simulator.start(4), n_left=3)
    first = bound(seen)
    policy.load_state_dict({"scale": torch.tensor(2.0)})
    torch.testing.assert_close(bound(seen), 2 * first)
    bound(seen).sum().backward()
    assert policy.scale.grad is not None


def test_an_observation_computes_nothing(simulator: Simulator) -> None:
    seen = simulator.observe(OnImage(), simulator.start(4), n_left=3)
    for name in ("judge", "gain_estimator"):
        with pytest.raises(ConfigError, match=r"define bind\(self, context\) in the policy"):
            getattr(seen, name)
