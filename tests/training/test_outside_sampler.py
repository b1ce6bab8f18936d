"""A sampler from outside of the package is trained, goes on and is told what is amiss."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from joint_runs import joint_config
from outwards import Outwards
from torch import Tensor
from training_stores import stopping_at

from kscout.config import Component, JointConfig, JointTraining
from kscout.core import Policy
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.errors import ConfigError, RunError
from kscout.policies import POLICIES
from kscout.training import Sampler
from kscout.training.joint.train import train_joint


@dataclass(frozen=True)
class TurningSampling(JointTraining):
    """Settings of one's own."""

    n_turned: int = 3
    """Columns by which an order is turned."""


class Turning(Outwards):
    """Takes the columns of an order that it turns on, epoch by epoch."""

    settings = TurningSampling
    n_renewed = 0

    def renew(self, epoch: int, *, is_first: bool) -> None:
        training = self.material.config.training
        assert isinstance(training, TurningSampling)
        self.n_renewed += 1
        n_cols = self.material.slices.n_cols
        order = torch.arange(n_cols).roll(self.n_renewed * training.n_turned).tolist()
        self.learner = POLICIES["fixed"](n_cols=n_cols, order=order)

    def is_due(self, number: int) -> bool:
        return number % 2 == 1

    def update(self, number: int) -> Tensor:
        return torch.tensor(0.25)

    def state(self) -> dict[str, Any]:
        return {"n_renewed": self.n_renewed}

    def restore(self, state: dict[str, Any]) -> None:
        self.n_renewed = state["n_renewed"]


class Plain(Turning):
    """Tells its score as Python does."""

    def update(self, number: int) -> Tensor:
        return 0.25  # type: ignore[return-value]


class Many(Turning):
    """Tells a score for each slice."""

    def update(self, number: int) -> Tensor:
        return torch.rand(3)


class Forgetful(Outwards):
    """Has something to remember, and does not say how."""

    def state(self) -> dict[str, Any]:
        return {"seen": 3}


class Lazy(Sampler):
    """Says nothing of what it does once an epoch."""


class Blind(Lazy):
    """Looks at nothing, and names no policy."""

    looks = False

    def renew(self, epoch: int, *, is_first: bool) -> None:
        pass


class Empty(Blind):
    """Has no policy."""

    @classmethod
    def make_policy(cls, config: JointConfig, slices: SliceSet) -> Policy:
        return None  # type: ignore[return-value]


def own_config(name: str, **changes: Any) -> JointConfig:
    """Return small settings for a sampler of this file."""
    module = "outwards" if name == "Outwards" else __name__
    small, config = joint_config("random"), JointConfig.of(f"{module}:{name}")
    common = {key: value for key, value in vars(small.training).items() if key != "method"}
    training = replace(config.training, **{**common, **changes})
    config = replace(config, reconstructor=small.reconstructor, acquisition=small.acquisition)
    return replace(config, policy=Component("conv"), training=training)


@pytest.mark.parametrize("name", ["Outwards", "Turning"])
def test_it_goes_on_after_a_kill_and_is_left_as_it_is_when_typed_again(
    name: str, store: Store, tmp_path: Path
) -> None:
    config, cut = own_config(name), tmp_path / "cut"
    whole = train_joint(config, store, tmp_path / "whole", device="cpu")
    with pytest.raises(KeyboardInterrupt):
        train_joint(config, store, cut, device="cpu", on_step=stopping_at(3, 1))
    for _ in range(2):
        found = train_joint(config, store, cut, device="cpu")
        assert found.config == whole.config
        for kept in ("weights", "best"):
            file = f"{kept}.safetensors"
            assert (cut / file).read_bytes() == (whole.path / file).read_bytes()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("Plain", "update of Plain returned float; return a tensor of one number"),
        ("Many", r"update of Many returned Tensor of shape \(3,\); return a tensor of one"),
        ("Lazy", r"sampler Lazy \(looks = True\) lacks renew;"),
        ("Blind", r"sampler Blind \(looks = False\) lacks make_policy;"),
        ("Empty", "make_policy of Empty returned NoneType; return a policy"),
        ("Forgetful", r"Forgetful \(looks = False\) lacks restore, which takes back"),
    ],
)
def test_what_is_amiss_is_told_and_leaves_nothing(
    name: str, complaint: str, store: Store, tmp_path: Path
) -> None:
    config = own_config(name, random_share=0.0)
    with pytest.raises(ConfigError, match=complaint):
        train_joint(config, store, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_what_it_does_not_define_is_told_when_it_is_needed() -> None:
    plain = object.__new__(Outwards)
    with pytest.raises(RunError, match="Outwards says that it is due to learn"):
        plain.update(0)
    plain.restore({})
    with pytest.raises(RunError, match="holds seen of Outwards, which has no `restore`; give it"):
        plain.restore({"seen": 3})
