"""ONNX files hold the same networks: onnxruntime finds the images and scores of torch."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from kscout import names, policies, reconstruction
from kscout.acquisition.state import shown_to
from kscout.apps.cli import app
from kscout.apps.export.onnx import TOLERANCE, Graph, export_onnx, onnx_packages
from kscout.apps.export.pairs import ComplexPairs, real_arithmetic
from kscout.core import Measurement, Observation, Reconstruction, Reconstructor
from kscout.errors import ConfigError
from kscout.physics.fourier import fft2c, ifft2c
from kscout.physics.normalization import denormalize
from kscout.policies.column import ColumnPolicy
from kscout.policies.conv import ConvPolicy
from kscout.policies.ensemble import EnsemblePolicy
from kscout.policies.fixed import FixedOrder
from kscout.reconstruction.fastmri_unet import FastMRIUNet
from kscout.reconstruction.sense import Sense
from kscout.reconstruction.unet import UNet
from kscout.reconstruction.varnet import VarNet

N_ROWS, N_COLS = 12, 16


def networks() -> tuple[UNet, ConvPolicy]:
    torch.manual_seed(0)
    policy = ConvPolicy(n_cols=N_COLS, n_rows=N_ROWS, n_channels=2, n_hidden=5)
    return UNet(n_channels=2, n_pools=1).eval(), policy.eval()


@pytest.mark.slow
def test_a_file_gives_images_and_scores_for_any_batch_and_coils(
    tmp_path: Path, unchecked: None, generator: torch.Generator
) -> None:
    unet, policy = networks()
    reconstruction.save(tmp_path / "unet.safetensors", unet)
    policies.save(tmp_path / "conv.safetensors", policy)
    out = tmp_path / "both.onnx"
    words = ["--reconstructor", tmp_path / "unet.safetensors", "--out", out, "--checked", 9]
    words += ["--policy", tmp_path / "conv.safetensors", "--n-rows", N_ROWS, "--n-cols", N_COLS]
    run = CliRunner().invoke(app, ["export", "onnx", *map(str, words), "--json"])
    assert run.exit_code == 0, run.exception
    session = onnx_packages()[1].InferenceSession(str(out), providers=["CPUExecutionProvider"])
    told = json.loads(session.get_modelmeta().custom_metadata_map["kscout"])
    assert told == json.loads(run.stdout.splitlines()[-1])
    assert told["n_checked"] == 9 and told["image_error"] <= TOLERANCE >= told["score_error"]
    kspace = torch.view_as_complex(torch.randn(3, 2, N_ROWS, N_COLS, 2, generator=generator))
    mask = torch.rand(3, N_COLS, generator=generator) < 0.5
    given = {"kspace": torch.view_as_real(kspace).numpy(), "mask": mask.numpy()}
    image, scores = map(torch.from_numpy, session.run(["image", "scores"], given))
    with torch.no_grad():
        found = unet.reconstruct(Measurement.of(kspace, mask))
        expected = policy(Observation(image=found.image, mask=mask))
    torch.testing.assert_close(
        image, denormalize(found.image, found.mean, found.std), atol=1e-5, rtol=1e-4
    )
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_the_runtime_leaves_nothing_in_the_home_folder(tmp_path: Path) -> None:
    """In a process of its own: it writes when it is imported."""
    code = "from kscout.apps.export.onnx import onnx_packages; onnx_packages()"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ORT_")}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert not [path for path in tmp_path.rglob("*") if "onnx" in path.name]


def complex_networks() -> tuple[VarNet, ColumnPolicy]:
    torch.manual_seed(0)
    sizes = {"width": 8, "n_layers": 1, "n_heads": 2, "channels": [8], "image_channels": [8]}
    policy = ColumnPolicy(n_cols=N_COLS, n_initial=8, horizon=4, **sizes)  # type: ignore[arg-type]
    torch.nn.init.normal_(policy.head.weight, std=0.1)
    policy.start_from(torch.rand(4, N_COLS))
    small = {"n_channels": 2, "n_pools": 1, "sensitivity_channels": 2, "sensitivity_pools": 1}
    return VarNet(n_cascades=1, **small).eval(), policy.eval()  # type: ignore[arg-type]


@pytest.mark.slow
def test_complex_networks_and_an_ensemble_with_an_order_agree_in_onnxruntime(
    tmp_path: Path, unchecked: None
) -> None:
    """The check inside compares batches, coils and steps of other numbers than were traced."""
    varnet, column = complex_networks()
    order = FixedOrder(n_cols=N_COLS, order=[3, 1])
    policy = EnsemblePolicy(members=[column, order], horizon=3, order=[5, 11], order_cols=16)
    out = tmp_path / "both.onnx"
    found = export_onnx(out, varnet, policy, n_rows=N_ROWS, n_cols=N_COLS, n_checked=9)
    assert found.n_same_choices == 9 and found.score_error is not None
    session = onnx_packages()[1].InferenceSession(str(out), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    assert names == ["kspace", "mask", "maps", "step", "n_left"]


@pytest.mark.slow
def test_a_policy_alone_needs_no_reconstruction(tmp_path: Path, unchecked: None) -> None:
    policies.save(tmp_path / "order.safetensors", FixedOrder(n_cols=N_COLS, order=[3, 1]))
    words = ["--policy", tmp_path / "order.safetensors", "--out", tmp_path / "order.onnx"]
    words += ["--n-rows", N_ROWS, "--n-cols", N_COLS, "--checked", 5]
    run = CliRunner().invoke(app, ["export", "onnx", *map(str, words)])
    assert run.exit_code == 0, run.exception
    assert "agrees in scores to" in run.stdout and "images" not in run.stdout
    file = str(tmp_path / "order.onnx")
    session = onnx_packages()[1].InferenceSession(file, providers=["CPUExecutionProvider"])
    told = json.loads(session.get_modelmeta().custom_metadata_map["kscout"])
    assert told["reconstructor"] is None and told["image_error"] is None and told["policy"]
    assert {one.name for one in session.get_inputs()} <= {"mask", "image"}
    assert [one.name for one in session.get_outputs()] == ["scores"]
    refused = CliRunner().invoke(app, ["export", "onnx", *map(str, words[2:])])
    assert "give --reconstructor, --policy or both" in str(refused.exception)


@pytest.mark.parametrize("n_coils", [1, 3])
@pytest.mark.parametrize("name", ["unet", "fastmri-unet", "varnet", "sense", "unrolled"])
def test_the_graph_computes_what_kscout_does(
    name: str,
    n_coils: int,
    unchecked: None,
    generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without an exporter: real arithmetic is that of complex numbers, for any number of coils."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "outside"))
    varnet, column = complex_networks()
    unet, conv = networks()
    fastmri = FastMRIUNet(n_channels=2, n_pools=1).eval()
    made = {"unet": unet, "fastmri-unet": fastmri, "varnet": varnet, "sense": Sense()}
    made["unrolled"] = names.RECONSTRUCTORS.resolve("unrolled:Unrolled")().eval()
    reconstructor: Reconstructor = made[name]  # type: ignore[assignment]
    pairs = torch.randn(2, n_coils, N_ROWS, N_COLS, 2, generator=generator)
    kspace, mask = torch.view_as_complex(pairs), torch.rand(2, N_COLS, generator=generator) < 0.5
    mask[:, 4:12] = True
    step, n_left = torch.tensor([1, 3]), torch.tensor([3, 1])
    with torch.no_grad():
        measured = Measurement.of(kspace, mask)
        maps = reconstructor.calibrate(measured)
        found = reconstructor.reconstruct(replace(measured, maps=maps))
        for policy in (conv, column):
            graph = Graph(reconstructor, policy, has_maps=maps is not None)
            given = {"kspace": pairs, "mask": mask, "step": step, "n_left": n_left}
            given |= {} if maps is None else {"maps": torch.view_as_real(maps.resolve_conj())}
            image, scores = graph(**{key: given[key] for key in graph.inputs})
            seen = shown_to(policy, found, measured.zero_filled, mask, step=step, n_left=n_left)
            torch.testing.assert_close(scores, policy(seen), atol=1e-4, rtol=1e-4)
            expected = denormalize(found.image, found.mean, found.std)
            torch.testing.assert_close(image, expected, atol=1e-4, rtol=1e-4)
            alone = Graph(None, policy, has_maps=False)
            given |= {"image": found.image, "mean": found.mean, "std": found.std}
            (own,) = alone(**{key: given[key] for key in alone.inputs})
            torch.testing.assert_close(own, policy(seen), atol=1e-4, rtol=1e-4)


def test_what_has_no_words_is_refused_and_writes_nothing(tmp_path: Path, unchecked: None) -> None:
    out = tmp_path / "none.onnx"
    words = r"^Odd cannot be exported .*: the operator angle of complex .* .torch.view_as_real"
    with pytest.raises(ConfigError, match=words):
        export_onnx(out, Odd(), None, n_rows=N_ROWS, n_cols=N_COLS)
    Odd.reconstruct = lambda _, measured: Reconstruction.of(measured.zero_filled.angle().sum(1))
    with pytest.raises(ConfigError, match=words):
        export_onnx(out, Odd(), None, n_rows=N_ROWS, n_cols=N_COLS)
    with pytest.raises(ConfigError, match="oracle"):
        oracle = policies.build("oracle", n_cols=N_COLS, n_initial=3, horizon=4)
        export_onnx(out, networks()[0], oracle, n_rows=N_ROWS, n_cols=N_COLS)
    with pytest.raises(ConfigError, match=r"ConvPolicy was made for 8 rows, the graph has .*size"):
        export_onnx(out, None, ConvPolicy(n_cols=N_COLS, n_rows=8), n_rows=N_ROWS, n_cols=N_COLS)
    for name in ("total-variation", "sense-tv"):
        with pytest.raises(ConfigError, match="solves each image iteratively"):
            export_onnx(
                out, reconstruction.RECONSTRUCTORS[name](), None, n_rows=N_ROWS, n_cols=N_COLS
            )
    assert not out.exists()


class Odd(Reconstructor):
    """Asks for the angle of complex numbers, which pairs do not have."""

    def reconstruct(self, measured: Measurement) -> Reconstruction:
        return Reconstruction.of(torch.angle(measured.zero_filled).sum(dim=1))


FUNCTIONS: dict[str, Callable[[Any, Tensor], Any]] = {
    "fft2c": lambda x, _: fft2c(x),
    "ifft2c": lambda x, _: ifft2c(x),
    "there and back": lambda x, _: torch.fft.ifft(torch.fft.fft(x), norm="forward"),
    "unscaled": lambda x, _: torch.fft.fft(x, norm="forward"),
    "sums": lambda x, real: real + x * x - real * x.conj() + (real - x) - 2 * x,
    "quotient": lambda x, real: x / (real.abs() + 1),
    "reduced": lambda x, _: x.sum(dim=1, keepdim=True),
    "masked": lambda x, real: torch.where(real > 0, x, 0),
    "multiplied": lambda x, real: torch.addcmul(x, x, real, value=-1),
    "moved": lambda x, _: x.flatten(0, 1)[:, None].unflatten(0, (2, 3))[..., [2, 0, 1]],
    "norm": lambda x, _: torch.linalg.vector_norm(x, dim=-3, keepdim=True),
    "seen as real": lambda x, real: torch.view_as_complex(torch.view_as_real(x * real)) * real,
    "size": lambda x, _: torch.abs(x) + x.abs(),
}


def complex_of(value: Any) -> Tensor:
    return torch.complex(value.real, value.imag) if isinstance(value, ComplexPairs) else value


@pytest.mark.parametrize("name", FUNCTIONS)
def test_pairs_compute_what_complex_tensors_do(
    name: str, unchecked: None, generator: torch.Generator
) -> None:
    parts = torch.randn(3, 2, 3, 5, 6, generator=generator)
    expected = FUNCTIONS[name](torch.complex(parts[0], parts[1]), parts[2])
    with real_arithmetic():
        found = FUNCTIONS[name](ComplexPairs(parts[0], parts[1]), parts[2])
    torch.testing.assert_close(complex_of(found), expected, atol=1e-5, rtol=1e-5)


def test_transforms_of_real_tensors_become_pairs(
    unchecked: None, generator: torch.Generator
) -> None:
    image = torch.randn(2, 5, 6, generator=generator)
    with real_arithmetic():
        found = fft2c(image)
        std, mean = torch.std_mean(image, dim=(-2, -1), correction=1)
    assert isinstance(found, ComplexPairs)
    torch.testing.assert_close(complex_of(found), fft2c(image), atol=1e-5, rtol=1e-5)
    for ours, theirs in zip((std, mean), torch.std_mean(image, dim=(-2, -1)), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert fft2c(image).is_complex()


def test_what_pairs_cannot_do_is_an_error() -> None:
    with pytest.raises(TypeError, match="angle"):
        torch.angle(ComplexPairs(torch.ones(2), torch.ones(2)))  # type: ignore[call-overload]
