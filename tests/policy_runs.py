"""Run folders of a small policy for images of 18 x 13 pixels, as trainings leave them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
import torch

from kscout.policies.conv import ConvPolicy
from kscout.weights import save_component


def small_policy(seed: int = 0) -> ConvPolicy:
    torch.manual_seed(seed)
    return ConvPolicy(n_cols=13, n_rows=18, n_channels=2, n_hidden=5)


def write_run(
    path: Path,
    *weights: str,
    seed: int = 0,
    horizon: int = 4,
    metrics: Sequence[Mapping[str, object]] = (),
    provenance: Mapping[str, object] | None = None,
    **training: Any,
) -> Path:
    """Write settings, provenance, metrics, and files of weights with these names."""
    path.mkdir(parents=True)
    for name in weights:
        save_component(path / f"{name}.safetensors", small_policy(seed), kind="policy")
    config = {
        "kind": "policy",
        "acquisition": {"n_initial": 3, "horizon": horizon},
        "training": {"method": "greedy", "seed": seed, **training},
    }
    (path / "config.toml").write_text(tomli_w.dumps(config))
    (path / "provenance.json").write_text(json.dumps(provenance or {}))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    return path
