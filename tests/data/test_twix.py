"""Siemens raw data becomes the slices that its counters and flags tell of."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from coil_data import imported, stored
from kscout.data.formats.twix import read_twix
from kscout.errors import DataError
from twix_files import (
    CALIBRATION,
    FEEDBACK,
    KSPACE,
    N_COILS,
    N_COLS,
    N_ROWS,
    NOISE,
    PHASE_CORRECTION,
    PROTOCOL,
    REVERSED,
    SYNCHRONOUS,
    block,
    blocks,
    special,
    write,
    write_older,
)

take = partial(imported, crop=(N_ROWS, N_COLS))


def test_lines_become_slices(tmp_path: Path) -> None:
    source = write(tmp_path / "a.dat", [special(SYNCHRONOUS, 96), *blocks()])
    store = take(source)
    np.testing.assert_array_equal(stored(store), KSPACE)
    (record,) = store.manifest.volumes
    assert record.acquisition == "gre" and record.geometry is not None
    assert record.geometry.spacing_mm == (20, 10)
    assert take(source, "usual", crop=None).split("test").shape == (N_COILS, 8, N_COLS)


def test_files_of_software_vb_have_the_slices_of_newer_ones(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    noise = random.normal(size=(N_COILS, 4000)) + 1j * random.normal(size=(N_COILS, 4000))
    reverse = block(KSPACE[0, :, ::-1, 0], REVERSED, line=0)
    _, *rest = blocks()
    rows = [special(SYNCHRONOUS, 96), block(noise, NOISE), reverse, *rest]
    old = take(write_older(tmp_path / "old.dat", rows), "old")
    new = take(write(tmp_path / "new.dat", rows), "new")
    np.testing.assert_array_equal(stored(old), stored(new))
    found, expected = (store.manifest.volumes[0] for store in (old, new))
    assert (found.acquisition, found.geometry) == (expected.acquisition, expected.geometry)
    np.testing.assert_array_equal(stored(take(write_older(tmp_path / "b.dat", blocks()))), KSPACE)


def test_averages_reversed_and_partial_lines_are_put_in_their_places(tmp_path: Path) -> None:
    rows = [*blocks(KSPACE + 1, average=0), *blocks(KSPACE - 1, average=1)]
    found = stored(take(write(tmp_path / "a.dat", rows), "averaged"))
    np.testing.assert_allclose(found, KSPACE, atol=1e-6)
    rows = [*blocks(KSPACE[:, :, ::-1], REVERSED)]
    np.testing.assert_array_equal(stored(take(write(tmp_path / "b.dat", rows), "back")), KSPACE)
    rows = [
        block(KSPACE[0, :, 2:, column], line=column, center=N_ROWS // 2 - 2)
        for column in range(3, N_COLS)
    ]
    store = take(write(tmp_path / "c.dat", rows), "partial")
    assert not stored(store)[:, :, :2].any()
    np.testing.assert_array_equal(stored(store)[:, :, 2:, 3:], KSPACE[:1, :, 2:, 3:])
    assert store.split("test").selectable[0].tolist() == [False] * 3 + [True] * 9


def test_lines_of_other_purposes_are_left_out_and_counted(tmp_path: Path) -> None:
    junk = np.full((N_COILS, 7), 99, dtype=np.complex64)
    more = [block(junk, PHASE_CORRECTION)] * 3 + [block(junk, FEEDBACK), block(junk, CALIBRATION)]
    both = blocks(flags=CALIBRATION | CALIBRATION << 1)
    store = take(write(tmp_path / "a.dat", [*more, *both]))
    np.testing.assert_array_equal(stored(store), KSPACE)
    told = " ".join(store.manifest.warnings)
    assert "left out 3 phase-correction, 1 feedback, 1 calibration lines" in told


def test_noise_of_a_measurement_before_makes_coils_white(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    noise = random.normal(size=(N_COILS, 4000)) + 1j * random.normal(size=(N_COILS, 4000))
    louder = noise * [[1], [2], [3]]
    store = take(write(tmp_path / "a.dat", [block(louder, NOISE)], blocks()))
    # Coils of one, two and three times the noise are divided by that, at the mean level.
    factors = np.sqrt((1 + 4 + 9) / 3) / np.array([1, 2, 3])
    expected = KSPACE * factors[:, None, None]
    np.testing.assert_allclose(stored(store), expected, atol=0.05 * abs(expected).max())
    assert "coils made white by 1 lines of noise" in " ".join(store.manifest.warnings)


@pytest.mark.parametrize("save", [write, write_older])
def test_a_file_that_ends_anywhere_among_its_lines_is_refused(
    save: Callable[..., Path], tmp_path: Path
) -> None:
    rows = list(blocks())
    whole = save(tmp_path / "a.dat", rows).read_bytes()
    assert read_twix(tmp_path / "a.dat").shape == (2, N_COILS, N_ROWS, N_COLS)
    # To where each of the last lines ends, and to within the head or samples of the next.
    ends = [len(save(tmp_path / "b.dat", rows[:n]).read_bytes()) for n in (-9, -2, -1)]
    n_end = len(whole) - whole.rindex(rows[-1][-64:]) - 64
    for end in (*(x - n_end for x in ends), len(whole) - n_end):
        for more in (0, 7, 100, 300):
            (tmp_path / "b.dat").write_bytes(whole[: min(end + more, len(whole) - n_end)])
            with pytest.raises(DataError, match="ends within a measurement, or is damaged"):
                read_twix(tmp_path / "b.dat")


def truncated(path: Path) -> None:
    write(path, blocks())
    path.write_bytes(path.read_bytes()[:-500])


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "epi": (
        lambda path: write(
            path, [block(KSPACE[0, :, :, 0], PHASE_CORRECTION | REVERSED), *blocks()]
        ),
        "echo-planar measurement",
    ),
    "radial": (
        lambda path: write(
            path, blocks(), protocol=PROTOCOL.replace("ucTrajectory\t = \t1", "ucTrajectory = 2")
        ),
        "along a trajectory that is not Cartesian",
    ),
    "spiral": (
        lambda path: write_older(
            path, blocks(), protocol=PROTOCOL.replace("ucTrajectory\t = \t1", "ucTrajectory = 0x4")
        ),
        "along a trajectory that is not Cartesian",
    ),
    "depth": (lambda path: write(path, blocks(partition=1)), "encodes two phase directions"),
    "empty": (lambda path: write(path, []), "no line for an image"),
    "other": (lambda path: write(path, blocks(), first=99999), "not raw data of Siemens"),
    "protocol": (
        lambda path: write_older(path, blocks(), protocol=""),
        "not raw data of Siemens, because it starts with 12008 and 6",
    ),
    "torn": (
        lambda path: write_older(path, [*blocks(), special(SYNCHRONOUS)[:-60]]),
        "ends within a measurement, or is damaged",
    ),
    "of no length": (
        lambda path: write(path, [*blocks(), bytes(4) + special(SYNCHRONOUS)[4:]]),
        "ends within a measurement, or is damaged",
    ),
    "short": (lambda path: path.write_bytes(b"\0" * 64), "has 64 bytes, too few for raw data"),
    "truncated": (truncated, "ends within a measurement, or is damaged"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_cartesian_slice_is_one_sentence(name: str, tmp_path: Path) -> None:
    spoil, sentence = REFUSED[name]
    spoil(tmp_path / "a.dat")
    with pytest.raises(DataError, match=sentence):
        take(tmp_path / "a.dat")
    assert [path.name for path in tmp_path.iterdir()] == ["a.dat"]
