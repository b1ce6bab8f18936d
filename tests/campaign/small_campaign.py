"""A small campaign whose runs are done by a stand-in, `fake_kscout.py`."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kscout.apps.campaign.execute import RunOptions
from kscout.apps.campaign.plan import CampaignPlan
from kscout.apps.campaign.workers import WorkerOptions

FAKE = (sys.executable, "-S", str(Path(__file__).with_name("fake_kscout.py")))

TABLE: dict[str, Any] = {
    "grid": {
        "horizons": ["short", "long"],
        "methods": ["greedy", "ngreedy"],
        "gammas": [0.9, 1],
        "seeds": [0, 3],
    },
    "stores": {"knee": {"make": "knee", "volumes": [2, 1, 1], "size": 64}},
    "reconstructions": {"unet": {"training": {"n_epochs": 3}}},
    "horizons": {"short": {"n_initial": 8, "steps": 5}, "long": {"n_initial": 4, "steps": 9}},
    "evaluation": {"policies": ["random", "oracle"], "trajectories": 2},
    "analyses": {"entropy": {"trajectories": 2}, "snr": {}, "curves": True, "gammas": True},
}

PlanOf = Callable[..., CampaignPlan]

PATIENCE_S = 600.0
"""What a slow machine may take; nobody waits for it unless something is wrong."""


def serially(n_retries: int = 1) -> RunOptions:
    return RunOptions(WorkerOptions(n_workers=0), n_retries, FAKE)


def products(plan: CampaignPlan) -> dict[str, str]:
    """Return what every run of a plan has written, by title."""
    return {
        node.title: (node.output / node.product).read_text()
        for node in plan.nodes.values()
        if (node.output / node.product).is_file()
    }


def wait_for(is_so: Callable[[], object]) -> None:
    """Return as soon as something is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def fake_processes(label: str) -> list[int]:
    """Return the living processes of the stand-in that write a folder of this name."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode().split("\0")
            is_ours = (path.parent / "cwd").readlink() == Path.cwd()
        except OSError:
            continue
        names = [Path(word).name for word in words]
        if is_ours and tuple(words[: len(FAKE)]) == FAKE and label in names:
            found.append(int(path.parent.name))
    return found
