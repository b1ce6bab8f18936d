"""Reconstructions of a store, volume by volume, as files of fastMRI (HDF5), NIfTI or DICOM."""

import gzip
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, final

import h5py
import numpy as np
import torch
from jaxtyping import Bool, Float32

from kscout import reconstruction
from kscout.acquisition.plan import Plan
from kscout.apps.export.order import central_budget, policy_of
from kscout.apps.export.parameters import ExportSetting
from kscout.compatibility import Use, network_notes, policy_notes, warn
from kscout.core import Policy, Reconstructor
from kscout.data.manifest import VolumeRecord
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.device import resolve_device
from kscout.errors import ConfigError, needs_extra
from kscout.evaluation.progress import OnStep, Step
from kscout.evaluation.running.trajectories import check_fits, check_start, n_at_once, trajectories
from kscout.files import check_free_of, written_whole
from kscout.names import ImageFormat
from kscout.physics.sampling import start_mask
from kscout.weights import fingerprint

_SECONDARY_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"
_LEVELS = 65535


@final
@dataclass(frozen=True)
class ExportedVolume:
    """The content of the files of one volume."""

    images: Float32[np.ndarray, "slice row col"]
    masks: Bool[np.ndarray, "slice col"]
    """Measured columns of each image."""
    record: VolumeRecord
    about: Mapping[str, str]
    """Description of the reconstruction and the policy."""

    @property
    def spacing_mm(self) -> tuple[float, float] | None:
        """Distance of rows, and of columns; None if unknown."""
        geometry = self.record.geometry
        return None if geometry is None else geometry.stored_mm

    @property
    def slice_mm(self) -> float | None:
        """Distance of neighboring slices; None if unknown or not constant."""
        geometry, steps = self.record.geometry, set(np.diff(self.record.slices).tolist())
        known = None if geometry is None else geometry.slice_mm
        if known is None or len(steps) > 1:
            return None
        return known * (steps.pop() if steps else 1)

    @property
    def summary(self) -> str:
        return f"kscout: {self.about['reconstruction']}, {self.about['policy']}; research only"


def write_fastmri(path: Path, volume: ExportedVolume) -> None:
    """Write `reconstruction`, slice x row x column, in the format of fastMRI's evaluation."""
    with written_whole(path) as aside, h5py.File(aside, "w") as file:
        file.create_dataset("reconstruction", data=volume.images)
        file.create_dataset("mask", data=volume.masks)
        file.create_dataset("slices", data=np.array(volume.record.slices, dtype=np.int64))
        file.attrs["acquisition"] = volume.record.acquisition
        file.attrs["max"] = float(volume.images.max())
        file.attrs["norm"] = float(np.linalg.norm(volume.images))
        file.attrs["kscout"] = json.dumps(dict(volume.about))


def write_nifti(path: Path, volume: ExportedVolume) -> None:
    """Write an axial stack in radiological view, as `kscout data import` reads it."""
    with needs_extra(f"writing {path}", "formats"):
        import nibabel
    rows_mm, cols_mm = volume.spacing_mm or (1.0, 1.0)
    data = np.ascontiguousarray(volume.images[:, ::-1, ::-1].transpose(2, 1, 0))
    slice_mm = volume.slice_mm or 1.0
    image = nibabel.Nifti1Image(data, np.diag([cols_mm, rows_mm, slice_mm, 1.0]))
    image.header.set_xyzt_units("mm")
    image.header["descrip"] = volume.summary.encode("ascii", "replace")[:79]
    with written_whole(path) as aside:
        # Without a time stamp, so that equal images give equal files.
        aside.write_bytes(gzip.compress(image.to_bytes(), mtime=0))


def write_dicom(folder: Path, volume: ExportedVolume) -> None:
    """Write a series of secondary captures, one file per slice, in 16 bit with a common scale."""
    with needs_extra(f"writing {folder}", "formats"):
        import pydicom
    low = min(0.0, float(volume.images.min()))
    # Rounded to the decimal in the file, and large enough that the maximum does not overflow.
    scale = (float(volume.images.max()) - low) / _LEVELS
    low, slope = (float(_decimal(x * (1 + 1e-6))) for x in (low, scale or 1.0))
    study, series = (_uid(pydicom, volume, word) for word in ("study", "series"))
    for image, number in zip(volume.images, volume.record.slices, strict=True):
        data = _capture(pydicom, volume, image.shape)
        data.StudyInstanceUID, data.SeriesInstanceUID = study, series
        data.SOPInstanceUID = _uid(pydicom, volume, f"slice {number}")
        data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID
        data.InstanceNumber, data.RescaleType = number + 1, "US"
        data.RescaleIntercept, data.RescaleSlope = _decimal(low), _decimal(slope)
        data.WindowCenter = _decimal(low + slope * _LEVELS / 2)
        data.WindowWidth = _decimal(slope * _LEVELS)
        levels = np.clip(np.rint((image - low) / slope), 0, _LEVELS)
        data.PixelData = levels.astype("<u2").tobytes()
        with written_whole(folder / f"{number:04d}.dcm") as aside:
            data.save_as(aside, enforce_file_format=True)


def _capture(pydicom: ModuleType, volume: ExportedVolume, shape: tuple[int, ...]) -> Any:  # noqa: ANN401 - a dataset of pydicom
    data = pydicom.Dataset()
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = _SECONDARY_CAPTURE
    data.Modality, data.ConversionType = "MR", "WSD"
    data.PatientName, data.PatientID, data.PatientBirthDate, data.PatientSex = "", "", "", ""
    data.StudyDate, data.StudyTime, data.StudyID, data.AccessionNumber = "", "", "", ""
    data.ReferringPhysicianName, data.SeriesNumber = "", 1
    data.ImageType = ["DERIVED", "SECONDARY"]
    data.Manufacturer, data.SeriesDescription = "kscout", _short(volume.record.acquisition)
    data.StudyDescription, data.DerivationDescription = _short(volume.record.volume), volume.summary
    data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
    data.Rows, data.Columns = shape
    data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 16, 16, 15, 0
    if volume.spacing_mm is not None:
        data.PixelSpacing = [f"{step:.9g}" for step in volume.spacing_mm]
    if volume.slice_mm is not None:
        data.SpacingBetweenSlices = f"{volume.slice_mm:.9g}"
    return data


def _decimal(value: float) -> str:
    """Return a number in at most 16 characters, the limit of DICOM."""
    return f"{value:.8e}"


def _short(text: str) -> str:
    """Return a text reduced to the characters and length of a DICOM description."""
    plain = "".join(c if c.isascii() and c.isprintable() and c != "\\" else "_" for c in text)
    return plain[:64]


def _uid(pydicom: ModuleType, volume: ExportedVolume, word: str) -> str:
    facts = [volume.record.split, volume.record.volume, *volume.about.values(), word]
    return str(pydicom.uid.generate_uid(entropy_srcs=[str(fact) for fact in facts]))


WRITERS: Mapping[ImageFormat, Callable[[Path, ExportedVolume], None]] = {
    "fastmri": write_fastmri,
    "nifti": write_nifti,
    "dicom": write_dicom,
}
SUFFIXES: Mapping[ImageFormat, str] = {"fastmri": ".h5", "nifti": ".nii.gz", "dicom": ""}
"""A DICOM series is a folder."""


def export_store(
    store: Path, out: Path, setting: ExportSetting, on_step: OnStep | None = None
) -> list[Path]:
    """Write the reconstructions of a split, one volume per file; return their descriptions.

    Images are in the reconstruction's own units, as in a session: they do not depend on the ground
    truth. Without a policy all measured columns are used; an undersampled dataset allows no policy.
    """
    check_free_of(out, "dataset", "run", "campaign")
    plan = _plan(setting)
    opened, network = Store.open(store), reconstruction.load(setting.reconstructor)
    about = {"store": opened.name, "reconstruction": type(network).__name__}
    about |= {"weights": fingerprint(network), "policy": setting.policy or "all measured columns"}
    written: list[Path] = []
    n_volumes = sum(record.split == setting.split for record in opened.manifest.volumes)
    _check(_parts(opened, setting, plan), network, setting.policy, plan)
    for slices, chosen in _parts(opened, setting, plan):
        _, n_rows, n_cols = slices.shape
        view = network.frozen(precision="auto", n_rows=n_rows, n_cols=n_cols, device=slices.device)
        for record in opened.records(setting.split, (n_rows, n_cols)):
            images, masks = _reconstructed(slices.of_volumes(record.volume), view, chosen, plan)
            volume = ExportedVolume(images, masks, record, about)
            name = _name(record.volume, SUFFIXES[setting.format], {path.name for path in written})
            WRITERS[setting.format](out / name, volume)
            written.append(out / name)
            if on_step is not None:
                on_step(Step("reconstructing, volume by volume", len(written), n_volumes))
    return written


def _plan(setting: ExportSetting) -> Plan:
    """Return the plan; its budget is that of the policy's training, if none is given."""
    policy, n_initial, steps = setting.policy, setting.n_initial, setting.steps
    if policy is None and (n_initial, steps) != (None, None):
        raise ConfigError("--n-initial and --steps only apply to a policy; also give --policy")
    if policy is not None and None in (n_initial, steps):
        trained = central_budget(policy)
        n_initial = trained[0] if n_initial is None else n_initial
        steps = trained[1] if steps is None else steps
    return Plan(
        n_initial or 0,
        steps or 0,
        seed=setting.seed or 0,
        is_argmax=setting.argmax,
        protocol="blind",
        batch_size=setting.batch_size,
    )


def _parts(
    store: Store, setting: ExportSetting, plan: Plan
) -> Iterator[tuple[SliceSet, Policy | None]]:
    """Yield the slices of each matrix size of a split, and the policy for them."""
    policy = setting.policy
    open_split = store.measured if policy is None else store.split
    arrays = [array for array in store.manifest.arrays if array.split == setting.split]
    for size in [array.size for array in arrays or [store.array(setting.split)]]:
        slices = open_split(setting.split, size=size).to(resolve_device(setting.device))
        chosen = None
        if policy is not None:
            sizes = {"n_initial": plan.n_initial, "horizon": plan.horizon}
            chosen = policy_of(policy, n_cols=slices.n_cols, **sizes)
            if chosen.needs_target:
                raise ConfigError(f"{policy} uses the ground truth; give a policy that does not")
        yield slices, chosen


def _check(
    parts: Iterable[tuple[SliceSet, Policy | None]],
    network: Reconstructor,
    policy: str | None,
    plan: Plan,
) -> None:
    """Raise an error before the first file: a later volume may lack columns that the first has."""
    notes: list[str] = []
    for slices, chosen in parts:
        start, use = slices.selectable, Use(slices.shape, plan.n_initial, plan.horizon, "blind")
        if chosen is not None:
            check_fits(chosen, slices, plan, name=policy)
            start = start_mask(plan.start, start.shape, slices.device)
        check_start(slices, network.to(slices.device), start)
        notes += network_notes(network, use)
        if policy is not None and chosen is not None:
            notes += policy_notes([(policy, chosen)], network, replace(use, protocol=None))
    warn(dict.fromkeys(notes))


@torch.no_grad()
def _reconstructed(
    slices: SliceSet, view: Reconstructor, policy: Policy | None, plan: Plan
) -> tuple[Float32[np.ndarray, "slice row col"], Bool[np.ndarray, "slice col"]]:
    images, masks = [], []
    if policy is None:
        for batch in slices.batches(n_at_once(plan, slices)):
            output = view(batch.kspace, batch.selectable)
            images.append(batch.unnormalized(output, "blind"))
            masks.append(batch.selectable)
    else:
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
