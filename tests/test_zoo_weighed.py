"""`benchmarks/zoo_weighed.py`: a weighed policy as an entry, whose members are entries, too."""

import copy
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from kscout import policies
from kscout.core import Observation
from kscout.errors import ConfigError
from kscout.policies.weighed import WeighedPolicy
from kscout.weights import fingerprint, read_weights

MEMBERS = ["knee-base-fixed", "knee-long-fixed"]


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    policy = WeighedPolicy(members=MEMBERS, horizon=3, order=[5, 7], order_cols=128)
    with torch.no_grad():
        policy.weights.copy_(torch.tensor([[1.0, 2.0], [0.5, 0.25], [0.0, 1.0]]))
        policy.constants.copy_(torch.tensor([0.1, 0.2, 0.3]))
    path = tmp_path / "trained.safetensors"
    policies.save(path, policy, extra={"method": "weigh", "seed": 3})
    return path


def test_an_entry_scores_as_what_was_trained_and_holds_no_member(
    scripts: Callable[[str], ModuleType], trained: Path, tmp_path: Path
) -> None:
    out = tmp_path / "entry.safetensors"
    scripts("zoo_weighed").main([str(trained), "--members", *MEMBERS, "--out", str(out)])
    read = read_weights(out)
    assert set(read.state) == {"weights", "constants"}
    assert [one["zoo"] for one in read.arguments["members"]] == MEMBERS
    assert (read.extra["method"], read.extra["seed"]) == ("weigh", 3)
    found, before = policies.load(out), policies.load(trained)
    seen = Observation(
        image=torch.zeros(4, 128, 128),
        mask=torch.zeros(4, 128, dtype=torch.bool),
        step=torch.arange(4),
    )
    torch.testing.assert_close(found(seen), before(seen))
    assert found.gain_units == ()
    again = copy.deepcopy(found)
    again.load_state_dict(found.state_dict())
    torch.testing.assert_close(again(seen), before(seen))
    assert fingerprint(again) == fingerprint(found) != fingerprint(before)


def test_members_must_be_what_was_weighed(
    scripts: Callable[[str], ModuleType], trained: Path, tmp_path: Path
) -> None:
    others = ["--members", "knee-base-column", "knee-base-column"]
    out = tmp_path / "entry.safetensors"
    with pytest.raises(ConfigError, match="knee-base-column is not what the policy was weighed"):
        scripts("zoo_weighed").main([str(trained), *others, "--out", str(out)])
    assert not out.exists()
