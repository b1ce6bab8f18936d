"""The stages of the demo, each of which goes on from, or reuses, what an earlier run left."""

import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import final

import numpy as np
import torch

from kscout import reconstruction
from kscout.compressed import plain_checksum
from kscout.data.generate import make_store
from kscout.data.makers.parallel import interrupts_held
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.demo.oracles import read_stored
from kscout.demo.settings import (
    LEARNED,
    ORACLES,
    SHOWN_BASELINE,
    ZOO_SIZE,
    ZOO_UNET,
    DemoFolder,
    DemoSettings,
    PaperSize,
    ZooAcquisition,
)
from kscout.errors import KScoutError
from kscout.evaluation.compare import EvaluationSetting, evaluate
from kscout.evaluation.progress import Step
from kscout.evaluation.records.acquisitions import Acquisition
from kscout.evaluation.records.examples import Example
from kscout.evaluation.records.results import RESULTS, Scores, read_scores
from kscout.evaluation.running.fixed_orders import ORDERS
from kscout.evaluation.running.prepare import Prepared
from kscout.evaluation.running.recording import Columns, columns_of, replayed
from kscout.evaluation.running.trajectories import AcquisitionPlan
from kscout.evaluation.statistics import confidence_interval
from kscout.evaluation.summaries.summary import SUMMARY, Difference, Summary, read_summary
from kscout.files import read_record, write_json
from kscout.runs import DONE, Progress
from kscout.training.joint.train import train_joint
from kscout.training.policy import train_policy
from kscout.training.reconstructor import train_reconstructor
from kscout.weights import WEIGHTS_NAME
from kscout.zoo import zoo_path

OnProgress = Callable[[int, int, str], None]
"""Called with what is done, of how much, and a few words."""
Stage = Callable[[str], AbstractContextManager[OnProgress]]
"""Opens a stage by its title; what it yields is told of progress."""

CHOOSERS = {"fixed": "a fixed order", "dense": "a policy"}
"""What a sampler is, in words."""
INPUTS = "inputs.json"
"""In the folder of an evaluation: what it was made from."""


@contextmanager
def silent(_: str) -> Iterator[OnProgress]:
    """Open a stage that tells nobody."""
    yield lambda done, total, words: None


def lead_all(settings: DemoSettings, folder: DemoFolder, stage: Stage) -> Summary:
    """Run the zoo's policy and the fixed order on knees drawn anew: the page's first sentence."""
    zoo, one = settings.paper_size, settings.paper_size.acquisitions[0]
    with stage(f"drawing {zoo.n_unseen} unseen knees of {ZOO_SIZE}x{ZOO_SIZE}") as tell:
        store = make_store(folder.unseen, zoo.unseen(settings.seed), on_volume=tell)
    with stage("running a policy of the zoo and the fixed order on them") as tell:
        return evaluated(one.pair, store, ZOO_UNET, zoo.lead, folder.lead, _shipped(one), tell)


def _shipped(one: ZooAcquisition) -> dict[str, Path]:
    """Return the zoo's weights of an acquisition by name."""
    files = {name: zoo_path(name) for name in (ZOO_UNET, *one.policies.values())}
    # A file or folder of that name in the working directory goes before the zoo's.
    return {name: path for name, path in files.items() if path is not None}


def train_unet(settings: DemoSettings, folder: DemoFolder, store: Store, stage: Stage) -> None:
    """Train what all policies of the demo's own choose columns for."""
    with stage("training a small U-Net on random columns") as tell, _one_thread():
        train_reconstructor(settings.reconstructor, store, folder.unet, on_step=_epochs(tell))


def claim_all(settings: DemoSettings, folder: DemoFolder, store: Store, stage: Stage) -> Summary:
    """Train a policy on the U-Net, run it beside others: all that the claim needs."""
    where = (store, folder.unet, folder.policy)
    with stage("training a policy to choose columns for it") as tell, _one_thread():
        train_policy(settings.policy, *where, on_step=_epochs(tell))
    with stage("running policies on unseen knees") as tell:
        wanted, setting = folder.policies, settings.evaluation
        used = _weights(folder.unet, folder.policy)
        return evaluated(wanted, store, folder.unet, setting, folder.evaluation, used, tell)


def bound(settings: DemoSettings, folder: DemoFolder, store: Store, tell: OnProgress) -> None:
    """Run the oracle on a few of the test slices, for the player and as a bound."""
    # The order that was fitted for all slices is that of the few.
    shutil.copytree(folder.evaluation / ORDERS, folder.headroom / ORDERS, dirs_exist_ok=True)
    wanted, used = folder.bounded, _weights(folder.unet, folder.policy)
    evaluated(wanted, store, folder.unet, settings.headroom, folder.headroom, used, tell)


@contextmanager
def trained_beside(settings: DemoSettings, folder: DemoFolder) -> Iterator[None]:
    """Train the U-Net together with a policy in another process: steps are short for two threads.

    Whatever becomes of that process, `pair_all` goes on from what it left.
    """
    # Where the parts take seconds, a process would begin when they are done.
    if settings.is_quick or (folder.pairs[LEARNED] / DONE).exists():
        yield
        return
    beside = get_context("spawn").Process(target=_train_pair, args=(settings, folder.path))
    with interrupts_held():
        beside.start()
    try:
        yield
        beside.join()
    finally:
        beside.terminate()
        beside.join()


def _train_pair(settings: DemoSettings, out: Path) -> None:
    """Do what `pair_all` would do first; ends with the process that asked for it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    folder = DemoFolder(out)
    run, store = folder.pairs[LEARNED], Store.open(folder.store)
    # What goes wrong is told where `pair_all` meets it.
    with _one_thread(), suppress(KScoutError):
        train_joint(settings.joint(LEARNED), store, run, start=folder.unet)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def pair_all(settings: DemoSettings, folder: DemoFolder, store: Store, stage: Stage) -> None:
    """Train the U-Net together with each of the samplers, and run them."""
    for sampler, run in folder.pairs.items():
        with stage(f"training the U-Net together with {CHOOSERS[sampler]}") as tell:
            joint = settings.joint(sampler)
            train_joint(joint, store, run, start=folder.unet, on_step=_epochs(tell))
        with stage(f"running what learned together with {CHOOSERS[sampler]}") as tell:
            where = (settings.evaluation, folder.joint[sampler], _weights(run))
            evaluated(folder.paired(sampler), store, run, *where, tell)


def _weights(*runs: Path) -> dict[str, Path]:
    return {run.name: run / WEIGHTS_NAME for run in runs}


def evaluated(
    wanted: Sequence[str],
    store: Store,
    reconstructor: Path | str,
    setting: EvaluationSetting,
    out: Path,
    files: Mapping[str, Path],
    tell: OnProgress = lambda done, total, words: None,
) -> Summary:
    """Evaluate policies, or read the evaluation of the same inputs if it is there.

    Args:
        wanted: policies, as `evaluate` takes them.
        store: its test slices are evaluated.
        reconstructor: as `evaluate` takes it.
        setting: how policies are run.
        out: folder of the evaluation.
        files: weights that decide the scores, by name.
        tell: called with progress.
    """
    inputs = {
        "version": version("kscout"),
        "store": store.fingerprint,
        "setting": asdict(setting),
        "policies": [Path(policy).name for policy in wanted],
        "weights": {name: plain_checksum(file) for name, file in files.items()},
    }
    inputs = json.loads(json.dumps(inputs))
    kept = out / INPUTS
    is_whole = all(file.is_file() for file in (kept, out / RESULTS, out / SUMMARY))
    if not is_whole or read_record(kept) != inputs:
        kept.unlink(missing_ok=True)
        with _notes_on_the_page():
            evaluate(
                *(wanted, store.path, str(reconstructor), setting),
                out=out,
                overwrite=True,
                on_step=_evaluating(tell),
            )
        # Last, so that an evaluation cut short is not taken for a whole one.
        write_json(kept, inputs)
    return read_summary(out)


def typical_slice(evaluation: Path, policy: str, other: str) -> int:
    """Return the evaluated slice on which the lead of one policy over another is the median."""
    final = {one.policy: one.metric("ssim")[:, -1] for one in read_scores(evaluation)}
    lead = final[policy] - final[other]
    return int(np.argsort(lead, kind="stable")[len(lead) // 2])


def lead_over(evaluation: Path, policy: str, other: str, base: Path | None = None) -> Difference:
    """Return how far a policy ends above another, paired by slice.

    Args:
        evaluation: folder that has the policy.
        policy: its name there.
        other: the other's name.
        base: folder that has the other on the same slices; the same one where not given.
    """
    one = {each.policy: each for each in read_scores(evaluation)}[policy]
    reference = {each.policy: each for each in read_scores(base or evaluation)}[other]
    lead = one.metric("ssim")[:, -1] - reference.metric("ssim")[:, -1]
    return Difference(float(lead.mean()), confidence_interval(lead, one.volumes))


@final
@dataclass(frozen=True)
class ZooRun:
    """What policies of the zoo did under one acquisition."""

    acquisition: ZooAcquisition
    fingerprint: str
    """Of the store that the slices come from."""
    summary: Summary
    scores: list[Scores] = field(repr=False)
    zero_filled: Scores = field(repr=False)
    """Of images without a network, columns from the center outwards."""
    examples: list[Example] = field(repr=False)
    """One slice: zero-filled, then center-out and the zoo's policies."""
    played: Acquisition = field(repr=False)
    """The same slice step by step, the stored oracle beside where it is of this slice."""


def run_zoo(
    one: ZooAcquisition, settings: PaperSize, folder: DemoFolder, store: Store, tell: OnProgress
) -> ZooRun:
    """Run the zoo's policies on a few unseen knees; nothing is trained."""
    out, plain = folder.zoo(one.name), folder.zoo(one.name, is_zero_filled=True)
    setting = settings.evaluation(one)
    compared = replace(setting, reference=one.reference)
    summary = evaluated(one.wanted, store, ZOO_UNET, compared, out, _shipped(one), tell)
    evaluated([SHOWN_BASELINE], store, "zero-filled", setting, plain, {})
    scores, stored = read_scores(out), read_stored(one.name)
    place = typical_slice(out, one.told, one.reference)
    (columns,) = columns_of(out, summary.ranked, scores, [place])
    own = (store.split("test").sample(settings.limit), place, setting.plan)
    if stored is not None and stored.check(store.fingerprint, scores[0])[0]:
        columns |= {name: [[], *([x] for x in stored.columns[place])] for name in ORACLES}
    played = _played(ZOO_UNET, *own, columns)
    simple = _played("zero-filled", *own, {SHOWN_BASELINE: columns[SHOWN_BASELINE]})
    where = (scores[0].volumes[place], scores[0].slices[place])
    pictures = [_picture(simple, SHOWN_BASELINE, *where)]
    pictures += [_picture(played, name, *where) for name in (SHOWN_BASELINE, *one.policies)]
    found = (summary, scores, read_scores(plain)[0], pictures, played)
    return ZooRun(one, store.fingerprint, *found)


def _played(
    name: str, slices: SliceSet, place: int, plan: AcquisitionPlan, columns: Columns
) -> Acquisition:
    """Measure a slice again as policies acquired it, the oracle perhaps earlier and elsewhere.

    Args:
        name: of the reconstruction.
        slices: among which the slice is.
        place: its place there.
        plan: start and protocol.
        columns: what policies acquired of it.
    """
    _, n_rows, n_cols = slices.shape
    sizes = {"n_rows": n_rows, "n_cols": n_cols}
    frozen = reconstruction.load(name).frozen(precision="auto", device="cpu", **sizes)
    return replayed(slices, place, frozen, plan, columns, oracles=ORACLES)


def _picture(found: Acquisition, name: str, volume: str, number: int) -> Example:
    """Return the end of one policy's acquisition."""
    (own,) = (policy for policy in found.policies if policy.name == name)
    mask = np.zeros(found.target.shape[-1], dtype=bool)
    mask[[*found.start_columns, *own.columns]] = True
    ssim = float(own.ssim[-1])
    return Example(name, 0, volume, number, mask, own.images[-1], found.target, ssim)


@contextmanager
def _notes_on_the_page() -> Iterator[None]:
    """Print no notes: summaries keep them, and that the zoo meets other knees is the point here."""
    logger = logging.getLogger(Prepared.__module__)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


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


def _evaluating(tell: OnProgress) -> Callable[[Step], None]:
    """Return an evaluation's callback that tells what it is at."""
    return lambda step: tell(step.done, step.total, step.what)
