"""`benchmarks/multicoil.py`: its commands exist, and a stage that is recorded is not run again."""

import importlib
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from test_docs import check_parses

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def multicoil() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("multicoil")
    sys.path.remove(str(BENCHMARKS))


def test_every_command_of_every_stage_parses(multicoil: ModuleType) -> None:
    words = ["--set", "reconstructor.n_cascades=4", "--set", "training.n_random=8"]
    found = multicoil.stages(multicoil.parsed([*words, "--limit", "9"]))
    assert {"store", "unet", "varnet", "reconstructions", "policies-8x"} <= set(found)
    for stage in found.values():
        for command in stage.commands:
            check_parses(shlex.join(["kscout", *command]))
    assert "reconstructor.n_cascades=4" in found["varnet"].commands[0]
    assert "training.n_random=8" in found["policy-4x"].commands[0]


def test_the_page_has_the_numbers_of_the_record_of_the_brain() -> None:
    found = json.loads((BENCHMARKS / "brain13.json").read_text(encoding="utf-8"))["found"]
    page = (BENCHMARKS.parent / "docs" / "coils.md").read_text(encoding="utf-8")
    for name in found["rss"]:
        rows = [found[target][name] for target in ("rss", "weighted")]
        cells = [f"{row[key]:.4f}".lstrip("0") for row in rows for key in ("nmse", "ssim")]
        assert f"| `{name}` | {' | '.join(cells)} |" in page


def test_a_recorded_stage_is_run_once(
    multicoil: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    n_asked = []
    stage = multicoil.Stage([], lambda: n_asked.append(1) or [{"found": 1}])
    for _ in range(2):
        multicoil.run("none", stage, tmp_path / "deep" / "none.json")
    record = json.loads((tmp_path / "deep" / "none.json").read_text())
    assert len(n_asked) == 1 and record["results"] == [{"found": 1}]
    assert "recorded in" in capsys.readouterr().out
