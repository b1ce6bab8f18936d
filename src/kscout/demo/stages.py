"""The stages of the demo, each of which goes on from, or reuses, what an earlier run left."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kscout import policies, reconstruction
from kscout.acquisition.rollout import Trajectory
from kscout.assemble import make_policy
from kscout.data.generate import make_store
from kscout.data.slices import SliceSet
from kscout.data.store import Store, checksum
from kscout.demo.settings import (
    CLAIMED,
    INPUTS,
    METHODS,
    REFERENCE,
    DemoFolder,
    DemoSettings,
)
from kscout.errors import DataError
from kscout.evaluation.compare import evaluate
from kscout.evaluation.entrants import Sizes, resolve
from kscout.evaluation.results import RESULTS, read_scores
from kscout.evaluation.summary import SUMMARY
from kscout.evaluation.trajectories import trajectories
from kscout.files import write_json
from kscout.physics.sampling import center_mask
from kscout.player import Acquisition, PolicySteps, save_acquisition
from kscout.report.evaluations import read_evaluation
from kscout.runs import Progress
from kscout.training.policy import train_policy
from kscout.training.reconstructor import train_reconstructor
from kscout.weights import WEIGHTS_NAME

OnProgress = Callable[[int, int, str], None]
"""Called with what is done, of how much, and a few words."""
Stage = Callable[[str], AbstractContextManager[OnProgress]]
"""Opens a stage by its title; what it yields is told of progress."""

_PLAYED = ("random", "equispaced-two", "oracle")
"""Shown step by step beside the greedy policy: with the target, one row of five pictures."""


@contextmanager
def silent(_: str) -> Iterator[OnProgress]:
    """Open a stage that tells nobody."""
    yield lambda done, total, words: None


def make_images(settings: DemoSettings, folder: DemoFolder, stage: Stage) -> Store:
    """Draw the knees."""
    n_slices = sum(settings.volumes) * settings.slices
    with stage(f"drawing {n_slices} knee slices of {settings.size}x{settings.size}") as tell:
        return make_store(folder.store, settings.making, on_volume=tell)


def train_all(settings: DemoSettings, folder: DemoFolder, store: Store, stage: Stage) -> None:
    """Train the U-Net and, on top of it, both policies; keep the network they started from."""
    with stage("training a small U-Net") as tell, _one_thread():
        train_reconstructor(settings.reconstructor, store, folder.unet, on_step=_epochs(tell))
    untrained = make_policy(
        settings.network, seed=settings.seed, n_cols=settings.size, n_rows=settings.size
    )
    policies.save(folder.untrained, untrained)
    for method in METHODS:
        name = "greedy" if method == "greedy" else "non-greedy"
        with stage(f"training the {name} policy") as tell:
            train_policy(
                settings.policy(method),
                store,
                folder.unet,
                folder.policy(method),
                on_step=_epochs(tell),
            )


def evaluate_all(
    settings: DemoSettings, folder: DemoFolder, store: Store, stage: Stage
) -> dict[str, Any]:
    """Run all policies over the test slices; return the summary, an earlier one if it holds."""
    with stage("evaluating all policies on test slices") as tell:
        return reused_evaluation(
            folder.evaluation,
            _inputs(settings, folder, store),
            lambda: evaluate(
                folder.policies,
                folder.store,
                str(folder.unet),
                settings.evaluation,
                out=folder.evaluation,
                on_step=on_evaluation(tell),
            ),
        )


def reused_evaluation(
    folder: Path, inputs: dict[str, Any], run: Callable[[], object]
) -> dict[str, Any]:
    """Return the summary of an evaluation, which is run only where none of these inputs is there.

    Args:
        folder: of the evaluation.
        inputs: JSON values of all that it depends on.
        run: writes results and summary into the folder.
    """
    inputs = json.loads(json.dumps(inputs))
    file = folder / INPUTS
    if not _is_kept(folder, inputs):
        file.unlink(missing_ok=True)
        run()
        # Last, so that an evaluation cut short is not taken for a whole one.
        write_json(file, inputs)
    return read_evaluation(folder).summary


def on_evaluation(tell: OnProgress) -> Callable[[dict[str, Any]], None]:
    """Return an evaluation's callback that tells what it is at."""
    return lambda record: tell(record["done"], record["total"], _words(record))


def record_acquisition(
    settings: DemoSettings, folder: DemoFolder, store: Store, stage: Stage
) -> None:
    """Keep one slice as several policies acquire it, for the player of the page."""
    with stage("recording one slice, step by step") as tell:
        slices = store.split("test")
        place = typical_slice(folder.evaluation)
        own = slices.subset(torch.tensor([place]))
        found = reconstruction.load(folder.unet)
        plan = replace(settings.evaluation.plan, n_trajectories=1)
        sizes = Sizes(settings.size, settings.size, settings.n_initial, settings.horizon)
        wanted = [str(folder.policy(REFERENCE)), *_PLAYED]
        steps = []
        for number, name in enumerate(wanted, start=1):
            (entrant,) = resolve(name, sizes, seeds=(settings.seed,))
            ((_, done),) = trajectories(entrant.policy, own, found, plan, keep_images=True)
            steps.append(steps_of(entrant.name, done, is_oracle=entrant.is_oracle))
            tell(number, len(wanted), entrant.name)
        start = center_mask(settings.size, settings.n_initial).nonzero()[:, 0].tolist()
        save_acquisition(
            Acquisition(_target(own), tuple(start), tuple(steps), _title(own, settings)),
            folder.acquisition,
        )


def steps_of(
    name: str, trajectory: Trajectory, *, place: int = 0, is_oracle: bool = False
) -> PolicySteps:
    """Take the first trajectory of one slice from a rollout that kept its images.

    Args:
        name: what the policy is called.
        trajectory: of a batch, rolled out with `keep_images`.
        place: of the slice in the batch.
        is_oracle: whether the policy looks at the truth.
    """
    if trajectory.images is None:
        raise DataError(f"the rollout of {name} kept no images; ask for them with keep_images")
    return PolicySteps(
        name=name,
        images=trajectory.images[:, place, 0].float().cpu().numpy(),
        ssim=trajectory.ssim[place, 0].float().cpu().numpy(),
        columns=tuple(trajectory.columns[place, 0].tolist()),
        is_oracle=is_oracle,
    )


def typical_slice(evaluation: Path, policy: str = REFERENCE, other: str = CLAIMED[0]) -> int:
    """Return the evaluated slice on which the lead of one policy over another is the median."""
    final = {
        scores.policy: scores.metric("ssim")[:, -1]
        for scores in read_scores(evaluation)
        if scores.policy in (policy, other)
    }
    lead = final[policy] - final[other]
    return int(np.argsort(lead, kind="stable")[len(lead) // 2])


def _target(slices: SliceSet) -> np.ndarray:
    return np.asarray(slices.batch(torch.tensor([0])).target[0])


def _title(slices: SliceSet, settings: DemoSettings) -> str:
    return (
        f"Test knee {slices.volumes[0]}, slice {slices.slices[0]}, protocol "
        f"{settings.evaluation.plan.protocol}: of all test slices, the one on which the lead of "
        f"{REFERENCE} over {CLAIMED[0]} is the median"
    )


def _inputs(settings: DemoSettings, folder: DemoFolder, store: Store) -> dict[str, Any]:
    """Return all that the evaluation depends on."""
    runs = [folder.unet, *(folder.policy(method) for method in METHODS)]
    files = [*(run / WEIGHTS_NAME for run in runs), folder.untrained]
    return {
        "version": version("kscout"),
        "store": store.fingerprint,
        "setting": asdict(settings.evaluation),
        "policies": [Path(policy).name for policy in folder.policies],
        "weights": {str(file.relative_to(folder.path)): checksum(file) for file in files},
    }


def _is_kept(folder: Path, inputs: dict[str, Any]) -> bool:
    files = (folder / INPUTS, folder / RESULTS, folder / SUMMARY)
    if not all(file.is_file() for file in files):
        return False
    return bool(json.loads((folder / INPUTS).read_text(encoding="utf-8")) == inputs)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute in one thread: this network's steps are so short that a second one mostly waits.

    Where others use the machine too, waiting for each other takes several times the work itself.
    """
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)


def _epochs(tell: OnProgress) -> Callable[[Progress], None]:
    """Return a training's callback that tells optimizer steps over all epochs."""
    words = "starting"

    def on_step(progress: Progress) -> None:
        nonlocal words
        if progress.record:
            words = f"validation SSIM {progress.record['val_ssim']:.4f}"
        done = (progress.epoch - 1) * progress.n_steps + progress.step
        tell(done, progress.n_epochs * progress.n_steps, words)

    return on_step


def _words(record: dict[str, Any]) -> str:
    return f"fitting {record['fitting']}" if "fitting" in record else str(record["policy"])
