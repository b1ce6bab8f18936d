"""Policies come back from files: ours, and the reference's without running them."""

from pathlib import Path
from typing import Any

import pytest
import torch

import kscout.policies
from golden_numbers import GOLDEN
from kscout.core import Observation, Policy
from kscout.errors import ConfigError, WeightsError
from kscout.policies.__init__ import reference_sizes
from kscout.policies.conv import ConvPolicy
from kscout.policies.fixed import FixedOrder
from kscout.weights import Kind, Weights, constructor_arguments, save_weights

REFERENCE = GOLDEN / "checkpoints" / "policy_4ch_r64_data_parallel.pt"


def save(path: Path, policy: Policy, component: str, kind: Kind = "policy") -> None:
    arguments = constructor_arguments(policy)
    save_weights(path, Weights(kind, component, arguments, policy.state_dict()))


def scores(policy: Policy, n_rows: int, n_cols: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    image = torch.randn(2, n_rows, n_cols, generator=generator)
    with torch.no_grad():
        return policy(Observation(image=image, mask=torch.zeros(2, n_cols, dtype=torch.bool)))


def test_a_network_comes_back_from_its_folder_and_its_file(tmp_path: Path) -> None:
    policy = ConvPolicy(n_cols=18, n_rows=13, n_channels=2, n_hidden=5)
    save(tmp_path / "weights.safetensors", policy, "conv")
    expected = scores(policy, 13, 18)
    for place in (tmp_path, tmp_path / "weights.safetensors", str(tmp_path)):
        loaded = kscout.policies.load(place)
        assert torch.equal(scores(loaded, 13, 18), expected)
        assert not loaded.training


def test_a_fixed_order_comes_back_without_parameters(tmp_path: Path) -> None:
    save(tmp_path / "weights.safetensors", FixedOrder(n_cols=9, order=[7, 0]), "fixed")
    loaded = kscout.policies.load(tmp_path)
    assert scores(loaded, 4, 9)[0].argsort(descending=True).tolist()[:3] == [7, 0, 4]


def test_a_reference_checkpoint_loads_with_sizes_from_its_shapes() -> None:
    loaded = kscout.policies.load(REFERENCE)
    assert isinstance(loaded, ConvPolicy)
    assert (loaded.n_cols, loaded.n_rows, loaded.n_channels) == (64, 64, 4)
    state = torch.load(REFERENCE, weights_only=False)["model"]
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, state[f"module.{name}"])
    assert len(state) == len(list(loaded.parameters()))


@pytest.mark.parametrize(
    "sizes",
    [
        {"n_cols": 64, "n_channels": 4, "n_blocks": 4, "n_hidden": 32},
        {"n_cols": 21, "n_channels": 3, "n_blocks": 1, "n_hidden": 6},
        {"n_cols": 24, "n_rows": 16, "n_channels": 2, "n_blocks": 2, "n_hidden": 5},
    ],
)
def test_shapes_tell_the_sizes(sizes: dict[str, Any]) -> None:
    found = reference_sizes(ConvPolicy(**sizes).state_dict())
    assert found == {"n_rows": sizes["n_cols"], **sizes}


def test_a_folder_without_weights_tells_what_it_holds(tmp_path: Path) -> None:
    order = FixedOrder(n_cols=9, order=[1])
    with pytest.raises(WeightsError, match=r"does not exist; give a finished run.*knee-base-fixed"):
        kscout.policies.load(tmp_path)
    for seed in (0, 1):
        kscout.policies.save(tmp_path / f"seed-{seed}" / "weights.safetensors", order)
    with pytest.raises(WeightsError, match=r"several runs; give one of .*seed-0, .*seed-1$"):
        kscout.policies.load(tmp_path)
    kscout.policies.save(tmp_path / "best.safetensors", order)
    with pytest.raises(WeightsError, match=r"has not ended; .* or give .*best.safetensors"):
        kscout.policies.load(tmp_path)
    with pytest.raises(WeightsError, match=r"other\.safetensors does not exist; give a finished"):
        kscout.policies.load(tmp_path / "other.safetensors")


def test_weights_of_another_size_are_refused(tmp_path: Path) -> None:
    policy = ConvPolicy(n_cols=16, n_channels=2, n_hidden=5)
    arguments = {**constructor_arguments(policy), "n_hidden": 6}
    path = tmp_path / "a.safetensors"
    save_weights(path, Weights("policy", "conv", arguments, policy.state_dict()))
    with pytest.raises(WeightsError, match=r"does not fit.*size mismatch"):
        kscout.policies.load(path)


@pytest.mark.parametrize(
    ("component", "kind", "error", "words"),
    [
        ("unet", "reconstructor", WeightsError, r"holds a reconstructor \(unet\), not a policy"),
        ("mystery", "policy", ConfigError, "'mystery', which this kscout does not have.*conv"),
    ],
)
def test_what_is_no_policy_of_this_kscout_is_refused(
    tmp_path: Path, component: str, kind: Kind, error: type[Exception], words: str
) -> None:
    save(tmp_path / "a.safetensors", FixedOrder(n_cols=9, order=[1]), component, kind)
    with pytest.raises(error, match=words):
        kscout.policies.load(tmp_path / "a.safetensors")
    with pytest.raises(WeightsError, match="not a policy of the paper's reference"):
        kscout.policies.load(GOLDEN / "checkpoints" / "recon_4ch.pt")
