"""ONNX files hold the same networks: onnxruntime finds the images and scores of torch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from kscout import policies, reconstruction
from kscout.cli import app
from kscout.core import Measurement, Observation
from kscout.errors import ConfigError
from kscout.export.onnx import TOLERANCE, MagnitudeGraph, export_onnx, onnx_packages
from kscout.physics.normalization import denormalize
from kscout.policies.column import ColumnPolicy
from kscout.policies.conv import ConvPolicy
from kscout.reconstruction.sense import Sense
from kscout.reconstruction.unet import UNet

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
    code = "from kscout.export.onnx import onnx_packages; onnx_packages()"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ORT_")}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert not [path for path in tmp_path.rglob("*") if "onnx" in path.name]


def test_the_graph_computes_what_kscout_does(unchecked: None, generator: torch.Generator) -> None:
    unet, policy = networks()
    kspace = torch.view_as_complex(torch.randn(2, 3, N_ROWS, N_COLS, 2, generator=generator))
    mask = torch.rand(2, N_COLS, generator=generator) < 0.5
    with torch.no_grad():
        image, scores = MagnitudeGraph(unet, policy)(torch.view_as_real(kspace), mask)
        found = unet.reconstruct(Measurement.of(kspace, mask))
        expected = policy(Observation(image=found.image, mask=mask))
    torch.testing.assert_close(image, denormalize(found.image, found.mean, found.std))
    torch.testing.assert_close(scores, expected)


def test_what_looks_at_complex_numbers_is_refused_and_writes_nothing(
    tmp_path: Path, unchecked: None
) -> None:
    out = tmp_path / "none.onnx"
    column = ColumnPolicy(n_cols=N_COLS, horizon=4)
    with pytest.raises(ConfigError, match="looks at more than the image"):
        export_onnx(out, networks()[0], column, n_rows=N_ROWS, n_cols=N_COLS)
    with pytest.raises(ConfigError, match="Sense cannot be exported"):
        export_onnx(out, Sense(), None, n_rows=N_ROWS, n_cols=N_COLS)
    assert not out.exists()
