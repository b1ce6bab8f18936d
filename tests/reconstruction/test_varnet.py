"""The unrolled network, against its definition in k-space written out for a state dict."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pytest import LogCaptureFixture, MonkeyPatch
from torch import Tensor, fx, nn

from coil_slices import coil_batch
from fastmri_definition import expected_output
from kscout.config import ReconstructorTraining
from kscout.core import Measurement
from kscout.data.kinds import TARGETS
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError, KScoutError, WeightsError
from kscout.evaluation.request import EvaluationSetting
from kscout.evaluation.running.prepare import prepare
from kscout.physics import center_mask, coils, fft2c, ifft2c
from kscout.physics.normalization import denormalize, magnitude
from kscout.reconstruction import load, save, varnet
from kscout.reconstruction.sense import Sense
from kscout.reconstruction.varnet import ComplexUNet, VarNet
from kscout.training.reconstructor import training_loss
from kscout.weights import fingerprint

TINY = {"n_cascades": 2, "n_channels": 2, "n_pools": 2}
TINY |= {"sensitivity_channels": 3, "sensitivity_pools": 1}


def complex_unet(state: dict[str, Tensor], prefix: str, image: Tensor, n_pools: int) -> Tensor:
    """Normalize real and imaginary parts, pad with zeros to multiples of 16, and undo it all."""
    own = {key.removeprefix(prefix): x for key, x in state.items() if key.startswith(prefix)}
    n_rows, n_cols = image.shape[-2:]
    parts = torch.stack([image.real, image.imag], dim=1)
    mean, std = parts.mean(dim=(2, 3), keepdim=True), parts.std(dim=(2, 3), keepdim=True)
    above, left = (-n_rows % 16) // 2, (-n_cols % 16) // 2
    padded = torch.zeros(len(image), 2, n_rows + -n_rows % 16, n_cols + -n_cols % 16)
    padded[..., above : above + n_rows, left : left + n_cols] = (parts - mean) / std
    found = expected_output(own, padded, n_pools)
    found = found[..., above : above + n_rows, left : left + n_cols] * std + mean
    return torch.complex(found[:, 0], found[:, 1])


def expected_image(state: dict[str, Tensor], kspace: Tensor, mask: Tensor, n: int) -> Tensor:
    """The same network in k-space, where fastMRI computes it."""
    measured = kspace * mask[:, None, None]
    center = ifft2c(kspace * center_mask(mask.shape[1], n))
    maps = torch.stack(
        [complex_unet(state, "sens_net.norm_unet.unet.", one, 1) for one in center.unbind(dim=1)],
        dim=1,
    )
    maps = maps / maps.abs().square().sum(dim=1, keepdim=True).sqrt()
    current = measured
    for index in range(2):
        reduced = (ifft2c(current) * maps.conj()).sum(dim=1)
        refined = complex_unet(state, f"cascades.{index}.model.unet.", reduced, 2)
        weight = state[f"cascades.{index}.dc_weight"]
        away = torch.where(mask[:, None, None], current - measured, 0) * weight
        current = current - away - fft2c(refined[:, None] * maps)
    return magnitude(ifft2c(current))


def made(**changes: object) -> VarNet:
    torch.manual_seed(0)
    model = VarNet(**{**TINY, **changes}).eval()
    with torch.no_grad():
        for index, cascade in enumerate(model.cascades):
            cascade.dc_weight.fill_(0.7 + 0.2 * index)
    return model


def masks(n_cols: int = 33, n_center: int = 9) -> Tensor:
    mask = center_mask(n_cols, n_center) | (torch.arange(n_cols) % 5 == 0)
    return mask.expand(2, -1)


def test_the_network_is_the_one_of_its_definition() -> None:
    batch, model, mask = coil_batch(), made(), masks()
    with torch.no_grad():
        found = model(batch.kspace, mask)
        expected = expected_image(dict(model.state_dict()), batch.kspace, mask, 9)
    image = denormalize(found.image, found.mean, found.std)
    torch.testing.assert_close(image, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("prefix", ["", "varnet.", "module."])
def test_state_dicts_under_the_names_of_fastmri_load(tmp_path: Path, prefix: str) -> None:
    model, batch = made(), coil_batch()
    state: dict[str, Tensor] = {f"{prefix}{name}": x for name, x in model.state_dict().items()}
    if prefix == "varnet.":
        state["loss.w"] = torch.ones(1, 1, 7, 7)
    torch.save({"state_dict": state} if prefix else state, tmp_path / "varnet.pt")
    loaded = load(tmp_path / "varnet.pt")
    assert isinstance(loaded, VarNet)
    with torch.no_grad():
        found, expected = loaded(batch.kspace, masks()), model(batch.kspace, masks())
    assert torch.equal(found.image, expected.image)
    save(tmp_path / "ours.safetensors", loaded)
    again = load(tmp_path / "ours.safetensors")
    assert isinstance(again, VarNet) and again.sensitivity_pools == 1


def test_a_state_dict_that_lacks_a_cascade_is_refused(tmp_path: Path) -> None:
    state = {k: x for k, x in made().state_dict().items() if "cascades.1.model" not in k}
    torch.save(state, tmp_path / "torn.pt")
    with pytest.raises(WeightsError, match=r"torn\.pt does not fit varnet .*the file has no"):
        load(tmp_path / "torn.pt")


@pytest.mark.slow
def test_it_learns() -> None:
    batch, model, mask = coil_batch(), made(), masks()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    training, losses = ReconstructorTraining(protocol="blind"), []
    for _ in range(8):
        optimizer.zero_grad()
        loss = training_loss(model.train(), batch, mask, training)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert losses[-1] < 0.8 * losses[0]


def test_weighted_output_is_the_combination_by_its_own_sensitivities() -> None:
    batch, mask = coil_batch(), torch.ones(2, 33, dtype=torch.bool)
    model = made(output="weighted", n_cascades=1)
    measured = Measurement.of(batch.kspace, mask)
    with torch.no_grad():
        model.cascades[0].model.unet.up_conv[-1][1].weight.zero_()
        maps, found = model.calibrate(measured), model.reconstruct(measured)
        # A network of zeros adds the mean of each part, which is then subtracted.
        plain = coils.combine(measured.zero_filled, maps)
        offset = model.cascades[0].model(plain)
    image = denormalize(found.image, found.mean, found.std)
    torch.testing.assert_close(image, (plain - offset).abs(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("n_coils", [1, 2])
def test_targets_of_another_rule_than_its_output_are_told(n_coils: int) -> None:
    kspace = fft2c(torch.rand(2, n_coils, 16, 18, dtype=torch.complex64))
    plain = SliceSet.from_kspace(kspace, ["a", "a"])
    weighted = replace(plain, contents=replace(plain.contents, kind=TARGETS["weighted"]))
    setting = EvaluationSetting(
        n_initial=8, steps=1, trajectories=1, protocol="blind", device="cpu"
    )
    told = [
        any("--set reconstructor.output=weighted" in note for note in found.notes)
        for output in ("rss", "weighted")
        for found in [prepare(["random"], weighted, made(output=output), setting)]
    ]
    assert told == [n_coils > 1, False]
    assert not any("targets" in note for note in prepare(["random"], plain, made(), setting).notes)


def test_few_central_columns_are_for_learned_sensitivities() -> None:
    batch, mask = coil_batch(), center_mask(33, 3).expand(2, -1)
    with torch.no_grad():
        assert made()(batch.kspace, mask).image.isfinite().all()
        with pytest.raises(ConfigError, match=r"found 3; .* a reconstruction that learns"):
            Sense()(batch.kspace, mask)


def test_in_16_bit_an_image_hardly_changes() -> None:
    batch, model = coil_batch(), made()
    with torch.no_grad():
        plain = model(batch.kspace, masks())
        for cascade in model.cascades:
            cascade.model.is_half = True
        half = model(batch.kspace, masks())
    torch.testing.assert_close(half.image, plain.image, atol=0.02, rtol=0)
    assert not torch.equal(half.image, plain.image)


def test_frozen_on_a_cpu_it_stays_in_32_bit() -> None:
    model = made()
    before = fingerprint(model)
    frozen = model.frozen(precision="auto", n_rows=40, n_cols=33, device="cpu")
    assert fingerprint(model) == before
    assert frozen.precision == "fp32" and not any(x.requires_grad for x in frozen.parameters())
    with pytest.raises(ConfigError, match="no 16-bit kernels for a VarNet"):
        made().frozen(precision="fp16", n_rows=40, n_cols=33, device="cpu")


@pytest.mark.parametrize("wrong", [{"n_cascades": 0}, {"output": "x"}])
def test_networks_that_do_not_exist_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(KScoutError, match=r"all must be at least 1|rss, weighted"):
        VarNet(**{**TINY, **wrong})


def frozen_networks() -> list[ComplexUNet]:
    return [cascade.model for cascade in made().requires_grad_(False).cascades]


def test_compiled_networks_serve_batches_without_gradients(monkeypatch: MonkeyPatch) -> None:
    networks, served = frozen_networks(), []

    def passes(unet: nn.Module, images: Tensor) -> Tensor:
        served.append(tuple(images.shape))
        return unet(images)

    monkeypatch.setattr(varnet, "compiled_passes", lambda: passes)
    assert varnet.compile_networks(networks, 40, 33, torch.device("cpu"))
    image = torch.randn(3, 40, 33, dtype=torch.complex64)
    with torch.no_grad():
        networks[1](image), networks[1](image[:1])
    networks[0](image)
    assert served == [(2, 2, 48, 48), (3, 2, 48, 48)]


@pytest.mark.slow
def test_what_is_compiled_serves_all_cascades_and_any_number_of_images(
    monkeypatch: MonkeyPatch,
) -> None:
    networks, n_graphs = frozen_networks(), []

    def backend(graph: fx.GraphModule, example: list[Tensor]) -> Callable[..., Any]:
        n_graphs.append(1)
        return graph.forward

    passes = torch.compile(varnet._passes, backend=backend)
    monkeypatch.setattr(varnet, "compiled_passes", lambda: passes)
    assert varnet.compile_networks(networks, 40, 33, torch.device("cpu"))
    image = torch.randn(5, 40, 33, dtype=torch.complex64)
    with torch.no_grad():
        found = [network(image[:n]) for network in networks for n in (2, 5, 3)]
        for network in networks:
            network.is_compiled = False
        expected = [network(image[:n]) for network in networks for n in (2, 5, 3)]
    # Compiled, features are normalized by other operations: sums are rounded in another order.
    torch.testing.assert_close(found, expected)
    # The first is of the example, in 16 bit.
    assert len(n_graphs) == 2


def test_networks_that_cannot_be_compiled_stay_as_they_are(
    monkeypatch: MonkeyPatch, caplog: LogCaptureFixture
) -> None:
    def fails(unet: nn.Module, images: Tensor) -> Tensor:
        raise RuntimeError("no compiler found\nand much more")

    networks = frozen_networks()
    monkeypatch.setattr(varnet, "compiled_passes", lambda: fails)
    assert not varnet.compile_networks(networks, 40, 33, torch.device("cpu"))
    assert caplog.messages == [
        "torch.compile does not work for varnet, which stays slower: no compiler found"
    ]
    with torch.no_grad():
        assert networks[0](torch.randn(3, 40, 33, dtype=torch.complex64)).isfinite().all()
