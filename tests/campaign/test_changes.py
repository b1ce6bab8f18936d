"""A campaign names inputs that changed after its runs, since it keeps their results."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from small_campaign import PlanOf

from kscout.apps.campaign.plan import CampaignPlan
from kscout.apps.campaign.state import changed_inputs
from kscout.apps.cli.campaign_display import show_status

SMALL = {"horizons": ["short"], "methods": ["greedy"], "seeds": [0]}


def finish(plan: CampaignPlan) -> None:
    """Write what all runs of a plan leave."""
    for node in plan.nodes.values():
        (node.folder / node.label).mkdir(parents=True)
        (node.output / node.product).write_text("{}")
        (node.folder / "done.json").write_text(json.dumps({"seconds": 1}))


def touch(file: Path, seconds: float) -> None:
    """Let a file be older or newer than all runs."""
    os.utime(file, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns + int(1e9 * seconds)))


def test_changed_sources_of_a_dataset_are_named(
    plan_of: PlanOf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    np.save(tmp_path / "mine" / "a.npy", np.ones((2, 9, 9)))
    plan = plan_of(grid=SMALL, stores={"knee": {"import": "mine"}})
    assert changed_inputs(plan) is None
    finish(plan)
    touch(tmp_path / "mine" / "a.npy", -60)
    assert changed_inputs(plan) is None
    touch(tmp_path / "mine" / "a.npy", 120)
    note = changed_inputs(plan)
    assert note is not None and note.startswith(f"{Path('mine', 'a.npy')} changed after a run")
    show_status(plan, keeps_looking=False)
    assert note in capsys.readouterr().err


@pytest.mark.parametrize("name", ["own", "own_package.part"])
def test_changed_modules_of_the_user_are_named(name: str, plan_of: PlanOf, tmp_path: Path) -> None:
    (tmp_path / "own_package").mkdir()
    for file in ("own.py", "own_package/__init__.py", "own_package/part.py"):
        (tmp_path / file).write_text("raise SystemExit\n")
    plan = plan_of(grid=SMALL)
    plan.use = (name,)
    nodes, plan.nodes = plan.nodes, {}
    for node in nodes.values():
        plan.add(node)
    finish(plan)
    file = tmp_path / f"{name.replace('.', '/')}.py"
    touch(file, -60)
    assert changed_inputs(plan) is None
    touch(file, 120)
    note = changed_inputs(plan)
    assert note is not None and note.startswith(f"{file} changed after {len(nodes)} finished runs")
