"""Reconstructions of a store, volume by volume, as files for other programs."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float32

from kscout import reconstruction
from kscout.acquisition.plan import Plan, check_budget
from kscout.apps.export.image_files import SUFFIXES, WRITERS, ExportedVolume
from kscout.apps.export.order import central_budget, policy_of
from kscout.apps.export.parameters import ExportSetting
from kscout.compatibility import Use, network_notes, policy_notes, warn
from kscout.core import Policy, Reconstructor
from kscout.data.manifest import VolumeRecord
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.device import resolve_device
from kscout.errors import ConfigError
from kscout.evaluation.progress import OnStep, Step
from kscout.evaluation.running.trajectories import check_fits, check_start, n_at_once, trajectories
from kscout.files import check_free_of
from kscout.physics.sampling import start_mask
from kscout.weights import fingerprint


def export_store(
    store: Path,
    out: Path,
    setting: ExportSetting,
    *,
    reconstructor: str,
    policy: str | None = None,
    on_step: OnStep | None = None,
) -> list[Path]:
    """Write the reconstructions of a split, one volume per file; return their descriptions.

    Images are in the reconstruction's own units, as in a session: they do not depend on the
    ground truth.

    Without a policy all measured columns are used; an undersampled dataset allows no policy.
    """
    check_free_of(out, "dataset", "run", "campaign")
    setting = _with_budget(setting, policy)
    opened, network = Store.open(store), reconstruction.load(reconstructor)
    about = {"store": opened.name, "reconstruction": type(network).__name__}
    about |= {"weights": fingerprint(network), "policy": policy or "all measured columns"}
    sizes = {"n_initial": setting.n_initial or 0, "horizon": setting.steps or 0}
    choose = None if policy is None else cache(partial(_without_truth, policy, **sizes))
    written: list[Path] = []
    n_volumes = sum(record.split == setting.split for record in opened.manifest.volumes)
    _check(opened, network, policy, choose, setting)
    for record, slices in _volumes(opened, setting, is_scored=policy is not None):
        images, masks = _reconstructed(slices, network, choose, setting)
        volume = ExportedVolume(images, masks, record, about)
        name = _name(record.volume, SUFFIXES[setting.format], {path.name for path in written})
        WRITERS[setting.format](out / name, volume)
        written.append(out / name)
        if on_step is not None:
            on_step(Step("reconstructing, volume by volume", len(written), n_volumes))
    return written


def _check(
    store: Store,
    network: Reconstructor,
    policy: str | None,
    choose: Callable[..., Policy] | None,
    setting: ExportSetting,
) -> None:
    """Raise an error before the first file: a later volume may lack columns that the first has."""
    n_initial, horizon, notes = setting.n_initial or 0, setting.steps or 0, list[str]()
    for slices in _sizes(store, setting, is_scored=policy is not None):
        start = slices.selectable if policy is None else n_initial
        check_budget(slices.selectable, n_initial=start, horizon=horizon)
        check_start(slices, network.to(slices.device), start)
        use = Use(slices.shape, n_initial, horizon, "blind")
        notes += network_notes(network, use)
        if policy is not None and choose is not None:
            chosen = choose(n_cols=slices.n_cols)
            check_fits(chosen, slices, _plan(setting), name=policy, network=network)
            notes += policy_notes([(policy, chosen)], network, replace(use, protocol=None))
    warn(dict.fromkeys(notes))


def _without_truth(given: str, **sizes: int) -> Policy:
    """Return a policy that does not use the ground truth."""
    policy = policy_of(given, **sizes)
    if policy.needs_target:
        raise ConfigError(f"{given} uses the ground truth; give a policy that does not")
    return policy


def _with_budget(setting: ExportSetting, policy: str | None) -> ExportSetting:
    """Return a setting with the budget of the policy's training, if none is given."""
    budget = (setting.n_initial, setting.steps)
    if policy is None and budget != (None, None):
        raise ConfigError("--n-initial and --steps only apply to a policy; also give --policy")
    if policy is None or None not in budget:
        return setting
    n_initial, steps = central_budget(policy)
    n_initial = n_initial if budget[0] is None else budget[0]
    return replace(setting, n_initial=n_initial, steps=steps if budget[1] is None else budget[1])


def _volumes(
    store: Store, setting: ExportSetting, *, is_scored: bool
) -> Iterator[tuple[VolumeRecord, SliceSet]]:
    for slices in _sizes(store, setting, is_scored=is_scored):
        for record in store.records(setting.split, slices.shape[1:]):
            yield record, slices.of_volumes(record.volume)


def _sizes(store: Store, setting: ExportSetting, *, is_scored: bool) -> Iterator[SliceSet]:
    open_split = store.split if is_scored else store.measured
    arrays = [array for array in store.manifest.arrays if array.split == setting.split]
    for size in [array.size for array in arrays or [store.array(setting.split)]]:
        yield open_split(setting.split, size=size).to(resolve_device(setting.device))


@torch.no_grad()
def _reconstructed(
    slices: SliceSet,
    network: Reconstructor,
    choose: Callable[..., Policy] | None,
    setting: ExportSetting,
) -> tuple[Float32[np.ndarray, "slice row col"], Bool[np.ndarray, "slice col"]]:
    _, n_rows, n_cols = slices.shape
    view = network.frozen(precision="auto", n_rows=n_rows, n_cols=n_cols, device=slices.device)
    images, masks, plan = [], [], _plan(setting)
    if choose is None:
        for batch in slices.batches(n_at_once(plan, slices)):
            output = view(batch.kspace, batch.selectable)
            images.append(batch.unnormalized(output, "blind"))
            masks.append(batch.selectable)
    else:
        policy = choose(n_cols=n_cols)
        for batch, done in trajectories(policy, slices, view, plan, keep_images=True):
            assert done.images is not None
            images.append(done.images[-1, :, 0].float())
            start = start_mask(plan.start, batch.selectable.shape, slices.device)
            masks.append(start.scatter(-1, done.columns[:, 0], True))
    return torch.cat(images).cpu().numpy(), torch.cat(masks).cpu().numpy()


def _name(volume: str, suffix: str, others: set[str]) -> str:
    """Return a unique file name for a volume, inside the folder."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", volume).strip(".") or "volume"
    for known in (".nii.gz", ".nii", ".h5", ".hdf5", ".npy", ".npz", ".dcm", ".mrd", ".cfl"):
        plain = plain.removesuffix(known) or "volume"
    plain, number = plain[:100], 1
    while (name := f"{plain}{'' if number == 1 else f'-{number}'}{suffix}") in others:
        number += 1
    return name


def _plan(setting: ExportSetting) -> Plan:
    return Plan(
        setting.n_initial or 0,
        setting.steps or 0,
        seed=setting.seed or 0,
        is_argmax=setting.argmax,
        protocol="blind",
        batch_size=setting.batch_size,
    )
