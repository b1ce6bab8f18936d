"""Nothing that kscout starts imports a module from the working folder."""

import subprocess
import sys
from pathlib import Path

import pytest
from small_campaign import FAKE, PlanOf

from kscout.apps.campaign.execute import RunOptions, run_campaign
from kscout.apps.campaign.task import Task, run_task
from kscout.apps.campaign.workers import WorkerOptions

pytestmark = pytest.mark.slow


def generator(folder: Path, n_volumes: int) -> Path:
    """Write a script that generates volumes with two workers."""
    settings = f"kind='knee', volumes=({n_volumes}, 1, 1), slices=1, size=64, workers=2"
    script = folder / "generate.py"
    folder.mkdir()
    script.write_text(
        "import kscout\nfrom kscout.data import MakeSettings\n"
        f"if __name__ == '__main__':\n    kscout.make_store('store', MakeSettings({settings}))\n"
    )
    return script


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    """Write modules into the working folder that leave this file when they are imported."""
    path = tmp_path / "imported"
    for name in ("typer", "numpy", "multiprocessing", "pip", "ssl"):
        source = f"open({str(path)!r}, 'a').write({name!r})\nraise SystemExit\n"
        (tmp_path / f"{name}.py").write_text(source)
    return path


def test_runs_of_a_campaign(plan_of: PlanOf, imported: Path) -> None:
    nodes = plan_of().nodes.values()
    make = next(node for node in nodes if node.command[:2] == ("data", "make"))
    assert run_task(Task(make)).is_done
    assert not imported.exists()


def test_workers_of_a_campaign(
    plan_of: PlanOf, imported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = imported.with_name("temporary")
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    plan = plan_of(grid={"horizons": ["short"], "methods": ["greedy"], "seeds": [0]})
    run_campaign(plan, RunOptions(WorkerOptions(n_workers=1), program=FAKE))
    assert not imported.exists() and not any(temporary.iterdir())


def test_workers_that_generate_data(plan_of: PlanOf, imported: Path) -> None:
    script = generator(Path("scripts"), n_volumes=2)
    subprocess.run([sys.executable, script], check=True, capture_output=True)
    assert not imported.exists()
