"""The paper in miniature, on images that need no license: three campaigns and one page.

`ready.toml` runs policies of the zoo on unseen knees, `oracle.toml` adds an oracle on
a few of them, and `trained.toml` trains a small U-Net and a small policy.
"""

import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

import tomli_w

from kscout.apps.campaign.execute import OnEvent, RunOptions, run_campaign
from kscout.apps.campaign.grid import parse_grid
from kscout.apps.campaign.plan import CampaignPlan, make_plan
from kscout.apps.campaign.workers import WorkerOptions
from kscout.apps.demo.page import write_demo_page
from kscout.apps.report.words import describe_comparison
from kscout.config import merge
from kscout.errors import RunError
from kscout.evaluation.summaries.summary import Summary, read_summary
from kscout.files import locked, write_text
from kscout.json_types import JsonObject

CORES = {"ready": None, "oracle": None, "trained": 1}
"""Cores by campaign, in the order in which they run; None: all. The optimizer steps of the small
networks are so short that further threads mostly wait."""

Progress = Callable[[CampaignPlan], AbstractContextManager[OnEvent | None]]
"""Opens a campaign; what it yields is called when a run of it ends."""


@final
@dataclass(frozen=True)
class DemoResult:
    """Page and results of a demo."""

    page: Path
    summaries: dict[str, Summary]
    """The evaluation of each campaign."""

    @property
    def headline(self) -> str:
        """The comparison of the policy of the zoo with the fixed order, in one sentence."""
        return describe_comparison(self.summaries["ready"])


@contextmanager
def _silent(_: CampaignPlan) -> Iterator[None]:
    yield


def run_demo(
    out: Path, *, seed: int = 0, is_quick: bool = False, progress: Progress = _silent
) -> DemoResult:
    """Run the campaigns of the demo one after the other, and write the page.

    Called again, it continues where it was stopped and reuses every run that is done.
    """
    with locked(out):
        plans = {}
        for name in CORES:
            table = campaign_table(name, seed=seed, is_quick=is_quick)
            plans[name] = make_plan(parse_grid(name, table), out / name)
            write_text(out / f"{name}.toml", tomli_w.dumps(table))
        for name, plan in plans.items():
            _run(plan, out / f"{name}.toml", CORES[name], progress)
        page = write_demo_page(out, plans, seed=seed, is_quick=is_quick)
    found = {name: plan.of_kind("evaluation")[0].output for name, plan in plans.items()}
    return DemoResult(page, {name: read_summary(folder) for name, folder in found.items()})


def campaign_table(name: str, *, seed: int = 0, is_quick: bool = False) -> JsonObject:
    """Return the file of a campaign of the demo with its seed and sizes."""
    table = _packaged(name)
    if is_quick:
        table = merge(table, _packaged("quick")[name])
    for store in table["stores"].values():
        store["seed"] += seed
    for network in table["reconstructions"].values():
        if "training" in network:
            network["training"]["seed"] = seed
    table["grid"] = {**table.get("grid", {}), "seeds": [seed]}
    return table


def _packaged(name: str) -> JsonObject:
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))


def _run(plan: CampaignPlan, file: Path, n_cores: int | None, progress: Progress) -> None:
    options = RunOptions(WorkerOptions(n_workers=0, n_cores=n_cores))
    with progress(plan) as on_event:
        outcome = run_campaign(plan, options, file=str(file), on_event=on_event)
    for node, reason in outcome.failed:
        raise RunError(f"{node.title} failed: {reason}; its log is {node.log}")


__all__ = ["DemoResult", "campaign_table", "run_demo"]
