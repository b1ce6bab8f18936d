"""Every kind of file loads into the network that wrote it; anything else is one sentence."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from golden_numbers import GOLDEN
from kscout.core import Measurement, Reconstructor
from kscout.errors import ConfigError, KScoutError, WeightsError
from kscout.reconstruction import load, save
from kscout.reconstruction.fastmri_unet import FastMRIUNet
from kscout.reconstruction.total_variation import TotalVariation
from kscout.reconstruction.unet import UNet
from kscout.weights import Weights, save_weights


def same_state(one: nn.Module, other: nn.Module) -> bool:
    left, right = one.state_dict(), other.state_dict()
    return list(left) == list(right) and all(torch.equal(left[k], right[k]) for k in left)


@pytest.mark.parametrize(
    "reconstructor",
    [
        UNet(n_channels=2, n_pools=3, dropout=0.1, protocol="blind"),
        FastMRIUNet(n_channels=3, n_pools=1),
        TotalVariation(weight=0.01, n_iterations=7),
    ],
    ids=lambda one: type(one).__name__,
)
def test_our_files_rebuild_what_was_saved(tmp_path: Path, reconstructor: Reconstructor) -> None:
    save(tmp_path / "weights.safetensors", reconstructor, extra={"epoch": 3})
    for source in (tmp_path, tmp_path / "weights.safetensors", str(tmp_path)):
        found = load(source)
        assert type(found) is type(reconstructor)
        assert not found.training
        assert same_state(found, reconstructor)
    assert all(
        getattr(found, name) == getattr(reconstructor, name)
        for name in ("n_channels", "n_pools", "dropout", "protocol", "weight", "n_iterations")
        if name in vars(reconstructor)
    )


@pytest.mark.parametrize("name", ["recon_4ch", "recon_4ch_data_parallel"])
def test_reference_checkpoints_load(name: str) -> None:
    path = GOLDEN / "checkpoints" / f"{name}.pt"
    found = load(path)
    assert isinstance(found, UNet)
    assert (found.n_channels, found.n_pools, found.protocol) == (4, 4, "paper")
    raw = torch.load(path, weights_only=False)["model"]
    state = found.network.state_dict()
    assert len(raw) == len(state)
    assert all(torch.equal(raw[k], state[k.removeprefix("module.")]) for k in raw)


@pytest.mark.parametrize("layout", ["bare", "lightning", "data-parallel"])
def test_fastmri_checkpoints_load_in_every_layout(tmp_path: Path, layout: str) -> None:
    original = FastMRIUNet(n_channels=2, n_pools=3)
    state = original.network.state_dict()
    content: dict[str, Any] = dict(state)
    if layout == "lightning":
        content = {
            "epoch": 49,
            "state_dict": {f"unet.{k}": v for k, v in state.items()} | {"loss.w": torch.ones(1)},
            "hyper_parameters": {"chans": 99, "num_pool_layers": 99},
        }
    elif layout == "data-parallel":
        content = {f"module.{k}": v for k, v in state.items()}
    torch.save(content, tmp_path / "file")
    found = load(tmp_path / "file")
    assert isinstance(found, FastMRIUNet)
    assert (found.n_channels, found.n_pools) == (2, 3)
    assert same_state(found, original)


def test_content_decides_and_not_the_name(tmp_path: Path) -> None:
    unet, fastmri = UNet(n_channels=2, n_pools=1), FastMRIUNet(n_channels=2, n_pools=1)
    save(str(tmp_path / "ours.pt"), unet)
    torch.save(fastmri.network.state_dict(), tmp_path / "theirs.safetensors")
    assert same_state(load(tmp_path / "ours.pt"), unet)
    assert same_state(load(tmp_path / "theirs.safetensors"), fastmri)


def test_names_load_what_needs_no_training() -> None:
    assert isinstance(load("total-variation"), TotalVariation)
    with pytest.raises(WeightsError, match="unet has no weights"):
        load("unet")


def test_a_folder_that_is_called_like_a_network_is_told_how_to_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "unet" / "weights.safetensors", UNet(n_channels=2, n_pools=1))
    with pytest.raises(WeightsError, match=r"type \./unet"):
        load("unet")
    assert isinstance(load("./unet"), UNet)


def write(
    path: Path, state: dict[str, Tensor], component: str, kind: Any = "reconstructor"
) -> Path:
    save_weights(path, Weights(kind, component, {}, state))
    return path


def test_what_cannot_be_loaded_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    torch.save({"state_dict": {"cascades.0.w": torch.ones(2)}}, tmp_path / "varnet")
    wide = dict(FastMRIUNet(n_channels=2, n_pools=1).network.state_dict())
    wide["down_sample_layers.0.layers.0.weight"] = torch.ones(2, 2, 3, 3)
    torch.save(wide, tmp_path / "two_channels")
    policy = GOLDEN / "checkpoints" / "policy_4ch_r64_data_parallel.pt"
    for source, sentence in [
        (
            tmp_path / "nowhere",
            r"neither a file nor a run folder.*sense, sense-tv, total-variation, zero-filled, zero",
        ),
        (tmp_path / "empty", r"has no weights\.safetensors"),
        (
            tmp_path / "varnet",
            r"no U-Net of the paper or of fastMRI, nor a VarNet .*cascades\.0\.w",
        ),
        (tmp_path / "two_channels", r"does not fit fastmri-unet"),
        (policy, r"holds a policy; load it with kscout\.policies\.load"),
        (write(tmp_path / "policy", {}, "conv", "policy"), r"holds a policy"),
        (write(tmp_path / "unknown", {}, "deep"), r"'deep', which this kscout .*zero-filled"),
        (write(tmp_path / "partial", {"a": torch.ones(1)}, "unet"), r"does not fit unet"),
    ]:
        with pytest.raises(KScoutError, match=sentence) as caught:
            load(source)
        assert "\n" not in str(caught.value)


def test_a_class_that_no_name_finds_again_is_not_saved(tmp_path: Path) -> None:
    class Mine(Reconstructor):
        def reconstruct(self, measured: Measurement) -> Any:
            return None

    with pytest.raises(ConfigError, match="Mine is defined inside a function"):
        save(tmp_path / "w", Mine())
