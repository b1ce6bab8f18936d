"""The stages at the paper's size: nothing is trained, policies of the zoo run on unseen knees."""

from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any, final

import torch

from kscout import reconstruction
from kscout.data.generate import make_store
from kscout.data.slices import SliceSet
from kscout.data.store import Store, checksum
from kscout.demo.paper_size import SHOWN_BASELINE, SIZE, UNET, ZERO_FILLED, Budget, PaperSize
from kscout.demo.settings import DemoFolder
from kscout.demo.stages import OnProgress, Stage, on_evaluation, reused_evaluation, typical_slice
from kscout.evaluation.compare import evaluate
from kscout.evaluation.entrants import Sizes, resolve
from kscout.evaluation.examples import Example, reconstruction_examples
from kscout.evaluation.results import Scores, read_scores
from kscout.evaluation.trajectories import spread_subset
from kscout.zoo import zoo_path


@final
@dataclass(frozen=True)
class ZooRun:
    """What policies did under one acquisition."""

    budget: Budget
    fingerprint: str
    """Of the store that the slices come from."""
    summary: dict[str, Any]
    scores: list[Scores] = field(repr=False)
    zero_filled: Scores = field(repr=False)
    """Of images without a network, columns from the center outwards."""
    examples: list[Example] = field(repr=False)
    """One slice: zero-filled, then center-out and the zoo's policies."""


def run_zoo(settings: PaperSize, folder: DemoFolder, stage: Stage) -> list[ZooRun]:
    """Draw a few knees of the zoo's test set, and run its policies on them.

    Args:
        settings: what is run on how many knees.
        folder: of the demo.
        stage: opens each stage by its title.
    """
    with stage(f"drawing {settings.n_volumes} unseen knees of {SIZE}x{SIZE}") as tell:
        store = make_store(folder.paper_store, settings.making, on_volume=tell)
    found = []
    for budget in settings.budgets:
        start = f"{budget.n_initial} + {budget.horizon} of {SIZE} columns"
        with stage(f"running the zoo's policies, {start}") as tell:
            found.append(_run(budget, settings, folder, store, tell))
    return found


def _run(
    budget: Budget, settings: PaperSize, folder: DemoFolder, store: Store, tell: OnProgress
) -> ZooRun:
    out = folder.paper_evaluation(budget.name)
    setting = settings.evaluation(budget, reference=budget.reference)
    summary = reused_evaluation(
        out,
        _inputs(budget, store, asdict(setting)),
        lambda: evaluate(
            budget.wanted, folder.paper_store, UNET, setting, out=out, on_step=on_evaluation(tell)
        ),
    )
    plain, plain_setting = (
        folder.paper_evaluation(budget.name, is_zero_filled=True),
        settings.evaluation(budget),
    )
    reused_evaluation(
        plain,
        _inputs(budget, store, asdict(plain_setting)),
        lambda: evaluate(
            [SHOWN_BASELINE], folder.paper_store, ZERO_FILLED, plain_setting, out=plain
        ),
    )
    slices = spread_subset(store.split("test"), settings.limit)
    place = typical_slice(out, budget.told, SHOWN_BASELINE)
    return ZooRun(
        budget=budget,
        fingerprint=store.fingerprint,
        summary=summary,
        scores=read_scores(out),
        zero_filled=read_scores(plain)[0],
        examples=_examples(budget, settings, slices.subset(torch.tensor([place]))),
    )


def _examples(budget: Budget, settings: PaperSize, own: SliceSet) -> list[Example]:
    """Acquire one slice once more, and keep what came of it."""
    sizes = Sizes(SIZE, SIZE, budget.n_initial, budget.horizon)
    shown = [name for name in budget.wanted if name == SHOWN_BASELINE or "=" in name]
    entrants = [entrant for name in shown for entrant in resolve(name, sizes)]
    plan = settings.evaluation(budget).plan
    return [
        *reconstruction_examples(entrants[:1], own, reconstruction.load(ZERO_FILLED), plan),
        *reconstruction_examples(entrants, own, reconstruction.load(UNET), plan),
    ]


def _inputs(budget: Budget, store: Store, setting: dict[str, Any]) -> dict[str, Any]:
    """Return all that an evaluation depends on."""
    files = {name: zoo_path(name) for name in (UNET, *(one.weights for one in budget.policies))}
    return {
        "version": version("kscout"),
        "store": store.fingerprint,
        "setting": setting,
        "policies": budget.wanted,
        # A file or folder of that name in the working directory goes before the zoo's.
        "weights": {name: checksum(file) for name, file in files.items() if file is not None},
    }
