"""The paper in miniature, on images that need no license: three campaigns and one page.

`ready.toml` runs policies of the zoo on unseen knees, `oracle.toml` adds an oracle on
a few of them, and `trained.toml` trains a small U-Net and a small policy. The page shows the
comparison and a player first, then what was trained, then numbers.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from html import escape
from itertools import chain
from pathlib import Path
from typing import final

import tomli_w

from kscout.apps.campaign.execute import OnEvent, RunOptions, run_campaign
from kscout.apps.campaign.grid import parse_grid
from kscout.apps.campaign.plan import CampaignPlan, make_plan
from kscout.apps.campaign.workers import WorkerOptions
from kscout.apps.report import build
from kscout.apps.report.evaluations import describe_comparison, opening, result_parts
from kscout.apps.report.page import Front, as_shell, code_html
from kscout.config import merge
from kscout.config.options import flags
from kscout.data.store import Store
from kscout.errors import RunError
from kscout.evaluation.records.acquisitions import load_acquisition
from kscout.evaluation.summaries.summary import Summary, read_summary
from kscout.figures.blocks import Block, Prose, Section, Widget
from kscout.figures.series import LineStyle
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


def run_demo(
    out: Path,
    *,
    seed: int = 0,
    is_quick: bool = False,
    progress: Progress = lambda _: nullcontext(),
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


TITLE = "Learning which k-space columns to measure: the paper in miniature"
N_SEEDS, N_SEEDS_ABOVE = 5, 4
"""Seeds from 0 with which the demo was run, and those whose interval of the difference between
`column` and the fixed order is above zero (`demo-seeds` in lab/results.csv)."""

Command = tuple[str, Sequence[str]]
"""What a command does, and its words after `kscout`."""


def write_demo_page(
    out: Path, plans: Mapping[str, CampaignPlan], *, seed: int, is_quick: bool
) -> Path:
    """Write the self-contained page and return its path."""
    folders = {name: plan.of_kind("evaluation")[0].output for name, plan in plans.items()}
    summaries = {name: read_summary(folder) for name, folder in folders.items()}
    looks = build.looks_of(*summaries.values())
    ready, oracle, trained = (
        result_parts(summary, looks, stem=f"{name}-") for name, summary in summaries.items()
    )
    comparison, *notes = opening(summaries["trained"])
    kinds = ("reconstructor", "policy", "analysis")
    store = Store.open(plans["trained"].of_kind("store")[0].output)
    others = [one.output for kind in kinds for one in plans["trained"].of_kind(kind)]
    sections = (
        Section(build.PLAYER_TITLE, (Prose(_PLAYED), _player(folders["oracle"], 1, looks))),
        Section(
            "The lead over the fixed order", (*ready["Difference to fixed"][-1:], Prose(_SEEDS))
        ),
        Section(
            "Trained here",
            (
                Prose(f"{_TRAINED} {comparison}"),
                *map(Prose, notes),
                _player(folders["trained"], 1, looks),
            ),
        ),
        _commands("What to try next", _NEXT, next_commands(out, plans, seed)),
        Section(
            "At the paper's size",
            (
                *(Prose(_READY), *ready["Scores"], *ready["SSIM by step"]),
                _player(folders["ready"], 2, looks),
            ),
        ),
        Section(
            "How much is possible", (Prose(_BOUND), *oracle["Scores"], *oracle["SSIM by step"])
        ),
        Section("At the size of the training here", tuple(chain(*trained.values()))),
        *build.analysis_sections(build.search(others), looks),
        Section("Images", (Prose(_IMAGES), Widget(store._repr_html_()))),
        _how(out, plans),
    )
    summary = summaries["ready"]
    lead = _LEAD.format(n_slices=summary.n_slices, n_volumes=summary.n_volumes)
    lead += describe_comparison(summary)
    front = Front(TITLE, (lead,), subtitle=_QUICK if is_quick else _SUBTITLE)
    provenance = build.search([*folders.values(), *others]).provenance
    (path,) = build.write_report(build.Report(front, sections, provenance), out / "index.html")
    return path


def _player(folder: Path, number: int, looks: dict[str, LineStyle]) -> Widget:
    """Show a recorded slice of an evaluation: the first step by step, others at the end."""
    acquisition = load_acquisition(folder / f"acquisition-{number}.npz")
    name = f"player-{folder.parent.name}-{number}"
    return build.player_widget(acquisition, name, colors=build.policy_colors(looks))


def _how(out: Path, plans: Mapping[str, CampaignPlan]) -> Section:
    commands: list[Command] = []
    for name, plan in plans.items():
        campaign = ("campaign", "run", str(out / f"{name}.toml"), "--out", str(plan.root))
        commands.append((f"Campaign: {plan.name}", (*campaign, "--workers", "0")))
        commands += [(f"{one.kind}: {one.title}", one.command) for one in plan.nodes.values()]
    return _commands("How this was made", _HOW, commands)


def next_commands(out: Path, plans: Mapping[str, CampaignPlan], seed: int) -> list[Command]:
    """Return what may be tried next with what the demo left."""
    nodes = {one.kind: one for one in plans["trained"].nodes.values()}
    store, unet, policy = (nodes[kind] for kind in ("store", "reconstructor", "policy"))
    unseen, longer = plans["ready"].of_kind("store")[0], out / "longer"
    where = {"data": store.path, "reconstructor": unet.path}
    again = {"seed": seed + 1, "out": out.with_name(f"{out.name}-seed{seed + 1}")}
    policies = ["knee-general-16-column", "knee-general-16-fixed"]
    served = {"reconstructor": "knee-general-unet", "policy": policies, "data": unseen.path}
    learned = {**where, "config": policy.output / "config.toml", "epochs": 4, "out": longer}
    compared = {**where, "policy": [longer, "fixed"], "out": f"{longer}-evaluation"}
    return [
        ("The same with other knees and other draws", ("demo", *flags(again))),
        ("Steer acquisitions yourself, in a browser", ("serve", *flags(served))),
        ("Let the policy learn longer", ("train", "policy", *flags(learned))),
        ("Compare it", ("evaluate", *flags(compared))),
    ]


def _commands(title: str, text: str, commands: Sequence[Command]) -> Section:
    blocks: list[Block] = [Prose(text)]
    for name, words in commands:
        head = f'<p style="margin:0 0 .3rem"><b>{escape(name)}</b></p>'
        blocks.append(Widget(head + code_html(as_shell(["kscout", *words]))))
    return Section(title, tuple(blocks))


_SUBTITLE = """Procedural knees: first a policy of the package, on knees generated for this \
page; then a small U-Net and a small policy, trained within minutes on this machine. This page \
demonstrates the method; it is not a result on patients."""

_QUICK = """Every part of the demo at the smallest sizes, to see that it runs. No number on this \
page is a result; run kscout demo without --quick for one that is."""

_LEAD = """On {n_slices} slices of {n_volumes} knees that were not used in training, a policy of \
the package chooses each column of k-space from the current image. \
"""

_SEEDS = f"""The interval of this difference is above zero with {N_SEEDS_ABOVE} of the seeds 0 to \
{N_SEEDS - 1} of the demo, each of which generates other knees."""

_PLAYED = """After each column the U-Net knee-general-unet reconstructs the image again. The \
policy column chooses the next column from this image, fixed acquires the same columns of every \
knee, and the oracle uses the true image, which no scanner has."""

_TRAINED = """A small U-Net was trained on this machine on random columns, then a policy for it, \
on few knees and within minutes; the fixed order was fitted on the same training data."""

_NEXT = """All that is in this folder can be used on its own; docs/ explains how to use your own \
data, raw k-space and real scanners."""

_READY = """Nothing was trained for this section: the U-Net and the policies come with kscout, \
trained on other procedural knees of this size. The last picture shows a slice on which column \
does worse than on nine in ten others."""

_BOUND = """The oracle tries every column at every step and takes the best according to the true \
image. That takes long, so it ran on a few knees only: they show what policies do, not which one \
is better."""

_IMAGES = """Knees are generated from random anatomy and scanner settings. They look like MR \
images and need no license; they are not of patients."""

_HOW = """The demo is three campaigns. The command of each campaign is followed by the commands \
of its runs; run again, they reuse finished work. The training here differs from the paper: \
images of 64×64 pixels instead of 128×128, 4 + 4 columns instead of 16 + 16, a small U-Net \
trained for few epochs, and a policy that learns the gains of many tried columns \
(docs/concepts/gain-regression.md). Rewards, masks and scores are the paper's (protocol paper)."""
