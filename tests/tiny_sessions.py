"""Sessions of few columns: policies, a reconstruction, and the simulator beside."""

import cmath
from typing import Any

import torch
from torch import Tensor

from kscout.acquisition import Scan, Session, Simulator
from kscout.acquisition.loop import NOT_ACQUIRED, Trajectory, rollout
from kscout.acquisition.plan import Plan
from kscout.core import Policy, Reconstructor, SliceBatch
from kscout.policies.column import ColumnPolicy
from kscout.policies.conv import ConvPolicy
from kscout.policies.fixed import CenterOut, EquispacedOne, FixedOrder
from kscout.policies.random import Random
from kscout.reconstruction.unet import UNet

N_ROWS, N_COLS, N_INITIAL, HORIZON = 12, 16, 3, 6
FACTORS = (1e-6, 1e6, cmath.rect(1, 1), cmath.rect(1, 3))
"""By which a scanner's k-space may be multiplied."""
SCAN = Scan(n_rows=N_ROWS, n_cols=N_COLS, budget=N_INITIAL + HORIZON, initial=N_INITIAL)


def column_policy() -> ColumnPolicy:
    policy = ColumnPolicy(
        n_cols=N_COLS,
        horizon=HORIZON,
        n_initial=N_INITIAL,
        width=8,
        n_layers=1,
        n_heads=2,
        channels=(8,),
        image_channels=(8,),
    )
    for parameter in policy.parameters():  # its last layer is zero before training
        torch.nn.init.normal_(parameter, std=0.3)
    return policy


POLICIES = {
    "conv": lambda: ConvPolicy(n_cols=N_COLS, n_rows=N_ROWS, n_channels=2, n_hidden=5),
    "column": column_policy,
    "fixed": lambda: FixedOrder(n_cols=N_COLS, order=[0, 15, 4]),
    "center-out": lambda: CenterOut(n_cols=N_COLS),
    "equispaced-one": lambda: EquispacedOne(n_cols=N_COLS, n_initial=N_INITIAL, horizon=HORIZON),
    "random": Random,
}


def make_policy(name: str) -> Policy:
    torch.manual_seed(1)
    return POLICIES[name]().eval()


def unet(protocol: Any = "paper") -> Reconstructor:
    torch.manual_seed(0)
    network = UNet(n_channels=2, n_pools=1, protocol=protocol)
    return network.frozen(precision="fp32", n_rows=N_ROWS, n_cols=N_COLS, device="cpu")


def data_of(batch: SliceBatch, columns: tuple[int, ...] | list[int]) -> Tensor:
    return batch.kspace[0, :, :, list(columns)].movedim(-1, 0)


def scanned(session: Session, batch: SliceBatch) -> list[Tensor]:
    """Follow the advice to the end; return what every choice of the policy was made by."""
    scores = []
    while (advice := session.advise()).columns:
        if advice.scores is not None:
            scores.append(advice.scores)
        session.measure(advice.columns, data_of(batch, advice.columns))
    return scores


def simulated(
    batch: SliceBatch, reconstructor: Reconstructor, policy: Policy, **settings: Any
) -> Trajectory:
    simulator = Simulator(batch, reconstructor, protocol="blind")
    uniforms = settings.pop("uniforms", None)
    plan = Plan(**{"start": N_INITIAL, "horizon": HORIZON, **settings})
    return rollout(policy, simulator, plan, uniforms=uniforms, keep_images=True)


def check_same(session: Session, found: Trajectory) -> None:
    n_initial = len(session.scan.start)
    taken = [column for column in found.columns[0, 0].tolist() if column != NOT_ACQUIRED]
    assert session.order[n_initial:] == taken
    assert found.images is not None
    assert torch.equal(session.image(), found.images[-1, 0, 0])
