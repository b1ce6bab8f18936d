"""MRD files become the slices that their counters, flags and header tell of."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from coil_data import imported, stored
from kscout.errors import DataError
from mrd_files import (
    CALIBRATION,
    FEEDBACK,
    KSPACE,
    N_COILS,
    N_COLS,
    N_ROWS,
    NOISE,
    PHASE_CORRECTION,
    REVERSED,
    encoding,
    header,
    line,
    lines,
    write,
)

take = partial(imported, crop=(N_ROWS, N_COLS))


@pytest.mark.parametrize("name", ["a.mrd", "a.h5"])
def test_lines_become_slices(name: str, tmp_path: Path) -> None:
    store = take(write(tmp_path / name, lines()))
    np.testing.assert_array_equal(stored(store), KSPACE)
    (record,) = store.manifest.volumes
    assert (record.acquisition, record.slices) == ("gre", (0, 1))
    assert not any("left out" in warning for warning in store.manifest.warnings)


def test_a_header_in_a_damaged_heap_is_told_before_hdf5_looks_for_it(tmp_path: Path) -> None:
    """Zeros there, which HDF5 takes for free space of no length, end no search."""
    path = write(tmp_path / "a.mrd", lines())
    content = bytearray(path.read_bytes())
    heap = content.rindex(b"GCOL", 0, content.index(b"<ismrmrdHeader"))
    content[heap + 16 : heap + 48] = bytes(32)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.mrd is damaged at /dataset/xml; copy it"):
        take(path)


def test_oversampling_is_removed_by_the_header(tmp_path: Path) -> None:
    # A group of another name is found, too, without being told that it is k-space.
    store = take(write(tmp_path / "a.h5", lines(), group="other"), crop=None)
    assert store.split("test").shape == (N_COILS, 8, N_COLS)
    assert store.manifest.volumes[0].geometry is not None
    assert store.manifest.volumes[0].geometry.spacing_mm == (20, 10)
    whole = take(tmp_path / "a.h5", "whole")
    torch.testing.assert_close(
        store.split("test").magnitudes(), whole.split("test").magnitudes()[:, 4:12]
    )


def test_limits_and_centers_place_partial_lines(tmp_path: Path) -> None:
    """Line 1 is the center, so line 0 is the column before it; readouts lack their first rows."""
    rows = [
        line(KSPACE[0, :, 3:, 4 + number], center=5, kspace_encode_step_1=number)
        for number in range(N_COLS - 4)
    ]
    store = take(write(tmp_path / "a.mrd", rows, header(encoding(center=1))))
    expected = KSPACE[:1].copy()
    expected[:, :, :3] = 0
    expected[..., :4] = 0
    np.testing.assert_array_equal(stored(store), expected)
    assert store.split("test").selectable[0].tolist() == [False] * 4 + [True] * 7


def test_samples_that_heads_discard_are_left_out(tmp_path: Path) -> None:
    padded = np.pad(KSPACE, [(0, 0), (0, 0), (2, 3), (0, 0)], constant_values=99)
    rows = lines(padded, discard_pre=2, discard_post=3, center=2 + N_ROWS // 2)
    np.testing.assert_array_equal(stored(take(write(tmp_path / "a.mrd", rows))), KSPACE)


def test_averages_are_averaged_and_repetitions_are_slices(tmp_path: Path) -> None:
    rows = [*lines(KSPACE + 1, average=0), *lines(KSPACE - 1, average=1)]
    np.testing.assert_allclose(
        stored(take(write(tmp_path / "a.mrd", rows), "averaged")), KSPACE, atol=1e-6
    )
    rows = [*lines(KSPACE + 1, repetition=0), *lines(KSPACE - 1, repetition=1)]
    found = stored(take(write(tmp_path / "b.mrd", rows), "repeated"))
    np.testing.assert_array_equal(found, np.concatenate([KSPACE + 1, KSPACE - 1]))


def test_reversed_lines_are_turned_around(tmp_path: Path) -> None:
    rows = list(lines())
    for number in range(0, len(rows), 2):
        rows[number].head["flags"] = REVERSED
        rows[number] = rows[number]._replace(values=rows[number].values[:, ::-1])
    np.testing.assert_array_equal(stored(take(write(tmp_path / "a.mrd", rows))), KSPACE)


def test_lines_of_other_purposes_are_left_out_and_counted(tmp_path: Path) -> None:
    junk = np.full((N_COILS, 7), 99, dtype=np.complex64)
    more = [line(junk, flags=PHASE_CORRECTION)] * 3 + [line(junk, flags=FEEDBACK)] * 2
    more += [line(junk, flags=CALIBRATION), line(junk, encoding_space_ref=1)]
    both = list(lines(flags=CALIBRATION | CALIBRATION << 1))
    xml = header(encoding(), encoding("radial"))
    store = take(write(tmp_path / "a.mrd", [*more, *both], xml))
    np.testing.assert_array_equal(stored(store), KSPACE)
    told = " ".join(store.manifest.warnings)
    assert "left out 3 phase-correction, 2 feedback, 1 calibration lines" in told
    assert "left out 1 lines of other encodings" in told


def test_noise_scans_make_coils_white(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    mixing = random.normal(size=(N_COILS, N_COILS)) + np.eye(N_COILS)
    noise = random.normal(size=(2, N_COILS, 4000)) + 1j * random.normal(size=(2, N_COILS, 4000))
    mixed = mixing @ noise
    rows = [line(part, flags=NOISE) for part in mixed]
    store = take(write(tmp_path / "a.mrd", [*rows, *lines()]))
    covariance = np.cov(np.concatenate(list(mixed), axis=1))
    # What was stored is a mixture of coils under which that noise is white.
    found, given = (x.transpose(1, 0, 2, 3).reshape(N_COILS, -1) for x in (stored(store), KSPACE))
    whitening = found @ np.linalg.pinv(given)
    np.testing.assert_allclose(whitening @ given, found, atol=1e-4)
    white = whitening @ covariance @ whitening.conj().T
    level = covariance.trace().real / N_COILS
    np.testing.assert_allclose(white, level * np.eye(N_COILS), atol=0.03 * level)
    assert "coils made white by 2 lines of noise" in " ".join(store.manifest.warnings)
    rows = [line(part * [[1], [0], [1]], flags=NOISE) for part in mixed]
    with pytest.raises(DataError, match="does not separate its 3 coils"):
        take(write(tmp_path / "b.mrd", [*rows, *lines()]), "other")


def test_what_lies_in_other_files_is_not_read(tmp_path: Path) -> None:
    source = write(tmp_path / "a.mrd", lines())
    with h5py.File(source, "r+") as file:
        del file["dataset/xml"]
        file["dataset/xml"] = h5py.ExternalLink("b.h5", "/x")
    with pytest.raises(DataError, match="contains dataset/xml as a link to /x"):
        take(source)


def test_the_header_may_lie_in_a_second_file(tmp_path: Path) -> None:
    source = write(tmp_path / "a.mrd", lines(), xml="")
    with pytest.raises(DataError, match=r"has no header, and .*a\.xml is not there; .*--header"):
        take(source)
    (tmp_path / "a.xml").write_text(header())
    np.testing.assert_array_equal(stored(take(source, "beside")), KSPACE)
    other = write(tmp_path / "b.h5", lines(KSPACE[:1, :, :, :1]))
    np.testing.assert_array_equal(stored(take(source, "named", header=other)), KSPACE)


def test_a_measurement_that_ended_early_is_kept_to_be_reconstructed_alone(tmp_path: Path) -> None:
    rows = [row for row in lines() if row.head["idx"]["kspace_encode_step_1"] < 8]
    store = take(write(tmp_path / "a.mrd", rows), prospective=True)
    assert store.manifest.is_prospective
    assert store.measured("test").selectable[0].tolist() == [True] * 8 + [False] * 3


def declare_many(path: Path) -> None:
    with h5py.File(write(path, lines()), "r+") as file:
        file["dataset/data"].resize((2**34,))


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "epi": (
        lambda path: write(path, lines(), header(encoding("epi"))),
        "echo-planar measurement, whose lines need a phase correction",
    ),
    "epi by its lines": (
        lambda path: write(
            path,
            [line(KSPACE[0, :, :, 5], flags=PHASE_CORRECTION | REVERSED), *lines(flags=REVERSED)],
        ),
        "echo-planar measurement, whose lines need a phase correction",
    ),
    "noise": (
        lambda path: write(
            path, [line(np.full((N_COILS, 99), np.nan), flags=NOISE), *lines(flags=REVERSED)]
        ),
        "NaN or infinite values in its noise scan",
    ),
    "radial": (
        lambda path: write(path, lines(), header(encoding("radial"))),
        "along a trajectory that is radial",
    ),
    "many": (declare_many, r"declares records of shape \(17179869184,\), which are [\d.]+ TB"),
    "depth": (
        lambda path: write(path, lines(), header(encoding(z=4))),
        "encodes two phase directions",
    ),
    "noise alone": (
        lambda path: write(path, [line(KSPACE[0, :, :, 0], flags=NOISE)]),
        "no line that makes an image",
    ),
    "column": (
        lambda path: write(path, lines(), header(encoding(center=0))),
        "line 12 at column 11 of an encoded matrix of 11",
    ),
    "encodings": (
        lambda path: write(path, lines(encoding_space_ref=2)),
        "lines of encoding 2, and its header has 1 encodings",
    ),
    "samples": (
        lambda path: write(path, lines(np.pad(KSPACE, [(0, 0), (0, 0), (4, 4), (0, 0)]))),
        "of 24 samples, its center 12, in a matrix of 16 rows",
    ),
    "coils": (
        lambda path: write(path, [*lines(), line(KSPACE[0, :2, :, 0])]),
        "coils and samples among lines of 3 coils",
    ),
    "xml": (lambda path: write(path, lines(), "<a>"), "cannot be read as k-space in HDF5"),
    "entities": (
        lambda path: write(path, lines(), "<!DOCTYPE a [<!ENTITY b 'c'>]>" + header()[21:]),
        "declares a document type",
    ),
    "lacking": (
        lambda path: write(
            path, [row for row in lines() if row.head["idx"]["kspace_encode_step_1"] != 4]
        ),
        "undersampled: 10 of 11 columns",
    ),
    "ended": (
        lambda path: write(
            path, [row for row in lines() if row.head["idx"]["kspace_encode_step_1"] < 8]
        ),
        "undersampled: 8 of 11 columns",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_cartesian_slice_is_one_sentence(name: str, tmp_path: Path) -> None:
    spoil, sentence = REFUSED[name]
    spoil(tmp_path / "a.mrd")
    with pytest.raises(DataError, match=sentence):
        take(tmp_path / "a.mrd")
    assert [path.name for path in tmp_path.iterdir()] == ["a.mrd"]
