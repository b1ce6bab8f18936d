"""Policies that try columns are bound to a reconstruction, protocol and metric at the beginning."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from kscout.acquisition import Advisor, Scan, Session
from kscout.acquisition.episode import Simulator
from kscout.acquisition.plan import Plan
from kscout.acquisition.rollout import rollout
from kscout.contracts import check_policy
from kscout.core import Context, Observation, Policy, SliceBatch
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.reconstruction.unet import UNet
from kscout.weights import fingerprint
from tiny_sessions import scanned

N_ROWS, N_COLS = 12, 16


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
    images = torch.rand(3, N_ROWS, N_COLS)
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
    check_policy(policy, n_rows=N_ROWS, n_cols=N_COLS)


def test_a_session_binds_once_by_the_protocol_of_its_network(simulator: Simulator) -> None:
    policy, before = OnImage(), OnImage.n_bound
    batch = simulator.batch.rows(torch.arange(1))
    with Advisor(simulator.reconstructor, policy) as advisor:
        session = Session(advisor, Scan(n_rows=N_ROWS, n_cols=N_COLS, budget=7, initial=4))
        scanned(session, batch)
    assert OnImage.n_bound == before + 1
    alike = Simulator(batch, simulator.reconstructor)
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
