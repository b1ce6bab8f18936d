"""Exported reconstructions are those of sessions, and are read back from every format."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import nibabel
import numpy as np
import pydicom
import pytest
import torch
from typer.testing import CliRunner

from coil_data import coil_kspace, coil_store, imported
from dicom_files import write_dicom
from kscout.acquisition import Advisor, Scan, Session
from kscout.apps.cli import app
from kscout.apps.export.volumes import ExportedVolume, _name
from kscout.data import ImportSettings, import_folder
from kscout.data.kinds import IMAGES, KSPACE
from kscout.data.manifest import Geometry, VolumeRecord
from kscout.data.store import Store
from kscout.data.store_writer import StoreWriter
from kscout.errors import ConfigError, DataError, KScoutError, RunError
from kscout.policies import save
from kscout.policies.fixed import CenterOut, FixedOrder
from kscout.reconstruction import load
from kscout.reconstruction.zero_filled import ZeroFilled
from mrd_files import lines, write

SIZE = (9, 14)


def run(store: Path, out: Path, format_: str, *words: object) -> Any:
    given = ["data", "export", store, "--out", out, "--json", "--format", format_]
    given += [] if "--reconstructor" in words else ["--reconstructor", "zero-filled"]
    given += words
    result = CliRunner().invoke(app, [str(word) for word in given])
    if result.exception is not None:
        raise result.exception
    return [Path(file) for file in json.loads(result.stdout)["files"]]


def image_store(path: Path) -> Store:
    draw = np.random.default_rng(0)
    with StoreWriter(path, {"made by": "tests"}, kind=IMAGES) as writer:
        for name in ("../a b.h5", "..", "c"):
            writer.append("test", name, draw.random((2, *SIZE), dtype=np.float32))
        return writer.finish()


def expected(kspace: torch.Tensor, n_initial: int, steps: int) -> np.ndarray:
    """Return the image of a session that takes its columns from the center outwards."""
    n_coils, n_rows, n_cols = kspace.shape
    scan = Scan(
        n_rows=n_rows, n_cols=n_cols, n_coils=n_coils, budget=n_initial + steps, initial=n_initial
    )
    with Advisor(ZeroFilled(), CenterOut(n_cols=n_cols)) as advisor:
        session = Session(advisor, scan)
        while columns := session.advise().columns:
            session.measure(columns, kspace[:, :, list(columns)].movedim(-1, 0))
        return session.image().numpy()


POLICY = ("--policy", "center-out", "--n-initial", 3, "--steps", 4, "--batch-size", 2)


@pytest.mark.parametrize("kind", ["images", "kspace"])
def test_fastmri_files_hold_what_sessions_reconstruct(kind: str, tmp_path: Path) -> None:
    store = image_store(tmp_path / "s") if kind == "images" else coil_store(tmp_path / "s")
    files = run(tmp_path / "s", tmp_path / "out", "fastmri", *POLICY)
    slices = store.split("test")
    names = dict(zip(dict.fromkeys(slices.volumes), files, strict=True))
    batch = slices.batch(torch.arange(len(slices)))
    for at, (volume, number) in enumerate(zip(slices.volumes, slices.slices, strict=True)):
        with h5py.File(names[volume]) as file:
            place = file["slices"][()].tolist().index(number)
            found, mask = file["reconstruction"][place], file["mask"][place]
            assert json.loads(file.attrs["kscout"])["policy"] == "center-out"
        np.testing.assert_allclose(found, expected(batch.kspace[at], 3, 4), rtol=1e-4, atol=1e-5)
        center = slices.n_cols // 2
        assert np.flatnonzero(mask).tolist() == list(range(center - 3, center + 4))
    assert all(path.parent == tmp_path / "out" for path in files)


def test_nifti_and_dicom_are_read_back_as_they_were(tmp_path: Path) -> None:
    """All columns are used without a policy, so that images are the targets themselves."""
    store = image_store(tmp_path / "s")
    images = store.split("test").magnitudes().numpy().reshape(3, 2, *SIZE)
    for format_ in ("nifti", "dicom"):
        out = tmp_path / format_
        files = run(tmp_path / "s", out, format_)
        assert [path.name.split(".")[0] for path in files] == ["_a_b", "volume", "c"]
        again = import_folder(out, tmp_path / f"{format_}-again", ImportSettings(held_out=0))
        found = again.split("train").magnitudes().numpy().reshape(3, 2, *SIZE)
        np.testing.assert_allclose(found, images[[0, 2, 1]], atol=2e-5)


def test_dicom_is_a_secondary_capture_that_tells_its_spacing(tmp_path: Path) -> None:
    write(tmp_path / "a.mrd", lines())
    imported(tmp_path / "a.mrd")
    (folder,) = run(tmp_path / "store", tmp_path / "out", "dicom")
    first, second = (pydicom.dcmread(path) for path in sorted(folder.iterdir()))
    assert first.SOPClassUID == pydicom.uid.SecondaryCaptureImageStorage
    assert list(first.PixelSpacing) == [20, 10] and first.SeriesDescription == "gre"
    assert first.SeriesInstanceUID == second.SeriesInstanceUID
    assert first.SOPInstanceUID != second.SOPInstanceUID and second.InstanceNumber == 2
    assert str(first.PatientName) == "" and "research only" in first.DerivationDescription
    image = Store.open(tmp_path / "store").split("test").magnitudes()[0].numpy()
    shown = first.pixel_array * float(first.RescaleSlope) + float(first.RescaleIntercept)
    np.testing.assert_allclose(shown, image, atol=image.max() / 2**15)


@pytest.mark.parametrize("source", ["nifti", "dicom"])
def test_the_distance_of_slices_survives(source: str, tmp_path: Path) -> None:
    stack = np.random.default_rng(0).random((3, *SIZE), dtype=np.float32) * 1000
    (tmp_path / "in").mkdir()
    if source == "nifti":
        image = nibabel.Nifti1Image(stack.transpose(2, 1, 0), np.diag([1.3, 0.9, 4.5, 1]))
        nibabel.save(image, tmp_path / "in" / "a.nii")
    for number, pixels in enumerate(stack if source == "dicom" else []):
        place = {"ImagePositionPatient": [0, 0, 4.5 * number], "PixelSpacing": [0.9, 1.3]}
        place["ImageOrientationPatient"] = [1, 0, 0, 0, 1, 0]
        write_dicom(tmp_path / "in" / f"{number}.dcm", pixels, **place)
    import_folder(tmp_path / "in", tmp_path / "store", ImportSettings(held_out=0))
    (file,) = run(tmp_path / "store", tmp_path / "nifti", "nifti", "--split", "train")
    np.testing.assert_allclose(nibabel.load(file).header.get_zooms(), (1.3, 0.9, 4.5), rtol=1e-6)
    (folder,) = run(tmp_path / "store", tmp_path / "dicom", "dicom", "--split", "train")
    import_folder(folder, tmp_path / "again", ImportSettings(held_out=0))
    (record,) = Store.open(tmp_path / "again").manifest.volumes
    assert record.geometry is not None and record.geometry.slice_mm == 4.5


def test_slices_without_a_constant_distance_have_none(tmp_path: Path) -> None:
    record = VolumeRecord("test", "a", SIZE, (0, 1, 3), 1.0, "a", "", (0, SIZE[1]))
    images, masks = np.ones((3, *SIZE), np.float32), np.ones((3, SIZE[1]), bool)
    for slices, expected_mm in (((0, 1, 3), None), ((1, 3, 5), 9.0), ((7,), 4.5)):
        geometry = Geometry(SIZE, slice_mm=4.5)
        changed = replace(record, slices=slices, geometry=geometry)
        assert ExportedVolume(images, masks, changed, {}).slice_mm == expected_mm


def test_the_same_export_makes_the_same_bytes(tmp_path: Path) -> None:
    image_store(tmp_path / "s")
    for format_ in ("fastmri", "nifti", "dicom"):
        ways = []
        for out in (tmp_path / "a", tmp_path / "b"):
            run(tmp_path / "s", out, format_)
            files = sorted(path for path in out.rglob("*.*") if path.is_file())
            ways.append({path.name: path.read_bytes() for path in files})
        assert ways[0] == ways[1] and ways[0]


def test_a_volume_without_calibration_leaves_no_file_of_those_before(tmp_path: Path) -> None:
    kspace, source = coil_kspace(2, 3, 16, 18, noise=0.01).numpy(), tmp_path / "source" / "test"
    source.mkdir(parents=True)
    for name, gap in (("a", 3), ("b", 9)):
        np.save(source / f"{name}.npy", kspace * (np.arange(18) != gap))
    store = imported(tmp_path / "source", axes=("slice", "coil", "row", "col"), prospective=True)
    with pytest.raises(ConfigError, match="need 8 to 18 central columns, found 0"):
        run(store.path, tmp_path / "out", "nifti", "--reconstructor", "sense")
    assert not (tmp_path / "out").exists()


def test_an_undersampled_store_is_reconstructed_from_what_was_measured(tmp_path: Path) -> None:
    rows = [row for row in lines() if row.head["idx"]["kspace_encode_step_1"] not in (1, 9)]
    store = imported(write(tmp_path / "a.mrd", rows), prospective=True)
    (file,) = run(store.path, tmp_path / "out", "nifti")
    slices = store.measured("test")
    batch = slices.batch(torch.arange(len(slices)))
    found = load("zero-filled")(batch.kspace, batch.selectable)
    image = nibabel.load(file)
    np.testing.assert_allclose(image.header.get_zooms(), (10, 20, 1))
    shown = image.get_fdata().transpose(2, 1, 0)[:, ::-1, ::-1]
    np.testing.assert_allclose(shown, batch.unnormalized(found, "blind").numpy(), rtol=1e-5)
    with pytest.raises(DataError, match="undersampled"):
        run(store.path, tmp_path / "x", "nifti", *POLICY)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "random"], "--n-initial and --steps"),
        (["--policy", "oracle", "--n-initial", 4, "--steps", 3], "oracle uses the ground truth"),
        (["--steps", 3], "only apply to a policy"),
        (["--split", "x"], "no split 'x'"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    words: list[object], message: str, tmp_path: Path
) -> None:
    coil_store(tmp_path / "s")
    with pytest.raises(KScoutError, match=message):
        run(tmp_path / "s", tmp_path / "o", "nifti", *words)
    assert not (tmp_path / "o").exists()
    with pytest.raises(RunError, match="another product, a dataset"):
        run(tmp_path / "s", tmp_path / "s", "nifti")
    with pytest.raises(SystemExit):
        run(tmp_path / "s", tmp_path / "o", "png")


def test_no_file_is_written_where_a_later_volume_lacks_columns_of_the_start(tmp_path: Path) -> None:
    kspace = coil_kspace(2, 1, 18, 20).numpy()
    with StoreWriter(tmp_path / "s", {"made by": "tests"}, kind=KSPACE) as writer:
        writer.append("test", "a", kspace)
        writer.append("test", "b", kspace, selectable=(8, 20))
        writer.finish()
    given = ["--policy", "center-out", "--n-initial", 6, "--steps", 3]
    with pytest.raises(ConfigError, match=r"of 2 of 4 slices, .* start from 5 or fewer"):
        run(tmp_path / "s", tmp_path / "o", "fastmri", *given)
    assert not (tmp_path / "o").exists()


def test_a_fitted_policy_brings_its_own_budget(tmp_path: Path) -> None:
    store = coil_store(tmp_path / "s", n_coils=1)
    order = FixedOrder(n_cols=store.split("test").shape[-1], order=[2, 0, 1])
    save(tmp_path / "order.safetensors", order, extra={"n_initial": 3, "horizon": 2})
    n_measured = []
    for steps in ([], ["--steps", 1]):
        words = ["--policy", tmp_path / "order.safetensors", *steps]
        (file,) = run(tmp_path / "s", tmp_path / "o", "fastmri", *words)
        with h5py.File(file) as opened:
            n_measured += opened["mask"][()].sum(axis=1).tolist()
    assert set(n_measured[: len(n_measured) // 2]) == {5} and set(n_measured) == {4, 5}


def test_a_policy_for_another_matrix_or_budget_is_reported_before_the_first_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    n_cols = coil_store(tmp_path / "s", n_coils=1).split("test").shape[-1]
    file = tmp_path / "a.safetensors"
    words = ["fastmri", "--policy", file, "--n-initial", 4, "--steps", 1]
    for n in (n_cols, n_cols + 1):
        save(file, FixedOrder(n_cols=n, order=[2, 0]), extra={"n_initial": 3, "horizon": 2})
        if n == n_cols:
            run(tmp_path / "s", tmp_path / "o", *words)
            assert "was trained for 3 + 2 columns and runs here with 4 + 1" in caplog.text
    with pytest.raises(ConfigError, match=f"was made for {n_cols + 1} columns, the slices have"):
        run(tmp_path / "s", tmp_path / "other", *words)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("volume", ["", "..", "../../x", "a/b", "\0", "é", ".h5", "x" * 300, "CON"])
def test_names_of_volumes_lead_nowhere_and_differ(volume: str) -> None:
    first = _name(volume, ".h5", set())
    assert Path(first).name == first and not first.startswith(".") and len(first) < 120
    assert _name(volume, ".h5", {first}) != first


def test_draws_of_a_policy_are_those_of_an_evaluation(tmp_path: Path) -> None:
    """Columns are keyed by seed and slice: the same again, others with another seed."""
    coil_store(tmp_path / "s", n_coils=1)
    masks = []
    for seed in (0, 0, 1, None):
        words = ["--policy", "random", "--n-initial", 3, "--steps", 5]
        words += [] if seed is None else ["--sample", seed]
        (file,) = run(tmp_path / "s", tmp_path / "o", "fastmri", *words)
        with h5py.File(file) as opened:
            masks.append(opened["mask"][()])
    assert (masks[0] == masks[1]).all() and (masks[0] != masks[2]).any()
    assert (masks[3] == masks[0]).all() and (masks[3][0] != masks[3][1]).any()
    assert (masks[0].sum(axis=-1) == 8).all()
