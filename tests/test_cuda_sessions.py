"""On CUDA sessions are answered by graphs: with the simulator's bits, together, and safely."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import final

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from coil_data import coil_kspace, coil_store
from kscout.acquisition import Advisor, Scan, Session, Simulator
from kscout.acquisition.loop import rollout
from kscout.acquisition.plan import Plan
from kscout.acquisition.session import warm_up
from kscout.config import ReconstructorTraining
from kscout.core import Observation, Policy, Reconstructor, SliceBatch
from kscout.data.slices import SliceSet
from kscout.kernels.graphs import BatchGradients
from kscout.physics.sampling import center_mask
from kscout.policies import POLICIES
from kscout.policies import load as load_policy
from kscout.policies.column import ColumnPolicy
from kscout.reconstruction import RECONSTRUCTORS, load, save
from kscout.reconstruction.varnet import VarNet
from kscout.training.reconstructor import training_loss
from kscout.weights import WEIGHTS_NAME

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


def slices() -> SliceSet:
    return SliceSet.from_kspace(coil_kspace(3, 4, 36, 34, noise=0.01), ["a", "a", "b"])


def made(name: str) -> Reconstructor:
    torch.manual_seed(0)
    return VarNet(n_cascades=2, n_channels=4) if name == "varnet" else RECONSTRUCTORS[name]()


@pytest.mark.parametrize(
    "name", ["zero-filled", "zero-filled-weighted", "sense", "sense-tv", "varnet"]
)
def test_acquisitions_of_coils_equal_those_on_a_cpu(name: str) -> None:
    columns = torch.tensor([[0, 3, 3], [30, 3, 30], [2, 2, 2]])
    states, scores = [], []
    for device in ("cpu", "cuda"):
        model = made(name).frozen(precision="auto", n_rows=36, n_cols=34, device=device)
        batch = slices().to(device).batch(torch.arange(3, device=device))
        simulator = Simulator(batch, model, protocol="blind")
        start = simulator.start(10)
        followed = simulator.branch(start, columns.to(device)).follow(
            torch.tensor([1, 2, 0], device=device)
        )
        states.append([start, followed, simulator.acquire(followed, columns[:, 1].to(device) + 1)])
        torch.manual_seed(0)
        column = POLICIES["column"](n_cols=34, n_initial=10, horizon=2).to(device)
        seen = simulator.observe(column, followed, n_left=None)
        assert seen.zero_filled is not None
        scores.append(seen.zero_filled.cpu())
    for on_cpu, on_cuda in zip(*states, strict=True):
        assert torch.equal(on_cuda.mask.cpu(), on_cpu.mask)
        # TF32 convolutions and other sums round differently.
        torch.testing.assert_close(on_cuda.image.cpu(), on_cpu.image, atol=2e-2, rtol=0)
        torch.testing.assert_close(on_cuda.score.cpu(), on_cpu.score, atol=2e-3, rtol=0)
    torch.testing.assert_close(*scores, atol=1e-3, rtol=1e-3)


def test_a_graph_gives_an_unrolled_network_the_gradients_of_eager_code() -> None:
    model = made("varnet").cuda().train()
    batch = slices().to("cuda").batch(torch.arange(3, device="cuda"))
    training = ReconstructorTraining(protocol="blind")

    def backward(inputs: list[torch.Tensor]) -> torch.Tensor:
        mask, *tensors = inputs
        loss = training_loss(model, SliceBatch(*tensors), mask, training)
        loss.backward()
        return loss

    parameters = list(model.parameters())
    first = center_mask(34, 8, "cuda").expand(3, -1).contiguous()
    graphed = BatchGradients(backward, parameters, [first, *batch.tensors()])
    mask = first | (torch.arange(34, device="cuda") % 4 == 0)
    graphed([mask, *batch.tensors()])
    found = [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
    BatchGradients(backward, parameters)([mask, *batch.tensors()])
    expected = [parameter.grad for parameter in parameters if parameter.grad is not None]
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, atol=1e-3 * float(two.abs().max() + 1e-6), rtol=1e-2)


COMPILED = """
import torch
from kscout.reconstruction.varnet import ComplexUNet, compile_networks
torch.manual_seed(0)
networks = [ComplexUNet(n_channels=8, n_pools=2).cuda().eval().requires_grad_(False) for _ in "ab"]
for network in networks:
    network.is_half = True
for n in (2, 5, 64, 1):
    image = torch.randn(n, 40, 33, dtype=torch.complex64, device="cuda")
    with torch.no_grad():
        expected = [network(image) for network in networks]
        assert compile_networks(networks, 40, 33, image.device)
        found = [network(image) for network in networks]
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, atol=2e-2, rtol=2e-2)
    for network in networks:
        network.is_compiled = False
print("agree", torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""


def test_compiled_networks_agree_and_share_what_is_compiled() -> None:
    # In a process of its own: checks of shapes, which tests switch on, cannot be compiled.
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["agree", "1"], done.stderr


@pytest.mark.parametrize("compiles", ["1", "0"])
def test_commands_train_and_judge_policies_on_a_compiled_network(
    compiles: str, tmp_path: Path
) -> None:
    # As commands of their own: graphs hold what torch.compile made, which checks of shapes forbid.
    coil_store(tmp_path / "store", size=(36, 34), noise=0.01)
    save(tmp_path / "varnet" / WEIGHTS_NAME, VarNet(n_cascades=2, n_channels=8, n_pools=2))
    given = ["--data", "store", "--reconstructor", "./varnet", "--protocol", "blind"]
    given += ["--n-initial", "9", "--steps", "3", "--device", "cuda"]
    learn = ["train", "policy", "--method", "dense", "--policy", "column", *given]
    learn += ["--epochs", "2", "--batch-size", "3", "--out", "dense-seed0"]
    judge = ["evaluate", *given, "--trajectories", "1", "--out", "results"]
    for name in ("random", "fixed", "na-oracle", "oracle", "dense-seed0"):
        judge += ["--policy", name]
    settings = {**os.environ, "TORCH_COMPILE_DISABLE": "0" if compiles == "1" else "1"}
    for words in (learn, judge):
        done = subprocess.run(
            [sys.executable, "-m", "kscout", *words],
            **{"cwd": tmp_path, "env": settings, "capture_output": True, "text": True},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "torch.compile does not work" not in done.stderr
    summary = json.loads((tmp_path / "results" / "summary.json").read_text())
    final = {row["policy"]: row["final"]["ssim"]["mean"] for row in summary["policies"]}
    assert final["oracle"] > final["random"]
