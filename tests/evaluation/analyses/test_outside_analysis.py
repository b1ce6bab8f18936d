"""An analysis that runs policies, from a folder outside of the package."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import kscout
from kscout.apps.campaign.grid import parse_grid
from kscout.apps.campaign.plan import make_plan
from kscout.errors import ConfigError
from kscout.evaluation import Analysis
from kscout.names import table as names

MODULE = Path(__file__).parents[2] / "outside" / "spread.py"
NAME = "spread:Spread"


@pytest.fixture
def folder(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the module and a store, in which a user works."""
    code = MODULE.read_text(encoding="utf-8")
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) < 40
    (tmp_path / "spread.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(names, "_used", set())
    yield tmp_path
    sys.modules.pop("spread", None)


def analyze(*more: str) -> str:
    return kscout(
        *("analyze", NAME, "random", "center-out", "--data", "store"),
        *("--reconstructor", "zero-filled", "--n-initial", "3", "--steps", "4"),
        *("--device", "cpu", "--out", "analyses", *more),
    )


def test_it_is_a_command_with_its_options_and_files(folder: Path) -> None:
    told = kscout("analyze", NAME, "--help")
    assert "Distances are divided by this." in told and "Mean distance of the acquired" in told
    assert "center-out" in analyze("--scale", "2")
    rows = json.loads((folder / "analyses" / "spread.json").read_text())
    assert len(rows) == 2 * 4
    # Around the three columns of the start, the center-out order takes the nearest ones.
    nearest = [row["distance"] for row in rows if row["policy"] == "center-out"]
    assert nearest == [1.0, 1.0, 1.5, 1.5]
    settings = json.loads((folder / "analyses" / "spread.settings.json").read_text())
    assert (settings["analysis"], settings["scale"]) == (NAME, 2.0)


def test_a_campaign_plans_it_and_refuses_what_it_does_not_know(folder: Path) -> None:
    campaign = {
        "stores": {"here": {"path": "store"}},
        "grid": {"reconstructions": ["zero-filled"], "horizons": ["tiny"]},
        "horizons": {"tiny": {"n_initial": 3, "steps": 4}},
        "analyses": {NAME: {"scale": 2.0, "policies": ["random"]}},
    }
    (node,) = make_plan(parse_grid("mine", campaign), folder / "campaign").nodes.values()
    words = " ".join(node.command)
    assert f"analyze {NAME} random --scale 2.0 --data" in words and "--steps 4" in words
    assert (node.product, node.output.name) == (
        "spread.json",
        "spread-Spread-store-zero-filled-3+4",
    )
    for wrong, told in (({"scael": 1}, "did you mean 'scale'"), ({"scale": "x"}, "a number")):
        with pytest.raises(ConfigError, match=told):
            parse_grid("mine", {**campaign, "analyses": {NAME: wrong}})


def test_a_report_shows_its_table_and_imports_only_what_is_named(folder: Path) -> None:
    analyze()
    sys.modules.pop("spread", None)
    names._used.clear()
    kscout("report", "analyses", "-o", "plain.html")
    assert "spread" not in sys.modules
    page = (folder / "plain.html").read_text(encoding="utf-8")
    assert "center-out" in page and "name its module with --use" in page
    kscout("--use", "spread", "report", "analyses", "-o", "named.html")
    page = (folder / "named.html").read_text(encoding="utf-8")
    assert "Distance from the center" in page and "--use" not in page


@pytest.mark.parametrize(("old", "new"), [("told", "printed_rows"), ("unasked", "without_table")])
def test_a_method_of_version_0_2_is_rejected_with_its_new_name(old: str, new: str) -> None:
    with pytest.raises(ConfigError, match=f"Own.{old} of version 0.2 is called .*{new}; rename it"):
        type("Own", (Analysis,), {old: classmethod(lambda cls, rows: rows)})
