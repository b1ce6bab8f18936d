"""The paper in miniature, on images that need no license: what `make demo` runs."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from kscout.data.generate import make_store
from kscout.demo.page import tell_lead, write_demo_page
from kscout.demo.settings import (
    ZOO_SIZE,
    DemoFolder,
    DemoSettings,
)
from kscout.demo.stages import (
    Stage,
    ZooRun,
    bound,
    claim_all,
    lead_all,
    pair_all,
    run_zoo,
    silent,
    train_unet,
    trained_beside,
)
from kscout.evaluation.analyses import run_analysis
from kscout.evaluation.analyses.reconstructions import ReconstructionRow
from kscout.evaluation.summaries.summary import Summary
from kscout.files import locked


@final
@dataclass(frozen=True)
class DemoResult:
    """What a demo found."""

    page: Path
    told: str
    """The first sentence of the page."""
    summary: Summary
    """The summary of the evaluation of policies."""
    reconstructions: list[ReconstructionRow]
    zoo: list[ZooRun]
    """What the zoo's policies did at the paper's size, one entry per acquisition."""


def run_demo(
    out: Path, *, seed: int = 0, settings: DemoSettings | None = None, stage: Stage = silent
) -> DemoResult:
    """Run a policy of the zoo on unseen knees; train small ones, apart and together; write a page.

    Called again, it goes on where it was stopped, and reuses what is done.

    Args:
        out: folder for the store, the runs, the evaluation and the page.
        seed: keys everything that is drawn.
        settings: other sizes than the demo's own.
        stage: opens each stage by its title, and yields what is told of its progress.
    """
    with locked(out):
        return _run(DemoFolder(out), replace(settings or DemoSettings(), seed=seed), stage)


def _run(folder: DemoFolder, settings: DemoSettings, stage: Stage) -> DemoResult:
    size, n_slices = settings.size, sum(settings.volumes) * settings.slices
    with stage(f"drawing {n_slices} knee slices of {size}x{size}") as tell:
        store = make_store(folder.store, settings.making, on_volume=tell)
    lead_all(settings, folder, stage)
    train_unet(settings, folder, store, stage)
    with trained_beside(settings, folder):
        summary = claim_all(settings, folder, store, stage)
        with stage(f"running the oracle on {settings.n_oracle_slices} slices of them") as tell:
            bound(settings, folder, store, tell)
    pair_all(settings, folder, store, stage)
    with stage("comparing reconstructions on test slices"):
        compared = run_analysis(
            folder.comparison, folder.compared, out=folder.reconstructions, overwrite=True
        )
    zoo, runs = settings.paper_size, []
    with stage(
        f"drawing {zoo.n_volumes} knees of the zoo's test set, of {ZOO_SIZE}x{ZOO_SIZE}"
    ) as tell:
        knees = make_store(folder.zoo_store, zoo.making, on_volume=tell)
    for one in zoo.acquisitions:
        told = f"{one.n_initial} + {one.horizon} of {ZOO_SIZE} columns"
        with stage(f"running the zoo's policies, {told}") as tell:
            runs.append(run_zoo(one, zoo, folder, knees, tell))
    with stage("writing the page"):
        page = write_demo_page(settings, folder, store, runs)
    told = tell_lead(settings, folder).replace("**", "")
    return DemoResult(page, told, summary, compared, runs)


__all__ = ["DemoFolder", "DemoResult", "DemoSettings", "run_demo"]
