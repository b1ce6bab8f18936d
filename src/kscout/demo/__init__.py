"""The paper in miniature, on images that need no license: what `make demo` runs."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from kscout.demo.page import write_demo_page
from kscout.demo.reconstructions import Comparison, compare_reconstructions
from kscout.demo.settings import ACCELERATIONS, DemoFolder, DemoSettings
from kscout.demo.stages import (
    Stage,
    evaluate_all,
    make_images,
    record_acquisition,
    silent,
    train_all,
)
from kscout.demo.zoo_stages import ZooRun, run_zoo


@final
@dataclass(frozen=True)
class DemoResult:
    """What a demo found."""

    page: Path
    summary: dict[str, Any]
    """The summary of the evaluation of policies."""
    reconstructions: Comparison
    zoo: list[ZooRun]
    """What the zoo's policies did at the paper's size, one entry per acquisition."""


def run_demo(
    out: Path, *, seed: int = 0, settings: DemoSettings | None = None, stage: Stage = silent
) -> DemoResult:
    """Make knees, train a U-Net and two policies, compare them with all others, write a page.

    Then run the zoo's policies at the paper's size on a few knees that they never saw.

    Called again, it goes on where it was stopped, and reuses what is done.

    Args:
        out: folder for the store, the runs, the evaluation and the page.
        seed: keys everything that is drawn.
        settings: other sizes than the demo's own.
        stage: opens each stage by its title, and yields what is told of its progress.
    """
    settings, folder = replace(settings or DemoSettings(), seed=seed), DemoFolder(out)
    store = make_images(settings, folder, stage)
    train_all(settings, folder, store, stage)
    with stage("comparing reconstructions on test slices"):
        compared = compare_reconstructions(folder.unet, store.split("test"), ACCELERATIONS)
    summary = evaluate_all(settings, folder, store, stage)
    record_acquisition(settings, folder, store, stage)
    zoo = run_zoo(settings.paper_size, folder, stage)
    with stage("writing the page"):
        page = write_demo_page(settings, folder, store, compared, zoo)
    return DemoResult(page, summary, compared, zoo)


__all__ = ["DemoFolder", "DemoResult", "DemoSettings", "run_demo"]
