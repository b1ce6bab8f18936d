"""On CUDA sessions are answered by graphs: with the simulator's bits, together, and safely."""

from concurrent.futures import ThreadPoolExecutor
from typing import final

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from kscout.acquisition import Advisor, Scan, Session, Simulator
from kscout.acquisition.plan import Plan
from kscout.acquisition.rollout import rollout
from kscout.acquisition.warm_up import warm_up
from kscout.core import Observation, Policy, Reconstructor, SliceBatch
from kscout.data.slices import SliceSet
from kscout.policies import load as load_policy
from kscout.policies.column import ColumnPolicy
from kscout.reconstruction import load

pytestmark = pytest.mark.cuda

SIZE, N_INITIAL, HORIZON = 128, 16, 5
SCAN = Scan(n_rows=SIZE, n_cols=SIZE, budget=N_INITIAL + HORIZON, initial=N_INITIAL)


@pytest.fixture
def batch(generator: torch.Generator) -> SliceBatch:
    images = torch.rand(1, SIZE, SIZE, generator=generator).cumsum(dim=-1)
    return SliceSet.from_images(images, ["a"]).to("cuda").batch(torch.tensor([0]))


@pytest.fixture
def unet() -> Reconstructor:
    device = torch.device("cuda")
    return load("knee-unet").frozen(precision="auto", n_rows=SIZE, n_cols=SIZE, device=device)


def policy_of(name: str) -> Policy:
    if name != "column":
        return load_policy(name, device="cuda")
    torch.manual_seed(0)
    policy = ColumnPolicy(n_cols=SIZE, n_initial=N_INITIAL, horizon=HORIZON)
    for parameter in policy.parameters():  # its last layer is zero before training
        torch.nn.init.normal_(parameter, std=0.05)
    return policy.cuda().eval()


def scanned(session: Session, batch: SliceBatch) -> Session:
    while columns := session.advise().columns:
        session.measure(columns, batch.kspace[0, :, :, list(columns)].movedim(-1, 0).cpu())
    return session


@pytest.mark.parametrize("name", ["column", "knee-base-greedy", "knee-base-fixed"])
def test_a_session_takes_the_columns_of_the_simulator_bit_for_bit(
    batch: SliceBatch, unet: Reconstructor, name: str
) -> None:
    policy, simulator = policy_of(name), Simulator(batch, unet, protocol="blind")
    found = rollout(policy, simulator, Plan(N_INITIAL, HORIZON), keep_images=True)
    with Advisor(unet, policy, device="cuda") as advisor:
        warm_up(advisor, SCAN)
        session = scanned(Session(advisor, SCAN), batch)
        assert session.order[N_INITIAL:] == found.columns[0, 0].tolist()
        assert found.images is not None
        assert torch.equal(session.image(), found.images[-1, 0, 0])
        assert advisor._graphs is not None
        kept = list(advisor._graphs._kept.values())
        assert kept and None not in kept, "every answer came from a graph"


def test_sessions_of_many_threads_get_the_columns_of_one_alone(
    batch: SliceBatch, unet: Reconstructor
) -> None:
    """Graphs of several sizes are captured while others ask for memory."""
    with Advisor(unet, policy_of("knee-base-fixed"), device="cuda") as advisor:
        alone = scanned(Session(advisor, SCAN), batch)
        with ThreadPoolExecutor(24) as pool:
            sessions = [Session(advisor, SCAN) for _ in range(24)]
            together = list(pool.map(scanned, sessions, [batch] * 24))
        for session in together:
            assert session.order == alone.order
            torch.testing.assert_close(session.image(), alone.image(), atol=1e-3, rtol=1e-3)


@final
class Waiting(Policy):
    """Reads a value back from the device, which no graph can hold."""

    is_stochastic = False

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        middle = float(seen.mask.sum()) * 0 + SIZE / 2
        return -(torch.arange(SIZE, device=seen.mask.device) - middle).abs().expand(seen.mask.shape)


def test_what_waits_for_the_device_is_computed_without_a_graph_and_harms_no_other(
    batch: SliceBatch, unet: Reconstructor, caplog: pytest.LogCaptureFixture
) -> None:
    with Advisor(unet, Waiting(), device="cuda") as advisor:
        session = scanned(Session(advisor, SCAN), batch)
        assert session.order[N_INITIAL:] == [72, 55, 73, 54, 74]
    assert "no CUDA graph" in caplog.text
    with Advisor(unet, policy_of("knee-base-fixed"), device="cuda") as advisor:
        scanned(Session(advisor, SCAN), batch)
        assert advisor._graphs is not None
        assert None not in advisor._graphs._kept.values()
