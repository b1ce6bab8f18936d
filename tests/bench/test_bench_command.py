"""`kscout bench --json` answers with one object that holds all that is promised."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from kscout.apps.bench import engine, parts, print_tables
from kscout.apps.bench.engine import wait
from kscout.apps.cli import app

pytestmark = pytest.mark.slow


def timed_once(function: Callable[[], Any], device: torch.device, **_: object) -> float:
    """Stand in for the best of several calls."""
    begun = wait(device)
    function()
    return wait(device) - begun


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    options = ["bench", "--json", "--quick", "--size", "32", "--device", "cpu"]
    with pytest.MonkeyPatch.context() as patch:
        for module in (engine, parts):
            patch.setattr(module, "best_time", timed_once)
        result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_ratio_is_the_median_of_three_rounds(found: dict[str, Any]) -> None:
    record = found["yardstick"]["32"]
    assert found["yardstick_ratio"] == {"32": sorted(record["ratios"])[1]}
    assert record["ratios"] == [
        a / b for a, b in zip(record["plain_s"], record["kscout_s"], strict=True)
    ]


def test_both_sides_of_the_ratio_do_the_same(found: dict[str, Any]) -> None:
    record = found["yardstick"]["32"]
    assert record["columns_equal"]
    assert record["largest_reward_difference"] < 1e-5
    assert record["relative_gradient_difference"] < 1e-3
    assert record["gradient_cosine"] > 0.9999
    assert record["mean_distinct_of_q"] > 6


def test_parts_are_those_of_a_training(found: dict[str, Any]) -> None:
    parts = {record["part"]: record for record in found["parts"]}
    assert set(parts) == {"U-Net forward", "SSIM", "candidate scoring", "policy forward + backward"}
    assert all(0 < record["images_per_s"] for record in parts.values())
    assert {record["bits"] for record in parts.values()} == {32}
    assert {"date", "device", "torch", "load_before", "load_after", "ceilings"} <= set(found)


def test_tables_show_the_ratio(found: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    print_tables(found)
    shown = capsys.readouterr().out
    assert f"{found['yardstick_ratio']['32']:.2f}" in shown
    # Where a column is too narrow rich cuts its numbers.
    assert "…" not in shown


def test_an_impossible_size_is_named() -> None:
    result = CliRunner().invoke(app, ["bench", "--size", "40"])
    assert result.exit_code != 0 and "40" in str(result.exception or result.output)
